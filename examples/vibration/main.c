/* Firmware that watches a machine: an autoencoder repeats spectra of its vibration, and what it repeats badly alarms.
 *
 * Plain C on the generated API, vibration_train.h and vibration_monitor.h. Three files play the sensor: own.bin, windows
 * of this machine while it is sound; test.bin, other windows by which all is judged, each with a byte that is 1 for a
 * fault; factory.bin, the threshold of the factory. port.h reads the files, through semihosting on the board.
 */
#include "vibration_monitor.h"
#include "vibration_train.h"

#include "../firmware.h"

#ifndef VIBRATION_EPOCHS
#define VIBRATION_EPOCHS 20 /* what --epochs, or finetune, says where it is asked */
#endif

enum {
    STEPS = 8,     /* bands are stored in eighths of a standard deviation */
    OWN = 300,     /* sound windows that the device collects */
    TRAINED = 200, /* of them those that it trains on; the others say the threshold behind it */
    PER_MILLE = 990,
    SIGMAS = 3,
    BANDS = VIBRATION_INPUT_ELEMENTS,
};

static GUARDED(VIBRATION_ARENA_BYTES) memory PORT_ARENA_SECTION; /* all RAM of the model */
static signed char own[OWN][BANDS]; /* in the device's flash, in a product */
static float errors[OWN];

static void check(vibration_status status, const char *what)
{
    if (status != VIBRATION_OK) {
        port_print(what);
        port_print(" failed\n");
        port_exit(1);
    }
}

/* A band as it is, in standard deviations. */
static float real(signed char stored)
{
    return (float)stored / (float)STEPS;
}

static void put(vibration_t *model, const signed char *window)
{
    vibration_input_t *const input = vibration_input(model);
    for (size_t i = 0; i < BANDS; i++) {
#if VIBRATION_INPUT_IS_FLOAT
        input->values[i] = real(window[i]);
#else
        input->values[i] = vibration_quantise_input(real(window[i]));
#endif
    }
}

/* How badly a window is repeated: the mean square of the differences. */
static float error_of(vibration_t *model, const signed char *window)
{
    vibration_output_t again;
    put(model, window);
    check(vibration_infer(model, &again), "inference");
    float sum = 0.0f;
    for (size_t i = 0; i < BANDS; i++) {
        const float off = again.values[i] - real(window[i]);
        sum += off * off;
    }
    return sum / (float)BANDS;
}

/* False alarms and faults found, each of its own kind of window. */
static void judge(vibration_t *model, const char *name, float threshold)
{
    const int32_t file = open_samples("test.bin");
    uint32_t windows[2] = {0, 0}, alarms[2] = {0, 0};
    signed char record[BANDS + 1];
    while (port_read(file, record, sizeof record) == 0) {
        const bool fault = record[BANDS] != 0;
        windows[fault]++;
        alarms[fault] += error_of(model, record) > threshold;
    }
    port_close(file);
    port_print(name);
    port_print("   threshold ");
    print_number((uint32_t)(1000.0f * threshold + 0.5f), false, 6);
    port_print("   false alarms ");
    print_number(thousandths_of(alarms[0], windows[0]), true, 5);
    port_print("   faults found ");
    print_number(thousandths_of(alarms[1], windows[1]), true, 5);
    port_print("\n");
}

/* The threshold of the factory, which fits the machines that the factory had. */
static float factory(void)
{
    float threshold;
    const int32_t file = open_samples("factory.bin");
    check(port_read(file, &threshold, sizeof threshold) == 0 ? VIBRATION_OK : VIBRATION_ERR_IO, "reading");
    port_close(file);
    return threshold;
}

/* Of the device's own windows from one on: the value that 99 % of their errors do not exceed. */
static float own_percentile(vibration_t *model, size_t first)
{
    float threshold;
    for (size_t i = first; i < OWN; i++) {
        errors[i] = error_of(model, own[i]);
    }
    check(vibration_percentile(errors + first, OWN - first, PER_MILLE, &threshold), "percentile");
    return threshold;
}

/* Mean + 3 sigma of the errors of all own windows, for which none of them has to be kept. */
static float own_spread(vibration_t *model)
{
    vibration_spread_t spread = {0, 0.0f, 0.0f};
    for (size_t i = 0; i < OWN; i++) {
        check(vibration_spread_add(&spread, error_of(model, own[i])), "spread");
    }
    return vibration_spread_threshold(&spread, (float)SIGMAS);
}

static void train(vibration_t *model)
{
    for (uint32_t step = 0; step < VIBRATION_EPOCHS * TRAINED; step++) {
        vibration_label_t same;
        float loss;
        const signed char *const window = own[step % TRAINED];
        put(model, window);
        for (size_t i = 0; i < BANDS; i++) {
            same.values[i] = real(window[i]);
        }
        check(vibration_train_step(model, &same, &loss), "training");
    }
}

int main(void)
{
    vibration_t *model;
    set_guards(memory.below, memory.above);
    check(vibration_init(&model, memory.arena, sizeof memory.arena), "init");
    int32_t file = open_samples("own.bin");
    check(port_read(file, own, sizeof own) == 0 ? VIBRATION_OK : VIBRATION_ERR_IO, "reading");
    port_close(file);

    judge(model, "factory     ", factory());
    judge(model, "percentile  ", own_percentile(model, 0));
    judge(model, "mean+3 sigma", own_spread(model));
    train(model);
    judge(model, "retrained   ", own_percentile(model, TRAINED));

    file = port_open_output("trained.bin");
    check(file < 0 ? VIBRATION_ERR_IO : vibration_save(model, write_file, &file), "saving");
    port_close(file);
    return judge_guards(memory.below, memory.above);
}
