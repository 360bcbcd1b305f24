/* Checks of the generated API on the host: `checks NAME` runs one and exits with 0 if it holds. */
#include "checks.h"

static int init_rejects(void)
{
    unsigned char *arena = arena_of(NET_ARENA_BYTES + 16);
    void *const memory[NET_MEMORIES] = {arena};
    void *const nothing[NET_MEMORIES] = {NULL};
    void *const odd[NET_MEMORIES] = {arena + 4};
    const size_t size[NET_MEMORIES] = {NET_ARENA_BYTES};
    const size_t more[NET_MEMORIES] = {NET_ARENA_BYTES + 12};
    const size_t small[NET_MEMORIES] = {NET_ARENA_BYTES - 1};
    const size_t none[NET_MEMORIES] = {0};
    net_t *m = NULL;
    CHECK(net_init_memories(NULL, memory, size) == NET_ERR_ARGUMENT);
    CHECK(net_init_memories(&m, NULL, size) == NET_ERR_ARGUMENT);
    CHECK(net_init_memories(&m, memory, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_init_memories(&m, nothing, size) == NET_ERR_ARGUMENT);
    CHECK(net_init_memories(&m, memory, small) == NET_ERR_SIZE);
    CHECK(net_init_memories(&m, memory, none) == NET_ERR_SIZE);
    CHECK(net_init_memories(&m, odd, more) == NET_ERR_ALIGNMENT);
    CHECK(net_init(NULL, arena, NET_ARENA_BYTES) == NET_ERR_ARGUMENT);
    CHECK(net_init(&m, NULL, NET_ARENA_BYTES) == NET_ERR_ARGUMENT);
    CHECK(net_init(&m, arena, NET_ARENA_BYTES - 1) == NET_ERR_SIZE);
    CHECK(net_init(&m, arena + 4, NET_ARENA_BYTES + 12) == NET_ERR_ALIGNMENT);
    CHECK(m == NULL);
    for (size_t i = 0; i < NET_ARENA_BYTES + 16; ++i) {
        CHECK(arena[i] == 0xa5);
    }
    CHECK(net_init_memories(&m, memory, more) == NET_OK);
    CHECK((void *)m == (void *)arena);
    m = NULL;
    CHECK(net_init(&m, arena, NET_ARENA_BYTES) == NET_OK && (void *)m == (void *)arena);
    for (size_t i = NET_ARENA_BYTES; i < NET_ARENA_BYTES + 16; ++i) {
        CHECK(arena[i] == 0xa5);
    }
    return 0;
}

static int handles_are_checked(void)
{
    net_t *foreign = arena_of(NET_ARENA_BYTES); /* never initialised */
    const net_label_t label = 0;
    float loss = 7.0f;
    net_output_t out;
    net_t *m = new_net();
    net_t *const wrong[2] = {NULL, foreign};
    CHECK(m != NULL);
    for (int i = 0; i < 2; ++i) {
        CHECK(net_input(wrong[i]) == NULL);
        CHECK(net_infer(wrong[i], &out) == NET_ERR_STATE);
        CHECK(net_train_step(wrong[i], &label, &loss) == NET_ERR_STATE);
        CHECK(net_set_lr(wrong[i], 0.1f) == NET_ERR_STATE);
        CHECK(net_save(wrong[i], put, &written) == NET_ERR_STATE);
        CHECK(net_load(wrong[i], get, &written) == NET_ERR_STATE);
    }
    CHECK(written.size == 0);
    CHECK(net_infer(m, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_save(m, NULL, &written) == NET_ERR_ARGUMENT);
    CHECK(net_load(m, NULL, &written) == NET_ERR_ARGUMENT);
    CHECK(loss == 7.0f);
    return 0;
}

static int labels_are_checked(void)
{
    static const net_label_t wrong[] = {-1, 4, 5, INT32_MAX, INT32_MIN};
    const net_label_t good = 3;
    float loss = 7.0f;
    net_t *m = new_net();
    unsigned char *copy = arena_of(NET_ARENA_BYTES);
    CHECK(m != NULL);
    fill(net_input(m)->values, NET_INPUT_ELEMENTS, 1);
    memcpy(copy, m, NET_ARENA_BYTES);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        CHECK(net_train_step(m, &wrong[i], &loss) == NET_ERR_ARGUMENT);
    }
    CHECK(net_train_step(m, NULL, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_step(m, &good, NULL) == NET_ERR_ARGUMENT);
    CHECK(memcmp(copy, m, NET_ARENA_BYTES) == 0);
    CHECK(loss == 7.0f);
    CHECK(net_train_step(m, &good, &loss) == NET_OK);
    CHECK(loss > 0.0f && loss != 7.0f);
    return 0;
}

static int inference_changes_no_state(void)
{
    net_t *m = new_net();
    net_output_t first, second;
    CHECK(m != NULL);
    state_of(m, &written);
    CHECK(infer(m, &first) == NET_OK);
    CHECK(infer(m, &second) == NET_OK);
    CHECK(memcmp(&first, &second, sizeof first) == 0);
    state_of(m, &again);
    CHECK(same(&written, &again));
    return 0;
}

static int learning_rate_is_state(void)
{
    float loss;
    net_output_t first, second;
    net_t *m = new_net(), *other = new_net();
    CHECK(m != NULL && other != NULL);
    CHECK(infer(m, &first) == NET_OK);
    CHECK(net_set_lr(m, 0.0f) == NET_OK);
    CHECK(step(m, 1, &loss) == NET_OK);
    CHECK(infer(m, &second) == NET_OK);
    CHECK(memcmp(&first, &second, sizeof first) == 0);
    state_of(m, &written);
    CHECK(net_load(other, get, &written) == NET_OK);
    CHECK(step(other, 2, &loss) == NET_OK);
    CHECK(infer(other, &second) == NET_OK);
    CHECK(memcmp(&first, &second, sizeof first) == 0);
    CHECK(net_set_lr(other, 0.1f) == NET_OK);
    CHECK(step(other, 2, &loss) == NET_OK);
    CHECK(infer(other, &second) == NET_OK);
    CHECK(memcmp(&first, &second, sizeof first) != 0);
    return 0;
}

static int checkpoints_resume(void)
{
    float a, b;
    net_t *m = new_net(), *other = new_net();
    CHECK(m != NULL && other != NULL);
    for (int i = 0; i < 3; ++i) {
        CHECK(step(m, i, &a) == NET_OK);
    }
    state_of(m, &written);
    CHECK(written.size == net_state_size());
    CHECK(step(other, 9, &b) == NET_OK);
    CHECK(net_load(other, get, &written) == NET_OK);
    CHECK(written.position == written.size);
    for (int i = 3; i < 6; ++i) {
        CHECK(step(m, i, &a) == NET_OK && step(other, i, &b) == NET_OK);
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
    state_of(m, &written);
    state_of(other, &again);
    CHECK(same(&written, &again));
    return 0;
}

static int damage_is_found(void)
{
    static struct stream initial = {.calls_left = -1};
    float loss;
    net_t *m = new_net();
    CHECK(m != NULL);
    state_of(m, &initial);
    CHECK(step(m, 1, &loss) == NET_OK);
    state_of(m, &written);
    for (size_t bit = 0; bit < 8 * written.size; ++bit) {
        if (bit % 8 == 0) {
            CHECK(step(m, (int)(bit / 8 % 5), &loss) == NET_OK);
        }
        written.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        written.position = 0;
        CHECK(net_load(m, get, &written) == NET_ERR_FORMAT);
        written.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        if (bit % 8 == 7) {
            state_of(m, &again);
            CHECK(same(&again, &initial));
        }
    }
    for (size_t length = 0; length < written.size; ++length) {
        struct stream cut = written;
        cut.size = length;
        cut.position = 0;
        CHECK(step(m, 2, &loss) == NET_OK);
        CHECK(net_load(m, get, &cut) == NET_ERR_IO);
        state_of(m, &again);
        CHECK(same(&again, &initial));
    }
    written.position = 0;
    CHECK(net_load(m, get, &written) == NET_OK);
    return 0;
}

static int failing_writes_change_nothing(void)
{
    float loss;
    net_t *m = new_net();
    unsigned char *copy = arena_of(NET_ARENA_BYTES);
    int calls = 0;
    CHECK(m != NULL);
    CHECK(step(m, 1, &loss) == NET_OK);
    memcpy(copy, m, NET_ARENA_BYTES);
    for (net_status status = NET_ERR_IO; status != NET_OK; ++calls) {
        written.size = 0;
        written.calls_left = calls;
        status = net_save(m, put, &written);
        CHECK(status == NET_OK || status == NET_ERR_IO);
        CHECK(memcmp(copy, m, NET_ARENA_BYTES) == 0);
    }
    CHECK(calls > 3);
    return 0;
}

static int checkpoints_have_the_size_that_is_said(void)
{
    unsigned char room[NET_CHECKPOINT_BYTES];
    net_t *m = new_net();
    CHECK(m != NULL);
    state_of(m, &written);
    CHECK(written.size == sizeof room && net_state_size() == sizeof room);
    return 0;
}

/* The same model, made anew for another batch. */
static int other_builds_are_read(void)
{
    float loss;
    net_t *m = new_net();
    sums_t *other = new_sums();
    CHECK(m != NULL && other != NULL && NET_MODEL_HASH == SUMS_MODEL_HASH);
    CHECK(step(m, 1, &loss) == NET_OK);
    state_of(m, &written);
    CHECK(sums_load(other, get, &written) == SUMS_OK);
    again.size = 0;
    CHECK(sums_save(other, put, &again) == SUMS_OK);
    CHECK(same(&again, &written));
    return 0;
}

static int instances_are_independent(void)
{
    float alone[6], a, b;
    net_t *single = new_net(), *first = new_net(), *second = new_net();
    CHECK(single != NULL && first != NULL && second != NULL);
    for (int i = 0; i < 6; ++i) {
        CHECK(step(single, i, &alone[i]) == NET_OK);
    }
    for (int i = 0; i < 6; ++i) {
        CHECK(step(first, i, &a) == NET_OK && step(second, i + 1, &b) == NET_OK);
        CHECK(memcmp(&a, &alone[i], sizeof a) == 0);
        CHECK(memcmp(&a, &b, sizeof a) != 0);
    }
    state_of(single, &written);
    state_of(first, &again);
    CHECK(same(&written, &again));
    state_of(second, &again);
    CHECK(!same(&written, &again));
    return 0;
}

static int models_are_independent(void)
{
    float alone[4], a, b;
    net_t *single = new_net(), *m = new_net();
    sums_t *other = new_sums();
    CHECK(single != NULL && m != NULL && other != NULL);
    for (int i = 0; i < 4; ++i) {
        CHECK(step(single, i, &alone[i]) == NET_OK);
    }
    for (int i = 0; i < 4; ++i) {
        CHECK(step(m, i, &a) == NET_OK);
        CHECK(gather(other, i, &b) == SUMS_OK);
        CHECK(sums_apply(other) == SUMS_OK);
        CHECK(memcmp(&a, &alone[i], sizeof a) == 0);
    }
    return 0;
}

static int accumulation(void)
{
    float loss, other_loss;
    sums_t *m = new_sums(), *other = new_sums();
    sums_output_t out;
    const sums_label_t label = 1;
    CHECK(m != NULL && other != NULL);
    CHECK(SUMS_HAS_ACCUMULATE == 1 && NET_HAS_ACCUMULATE == 0);
    CHECK(sums_apply(m) == SUMS_ERR_STATE);
    for (int i = 0; i < 5; ++i) {
        CHECK(gather(m, i, &loss) == SUMS_OK && gather(other, i, &other_loss) == SUMS_OK);
        CHECK(loss == other_loss);
        fill(sums_input(other)->values, SUMS_INPUT_ELEMENTS, 9); /* inference between does not touch the sums */
        CHECK(sums_infer(other, &out) == SUMS_OK);
    }
    CHECK(sums_apply(m) == SUMS_OK && sums_apply(other) == SUMS_OK);
    CHECK(sums_apply(m) == SUMS_ERR_STATE);
    CHECK(same_sums(m, other));
    /* A train step is one sample and its update; sums are empty again behind an update. */
    fill(sums_input(m)->values, SUMS_INPUT_ELEMENTS, 1);
    CHECK(sums_train_step(m, &label, &loss) == SUMS_OK);
    CHECK(gather(other, 1, &other_loss) == SUMS_OK && sums_apply(other) == SUMS_OK);
    CHECK(same_sums(m, other));
    /* A load drops sums that were gathered with other weights. */
    CHECK(gather(m, 2, &loss) == SUMS_OK);
    written.position = 0;
    CHECK(sums_load(m, get, &written) == SUMS_OK);
    CHECK(sums_apply(m) == SUMS_ERR_STATE);
    CHECK(gather(m, 3, &loss) == SUMS_OK && gather(other, 3, &other_loss) == SUMS_OK);
    CHECK(sums_apply(m) == SUMS_OK && sums_apply(other) == SUMS_OK);
    CHECK(same_sums(m, other));
    return 0;
}

/* NaN and infinity. */
static const uint32_t not_finite[] = {0x7fc00000u, 0xffffffffu, 0x7f800000u, 0xff800000u};

static int not_a_number_is_reported(void)
{
    const net_label_t label = 1;
    float loss = 0.0f;
    net_t *m = new_net();
    CHECK(m != NULL);
    CHECK(step(m, 1, &loss) == NET_OK); /* momentum is not zero any more */
    state_of(m, &written);
    for (size_t i = 0; i < sizeof not_finite / sizeof not_finite[0]; ++i) {
        fill(net_input(m)->values, NET_INPUT_ELEMENTS, 1);
        memcpy(&net_input(m)->values[2], &not_finite[i], sizeof(float));
        CHECK(net_train_step(m, &label, &loss) == NET_ERR_NAN);
        CHECK(loss - loss != 0.0f);
        state_of(m, &again);
        CHECK(same(&written, &again));
    }
    CHECK(step(m, 2, &loss) == NET_OK && loss - loss == 0.0f);
    CHECK(net_set_lr(m, 1e30f) == NET_OK && step(m, 2, &loss) == NET_OK); /* diverges: the next sum overflows */
    state_of(m, &written);
    CHECK(step(m, 2, &loss) == NET_ERR_NAN);
    state_of(m, &again);
    CHECK(same(&written, &again));
    return 0;
}

static int not_a_number_is_not_summed(void)
{
    float loss, other_loss;
    const sums_label_t label = 1;
    sums_t *m = new_sums(), *other = new_sums();
    CHECK(m != NULL && other != NULL);
    for (int i = 0; i < 4; ++i) {
        CHECK(gather(m, i, &loss) == SUMS_OK && gather(other, i, &other_loss) == SUMS_OK);
        fill(sums_input(m)->values, SUMS_INPUT_ELEMENTS, i);
        memcpy(&sums_input(m)->values[0], &not_finite[i], sizeof(float));
        CHECK(sums_accumulate(m, &label, &loss) == SUMS_ERR_NAN);
    }
    CHECK(sums_apply(m) == SUMS_OK && sums_apply(other) == SUMS_OK);
    CHECK(same_sums(m, other));
    memcpy(&sums_input(m)->values[0], &not_finite[0], sizeof(float));
    CHECK(sums_train_step(m, &label, &loss) == SUMS_ERR_NAN);
    CHECK(sums_apply(m) == SUMS_ERR_STATE); /* nothing was counted */
    return 0;
}

static int learning_rates_are_checked(void)
{
    net_t *m = new_net();
    float rate = -1.0f;
    CHECK(m != NULL);
    state_of(m, &written);
    CHECK(net_set_lr(m, rate) == NET_ERR_ARGUMENT && net_set_lr(m, -1e-45f) == NET_ERR_ARGUMENT);
    for (size_t i = 0; i < 4; ++i) {
        memcpy(&rate, &not_finite[i], sizeof rate);
        CHECK(net_set_lr(m, rate) == NET_ERR_ARGUMENT);
    }
    state_of(m, &again);
    CHECK(same(&written, &again));
    CHECK(net_set_lr(m, 0.0f) == NET_OK && net_set_lr(m, 1e30f) == NET_OK);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} checks[] = {
    {"init_rejects", init_rejects},
    {"handles_are_checked", handles_are_checked},
    {"labels_are_checked", labels_are_checked},
    {"inference_changes_no_state", inference_changes_no_state},
    {"learning_rate_is_state", learning_rate_is_state},
    {"checkpoints_resume", checkpoints_resume},
    {"damage_is_found", damage_is_found},
    {"failing_writes_change_nothing", failing_writes_change_nothing},
    {"checkpoints_have_the_size_that_is_said", checkpoints_have_the_size_that_is_said},
    {"other_builds_are_read", other_builds_are_read},
    {"instances_are_independent", instances_are_independent},
    {"models_are_independent", models_are_independent},
    {"accumulation", accumulation},
    {"not_a_number_is_reported", not_a_number_is_reported},
    {"not_a_number_is_not_summed", not_a_number_is_not_summed},
    {"learning_rates_are_checked", learning_rates_are_checked},
};

int main(int count, char **arguments)
{
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; ++i) {
        if (count == 2 && strcmp(arguments[1], checks[i].name) == 0) {
            return checks[i].run();
        }
        if (count == 1) {
            printf("%s\n", checks[i].name);
        }
    }
    return count == 1 ? 0 : 3;
}
