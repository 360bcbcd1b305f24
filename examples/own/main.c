/* Firmware that trains a model of your own on samples of your own, whatever they are.
 *
 * run.py puts your model's name in place of `own`, and plays the sensor by files: train.bin holds what each training call
 * takes, the bytes of the input slot and behind them those of its labels; test.bin holds inputs alone. On a product of
 * your own, give_input() asks your sensor instead. With --runtime replay=N, old.bin holds samples that the network knew
 * before, as train.bin does, and one of them follows every new one. What was learned goes to trained.bin, and what the
 * model then makes of test.bin to outputs.bin. BATCH is the --batch of the compilation.
 */
#include "own_train.h"

#include "firmware.h"

#ifdef __has_include /* --runtime schedule, which finetune asks for: the learning rate falls to 0 until the end */
#if __has_include("own_schedule.h")
#include "own_schedule.h"
#endif
#endif

#if defined(__has_include) && OWN_MICRO_BATCH == 1 && !defined(OWN_INPUT_ROWS) && !defined(OWN_FEATURE_BYTES)
#if __has_include("own_replay.h")
#include "own_replay.h"
#endif
#endif

#ifndef OWN_EPOCHS
#define OWN_EPOCHS 10 /* what finetune, or --epochs, says where it is asked */
#endif

#ifndef OWN_WARM_UP
#define OWN_WARM_UP 0u /* updates in which the rate grows first: --warm-up */
#endif

#define CALLS_OF_AN_UPDATE (BATCH / OWN_MICRO_BATCH)

/* All RAM that the model has. */
static GUARDED(OWN_ARENA_BYTES) memory PORT_ARENA_SECTION;
#if OWN_MEMORIES > 1 /* the plan is of two memories (--memory) */
static GUARDED(OWN_MEMORY_1_BYTES) further PORT_FURTHER_SECTION;
#endif

static void check(own_status status, const char *what)
{
    if (status != OWN_OK) {
        port_print(what);
        port_print(status == OWN_ERR_NAN ? " failed: the loss is no number\n" : " failed\n");
        port_exit(1);
    }
}

static own_t *start(void)
{
    own_t *model;
#if OWN_MEMORIES > 1
    void *const memories[OWN_MEMORIES] = {memory.arena, further.arena};
    const size_t sizes[OWN_MEMORIES] = {sizeof memory.arena, sizeof further.arena};
    check(own_init_memories(&model, memories, sizes), "init");
#else
    check(own_init(&model, memory.arena, sizeof memory.arena), "init");
#endif
    return model;
}

#ifdef OWN_INPUT_ROWS /* --input-lines: images come row by row */
static bool give_input(own_t *model, int32_t file, bool training)
{
    own_row_t row;
    for (size_t i = 0; i < OWN_INPUT_ROWS; i++) {
        if (port_read(file, &row, sizeof row) != 0) {
            return false; /* nothing has begun that would have to end */
        }
        if (i == 0) {
            check(own_begin(model, training ? OWN_TRAIN : OWN_INFER), "the beginning of an image");
        }
        check(own_push_rows(model, &row, 1), "a row");
    }
    return true;
}
#define OWN_INFER_CALL own_infer_end
#define OWN_TRAIN_CALL own_train_end
#define OWN_ACCUMULATE_CALL own_accumulate_end
#else
/* Puts the samples of a call that trains, or one sample to infer, into the model's input; false when there are none. */
static bool give_input(own_t *model, int32_t file, bool training)
{
    const size_t size = training ? sizeof(own_input_t) : sizeof(own_input_t) / OWN_MICRO_BATCH;
    return port_read(file, own_input(model), size) == 0;
}
#define OWN_INFER_CALL own_infer
#define OWN_TRAIN_CALL own_train_step
#define OWN_ACCUMULATE_CALL own_accumulate
#endif

/* The learning rate of the next update. */
static void set_rate(own_t *model, uint32_t update, uint32_t updates)
{
#ifdef OWN_SCHEDULE_H
    _Static_assert(OWN_WARM_UP < OWN_EPOCHS * UPDATES, "fewer updates than --warm-up: give less, or more --epochs");
    const own_schedule_t falling = {
        .kind = OWN_RATE_COSINE, .warm_up = OWN_WARM_UP, .rate = OWN_LR, .every = updates - OWN_WARM_UP};
    check(own_schedule_set(model, &falling, update), "setting the rate");
#else
    (void)model, (void)update, (void)updates; /* it stays what --lr says */
#endif
}

#ifdef OWN_REPLAY_SAMPLES /* --runtime replay=N: old samples between the new ones, so that less is forgotten */
static _Alignas(OWN_REPLAY_ALIGNMENT) unsigned char past[OWN_REPLAY_BYTES];
static own_replay_t replay;

/* What the factory leaves in the device: samples that the network knows. */
static void fill_replay(own_t *model)
{
    static own_label_t label;
    const int32_t file = open_samples("old.bin");
    check(own_replay_init(&replay, past, sizeof past, 1), "replay");
    while (give_input(model, file, true) && port_read(file, &label, sizeof label) == 0) {
        check(own_replay_add(&replay, own_input(model), (const own_replay_label_t *)&label), "keeping a sample");
    }
    port_close(file);
}

/* Puts an old sample into the model's input where one is due. */
static bool give_old(own_t *model, own_label_t *label)
{
    if (!own_replay_due(&replay)) {
        return false;
    }
    check(own_replay_draw(&replay, own_input(model), (own_replay_label_t *)label), "replay");
    return true;
}
#else
static void fill_replay(own_t *model)
{
    (void)model;
}

static bool give_old(own_t *model, own_label_t *label)
{
    (void)model, (void)label;
    return false;
}
#endif

/* The next sample to train on, or those of a call, with its label; false when there are too few. */
static bool give_sample(own_t *model, int32_t file, own_label_t *label)
{
    return give_old(model, label) || (give_input(model, file, true) && port_read(file, label, sizeof *label) == 0);
}

/* One update on the next samples: the mean of its calls' losses, or false when there are too few. */
static bool train(own_t *model, int32_t file, float *mean)
{
    static own_label_t label;
    *mean = 0.0f;
    for (uint32_t call = 0; call < CALLS_OF_AN_UPDATE; call++) {
        float loss;
        if (!give_sample(model, file, &label)) {
            return false;
        }
#if OWN_HAS_ACCUMULATE
        check(OWN_ACCUMULATE_CALL(model, &label, &loss), "training");
#else
        check(OWN_TRAIN_CALL(model, &label, &loss), "training");
#endif
        *mean += loss / (float)CALLS_OF_AN_UPDATE;
    }
#if OWN_HAS_ACCUMULATE
    check(own_apply(model), "the update");
#endif
    return true;
}

static void print_loss(uint32_t epoch, float loss)
{
    const float size = loss < 0.0f ? -loss : loss;
    char digits[11] = "          ";
    size_t at = sizeof digits - 1;
    do {
        digits[--at] = (char)('0' + epoch % 10);
        epoch /= 10;
    } while (epoch != 0);
    port_print("epoch ");
    port_print(digits + (at < 8 ? at : 8)); /* in a width of 2 */
    port_print(loss < 0.0f ? "   loss -" : "   loss ");
    print_number(size < 4e6f ? (uint32_t)(1000.0f * size + 0.5f) : UINT32_MAX, false, 0);
    port_print("\n");
}

/* What the model makes of each sample of test.bin. */
static void infer_all(own_t *model)
{
    static own_output_t outputs;
    const int32_t from = open_samples("test.bin"), to = port_open_output("outputs.bin");
    while (give_input(model, from, false)) {
        check(OWN_INFER_CALL(model, &outputs), "inference");
        check(port_write(to, &outputs, sizeof outputs) == 0 ? OWN_OK : OWN_ERR_IO, "writing outputs");
    }
    port_close(from);
    port_close(to);
}

static void save(own_t *model)
{
    int32_t file = port_open_output("trained.bin");
    check(file < 0 ? OWN_ERR_IO : own_save(model, write_file, &file), "saving");
    port_close(file);
}

int main(void)
{
    set_guards(memory.below, memory.above);
#if OWN_MEMORIES > 1
    set_guards(further.below, further.above);
#endif
    own_t *const model = start();
    fill_replay(model);
    for (uint32_t epoch = 1, update = 0; epoch <= OWN_EPOCHS; epoch++) {
        const int32_t file = open_samples("train.bin");
        float loss, sum = 0.0f;
        for (uint32_t i = 0; i < UPDATES; i++, update++) {
            set_rate(model, update, OWN_EPOCHS * UPDATES);
            if (!train(model, file, &loss)) {
                check(OWN_ERR_IO, "reading train.bin");
            }
            sum += loss;
        }
        port_close(file);
        print_loss(epoch, sum / (float)UPDATES);
    }
    infer_all(model);
    save(model);
#if OWN_MEMORIES > 1
    const int damaged = judge_guards(further.below, further.above);
    if (damaged != 0) {
        return damaged;
    }
#endif
    return judge_guards(memory.below, memory.above);
}
