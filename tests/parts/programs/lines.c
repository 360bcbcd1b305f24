/* Checks of the API of models whose image comes row by row: `lines NAME` runs one and exits with 0 if it holds.
 *
 * net trains on each sample, sums on two at a time; both have 3 classes. Arenas have exactly the size that they need. */
#include "net_train.h"
#include "sums_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { ROWS = NET_INPUT_ROWS };

static net_row_t image[ROWS];
static unsigned char saved[NET_CHECKPOINT_BYTES];
static size_t saved_bytes, asked[ROWS + 1], asked_count, stop_at = ROWS;

static int keep(void *context, const void *data, size_t size)
{
    (void)context;
    if (size > sizeof saved - saved_bytes) {
        return -1;
    }
    memcpy(saved + saved_bytes, data, size);
    saved_bytes += size;
    return 0;
}

static int give(void *context, void *data, size_t size)
{
    size_t *at = context;
    memcpy(data, saved + *at, size);
    *at += size;
    return 0;
}

static int row_of(void *context, size_t row, void *dst)
{
    net_t *m = context;
    asked[asked_count++ % (ROWS + 1)] = row;
    if (m != NULL && net_set_lr(m, 0.5f) != NET_ERR_STATE) { /* not that it may */
        return -2;
    }
    memcpy(dst, &image[row], sizeof image[row]);
    return row == stop_at ? -1 : 0;
}

static net_t *new_net(void)
{
    net_t *m = NULL;
    return net_init(&m, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) == NET_OK ? m : NULL;
}

static void paint(int seed)
{
    for (size_t i = 0; i < sizeof image; ++i) {
        ((int8_t *)image)[i] = (int8_t)((i * 37u + i / 7u * 11u + (size_t)seed * 61u) % 255u);
    }
}

/* What a checkpoint of the model has, in `saved`. */
static int save(net_t *m)
{
    saved_bytes = 0;
    return net_save(m, keep, NULL) == NET_OK && saved_bytes == sizeof saved ? 0 : 1;
}

static int same_state(net_t *a, net_t *b)
{
    static unsigned char first[NET_CHECKPOINT_BYTES];
    if (save(a) != 0) {
        return 0;
    }
    memcpy(first, saved, sizeof first);
    return save(b) == 0 && memcmp(first, saved, sizeof first) == 0;
}

static int nothing_is_begun(void)
{
    net_t *m = new_net();
    net_label_t label = 0;
    net_output_t out;
    float loss = 7.0f;
    CHECK(net_push_rows(m, image, 1) == NET_ERR_STATE);
    CHECK(net_push_rows(m, image, 0) == NET_ERR_STATE);
    CHECK(net_train_end(m, &label, &loss) == NET_ERR_STATE);
    CHECK(net_infer_end(m, &out) == NET_ERR_STATE);
    CHECK(net_begin(m, (net_call)0) == NET_ERR_ARGUMENT);
    CHECK(net_begin(m, (net_call)3) == NET_ERR_ARGUMENT);
    CHECK(net_push_rows(m, image, 1) == NET_ERR_STATE);
    CHECK(loss == 7.0f);
    return 0;
}

static int handles_are_checked(void)
{
    net_t *foreign = calloc(1, NET_ARENA_BYTES);
    net_t *const wrong[2] = {NULL, foreign};
    const net_label_t label = 0;
    net_output_t out;
    float loss;
    for (int i = 0; i < 2; ++i) {
        CHECK(net_begin(wrong[i], NET_TRAIN) == NET_ERR_STATE);
        CHECK(net_push_rows(wrong[i], image, 1) == NET_ERR_STATE);
        CHECK(net_train_end(wrong[i], &label, &loss) == NET_ERR_STATE);
        CHECK(net_infer_end(wrong[i], &out) == NET_ERR_STATE);
        CHECK(net_infer_rows(wrong[i], row_of, NULL, &out) == NET_ERR_STATE);
        CHECK(net_train_step_rows(wrong[i], row_of, NULL, &label, &loss) == NET_ERR_STATE);
    }
    CHECK(asked_count == 0);
    return 0;
}

/* All that cannot stand between begin and end leaves the call as it was. */
static int others_wait(void)
{
    net_t *m = new_net(), *plain = new_net();
    const net_label_t label = 2;
    net_output_t out;
    float loss, other;
    size_t at = 0;
    CHECK(save(m) == 0);
    for (size_t row = 0; row <= ROWS; ++row) {
        if (row == 0) {
            CHECK(net_begin(m, NET_TRAIN) == NET_OK);
        } else {
            CHECK(net_push_rows(m, &image[row - 1], 1) == NET_OK);
        }
        CHECK(net_set_lr(m, 0.5f) == NET_ERR_STATE);
        CHECK(net_save(m, keep, NULL) == NET_ERR_STATE);
        CHECK(net_load(m, give, &at) == NET_ERR_STATE && at == 0);
        CHECK(net_infer_rows(m, row_of, NULL, &out) == NET_ERR_STATE);
        CHECK(net_train_step_rows(m, row_of, NULL, &label, &loss) == NET_ERR_STATE);
        CHECK(net_infer_end(m, &out) == NET_ERR_STATE); /* it was begun as the other */
    }
    CHECK(asked_count == 0);
    CHECK(net_train_end(m, &label, &loss) == NET_OK);
    CHECK(net_train_end(m, &label, &loss) == NET_ERR_STATE);
    CHECK(net_begin(plain, NET_TRAIN) == NET_OK && net_push_rows(plain, image, ROWS) == NET_OK);
    CHECK(net_train_end(plain, &label, &other) == NET_OK && loss == other);
    CHECK(same_state(m, plain));
    CHECK(net_begin(m, NET_INFER) == NET_OK && net_push_rows(m, image, ROWS) == NET_OK);
    CHECK(net_train_end(m, &label, &loss) == NET_ERR_STATE);
    CHECK(net_infer_end(m, &out) == NET_OK);
    return 0;
}

static int rows_are_counted(void)
{
    net_t *m = new_net(), *plain = new_net();
    const net_label_t label = 1, wrong = 3;
    float loss, other;
    CHECK(net_begin(m, NET_TRAIN) == NET_OK);
    CHECK(net_push_rows(m, image, ROWS + 1) == NET_ERR_ROWS);
    CHECK(net_push_rows(m, image, (size_t)-1) == NET_ERR_ROWS);
    CHECK(net_push_rows(m, NULL, 1) == NET_ERR_ARGUMENT);
    CHECK(net_train_end(m, &label, &loss) == NET_ERR_ROWS);
    CHECK(net_push_rows(m, image, ROWS - 1) == NET_OK);
    CHECK(net_push_rows(m, image, 0) == NET_OK);
    CHECK(net_push_rows(m, &image[ROWS - 1], 2) == NET_ERR_ROWS);
    CHECK(net_train_end(m, &label, &loss) == NET_ERR_ROWS);
    CHECK(net_push_rows(m, &image[ROWS - 1], 1) == NET_OK);
    CHECK(net_push_rows(m, image, 1) == NET_ERR_ROWS);
    CHECK(net_train_end(m, &wrong, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_end(m, NULL, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_end(m, &label, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_train_end(m, &label, &loss) == NET_OK); /* the call had gone on */
    CHECK(net_begin(plain, NET_TRAIN) == NET_OK && net_push_rows(plain, image, ROWS) == NET_OK);
    CHECK(net_train_end(plain, &label, &other) == NET_OK && loss == other);
    CHECK(same_state(m, plain));
    return 0;
}

/* After every number of rows: begin anew, as a step or an inference, with another image before. */
static int begin_gives_up(void)
{
    net_t *m = new_net(), *plain = new_net();
    const net_label_t label = 1;
    net_output_t out, expected;
    float loss, other;
    CHECK(net_train_step_rows(plain, row_of, NULL, &label, &other) == NET_OK);
    CHECK(net_infer_rows(plain, row_of, NULL, &expected) == NET_OK);
    for (size_t rows = 0; rows <= ROWS; ++rows) {
        paint(2);
        CHECK(net_begin(m, rows % 2 == 0 ? NET_TRAIN : NET_INFER) == NET_OK);
        CHECK(net_push_rows(m, image, rows) == NET_OK);
    }
    paint(1);
    CHECK(net_begin(m, NET_TRAIN) == NET_OK && net_push_rows(m, image, ROWS) == NET_OK);
    CHECK(net_train_end(m, &label, &loss) == NET_OK && loss == other);
    CHECK(same_state(m, plain));
    CHECK(net_begin(m, NET_INFER) == NET_OK && net_push_rows(m, image, ROWS) == NET_OK);
    CHECK(net_infer_end(m, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_infer_end(m, &out) == NET_OK && memcmp(&out, &expected, sizeof out) == 0);
    return 0;
}

static int rows_are_asked_for(void)
{
    net_t *m = new_net(), *plain = new_net();
    const net_label_t label = 1, wrong = -1;
    net_output_t out;
    float loss = 7.0f;
    CHECK(net_train_step_rows(m, NULL, NULL, &label, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_step_rows(m, row_of, m, &wrong, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_step_rows(m, row_of, m, NULL, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_step_rows(m, row_of, m, &label, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_infer_rows(m, NULL, NULL, &out) == NET_ERR_ARGUMENT);
    CHECK(net_infer_rows(m, row_of, m, NULL) == NET_ERR_ARGUMENT);
    CHECK(asked_count == 0);
    for (stop_at = 0; stop_at < ROWS; ++stop_at) {
        asked_count = 0;
        CHECK(net_train_step_rows(m, row_of, m, &label, &loss) == NET_ERR_IO);
        CHECK(asked_count == stop_at + 1 && loss == 7.0f);
        CHECK(net_push_rows(m, image, 1) == NET_ERR_STATE); /* it was given up */
    }
    CHECK(same_state(m, plain));
    asked_count = 0;
    CHECK(net_train_step_rows(m, row_of, m, &label, &loss) == NET_OK && asked_count == ROWS);
    for (size_t i = 0; i < ROWS; ++i) {
        CHECK(asked[i] == i);
    }
    CHECK(!same_state(m, plain));
    return 0;
}

/* A reset by init or load ends what was begun; a load before it is possible again. */
static int init_ends_it(void)
{
    net_t *m = new_net();
    size_t at = 0;
    CHECK(save(m) == 0);
    CHECK(net_begin(m, NET_TRAIN) == NET_OK && net_push_rows(m, image, 1) == NET_OK);
    CHECK(net_init(&m, m, NET_ARENA_BYTES) == NET_OK);
    CHECK(net_push_rows(m, image, 1) == NET_ERR_STATE);
    CHECK(net_load(m, give, &at) == NET_OK && net_set_lr(m, 0.1f) == NET_OK);
    return 0;
}

static int batches_accumulate(void)
{
    sums_t *m = NULL, *other = NULL;
    const sums_label_t label = 1;
    float loss, same;
    CHECK(sums_init(&m, malloc(SUMS_ARENA_BYTES), SUMS_ARENA_BYTES) == SUMS_OK);
    CHECK(sums_init(&other, malloc(SUMS_ARENA_BYTES), SUMS_ARENA_BYTES) == SUMS_OK);
    CHECK(sums_apply(m) == SUMS_ERR_STATE);
    for (int i = 0; i < 2; ++i) {
        paint(i);
        CHECK(sums_begin(m, SUMS_TRAIN) == SUMS_OK);
        CHECK(sums_apply(m) == SUMS_ERR_STATE);
        CHECK(sums_push_rows(m, (const sums_row_t *)(const void *)image, ROWS) == SUMS_OK);
        CHECK(sums_apply(m) == SUMS_ERR_STATE);
        CHECK(sums_accumulate_end(m, &label, &loss) == SUMS_OK);
        CHECK(sums_begin(m, SUMS_TRAIN) == SUMS_OK && sums_begin(m, SUMS_INFER) == SUMS_OK);
        CHECK(sums_push_rows(m, (const sums_row_t *)(const void *)image, ROWS) == SUMS_OK);
        sums_output_t out;
        CHECK(sums_infer_end(m, &out) == SUMS_OK); /* sums stay */
        CHECK(sums_accumulate_rows(other, row_of, NULL, &label, &same) == SUMS_OK && loss == same);
    }
    CHECK(sums_apply(m) == SUMS_OK && sums_apply(m) == SUMS_ERR_STATE);
    CHECK(sums_apply(other) == SUMS_OK);
    CHECK(sums_train_step_rows(m, row_of, NULL, &label, &loss) == SUMS_OK);
    CHECK(sums_train_step_rows(other, row_of, NULL, &label, &same) == SUMS_OK && loss == same);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} all[] = {
    {"nothing_is_begun", nothing_is_begun},
    {"handles_are_checked", handles_are_checked},
    {"others_wait", others_wait},
    {"rows_are_counted", rows_are_counted},
    {"begin_gives_up", begin_gives_up},
    {"rows_are_asked_for", rows_are_asked_for},
    {"init_ends_it", init_ends_it},
    {"batches_accumulate", batches_accumulate},
};

int main(int argc, char **argv)
{
    paint(1);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        if (argc == 2 && strcmp(argv[1], all[i].name) == 0) {
            return all[i].run();
        }
    }
    return 2;
}
