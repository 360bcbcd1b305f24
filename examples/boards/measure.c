/* SPDX-License-Identifier: Apache-2.0 */
/* Measures digits on a board, in the place of learn.c: cycles and stack of both calls, and the checkpoint's CRC-32, which
 * tells whether the board computed what QEMU and your desk did. docs/measure-your-board.md has the protocol.
 *
 * Results are in `measured`: read it with the debugger, or print it. -DMEASURE_PRINT prints it with printf.
 * MEASURE_ENERGY_S seconds of training follow for a power profiler, if you define it together with MEASURE_CLOCK_HZ.
 */
#include "measure.h"
#include "digits_train.h"
#include "learn.h"
#include "sensor.h"
#include "storage.h"

#if defined(MEASURE_PRINT)
#include <stdio.h>
#endif
#if __has_include("digits_board.h") && !defined(__ZEPHYR__) && !defined(ESP_PLATFORM)
#include "digits_board.h"
#else
#define DIGITS_IN_ARENA
#endif
#if DIGITS_MEMORIES > 1
#error "measure a plan of one memory: compile without --memory"
#endif
#ifndef MEASURE_PIN /* MEASURE_PIN(1) before a timed call, MEASURE_PIN(0) after it: for a scope or a profiler */
#define MEASURE_PIN(on)
#endif

#ifdef DIGITS_STACK_BYTES /* the report's static bound; not known with --verify none */
enum { BOUND = DIGITS_STACK_BYTES, DEPTH = BOUND + 256 };
#else
enum { BOUND = 0, DEPTH = 1024 };
#endif

enum { STEPS = 200 };

typedef struct {
    uint32_t counter;                              /* 1: the core has a cycle counter */
    uint32_t train_first, train_least, train_most; /* cycles of m_train_step; the first one finds caches cold */
    uint32_t infer_first, infer_least, infer_most; /* cycles of m_infer */
    uint32_t train_stack, infer_stack;             /* bytes; at most BOUND */
    uint32_t checkpoint_crc;                       /* of the state after STEPS steps: equal on every machine */
    float first_loss, last_loss;
} measurement;

extern volatile measurement measured;
volatile measurement measured;

DIGITS_IN_ARENA static _Alignas(DIGITS_ALIGNMENT) unsigned char arena[DIGITS_ARENA_BYTES];
static unsigned char saved[DIGITS_CHECKPOINT_BYTES];

/* Fills the input; returns its label. */
static digits_label_t next_sample(digits_t *model, uint32_t *seed)
{
#if DIGITS_INPUT_IS_FLOAT
    return sensor_read(seed, digits_input(model)->values);
#else
    float pixels[SENSOR_PIXELS];
    const digits_label_t label = sensor_read(seed, pixels);
    for (unsigned i = 0; i < SENSOR_PIXELS; i++) {
        digits_input(model)->values[i] = digits_quantise_input(pixels[i]);
    }
    return label;
#endif
}

static void note(uint32_t cycles, int first, volatile uint32_t *at_first, volatile uint32_t *least, volatile uint32_t *most)
{
    if (first) {
        *at_first = *least = *most = cycles;
    }
    *least = cycles < *least ? cycles : *least;
    *most = cycles > *most ? cycles : *most;
}

/* STEPS steps on the same samples everywhere, an inference after each. Only the calls themselves are timed. */
static digits_status time_calls(digits_t *model, uint32_t *seed)
{
    digits_output_t output;
    float loss;
    for (int step = 0; step < STEPS; step++) {
        const digits_label_t label = next_sample(model, seed);
        MEASURE_PIN(1);
        uint32_t before = cycles_now();
        digits_status status = digits_train_step(model, &label, &loss);
        note(cycles_between(before, cycles_now()), step == 0, &measured.train_first, &measured.train_least,
             &measured.train_most);
        MEASURE_PIN(0);
        if (status != DIGITS_OK) {
            return status;
        }
        if (step == 0) {
            measured.first_loss = loss;
        }
        (void)next_sample(model, seed);
        before = cycles_now();
        status = digits_infer(model, &output);
        note(cycles_between(before, cycles_now()), step == 0, &measured.infer_first, &measured.infer_least,
             &measured.infer_most);
        if (status != DIGITS_OK) {
            return status;
        }
    }
    measured.last_loss = loss;
    return DIGITS_OK;
}

/* Runs after the timed steps, because painting would disturb the caches. The state that it leaves is not used. */
static digits_status measure_stacks(digits_t *model, uint32_t *seed)
{
    digits_output_t output;
    digits_status status;
    float loss;
    const digits_label_t label = next_sample(model, seed);
    MEASURE_STACK(measured.train_stack, DEPTH, status = digits_train_step(model, &label, &loss));
    if (status == DIGITS_OK) {
        (void)next_sample(model, seed);
        MEASURE_STACK(measured.infer_stack, DEPTH, status = digits_infer(model, &output));
    }
    return status;
}

#if defined(MEASURE_ENERGY_S)
/* Trains for MEASURE_ENERGY_S seconds without a pause. */
static void train_for_a_profiler(digits_t *model, uint32_t *seed)
{
    uint64_t cycles = 0;
    float loss;
    while (cycles < (uint64_t)(MEASURE_ENERGY_S) * (MEASURE_CLOCK_HZ)) {
        const digits_label_t label = next_sample(model, seed);
        const uint32_t before = cycles_now();
        if (digits_train_step(model, &label, &loss) != DIGITS_OK) {
            return;
        }
        cycles += cycles_between(before, cycles_now());
    }
}
#endif

int learn(void)
{
    digits_t *model;
    uint32_t seed = 1;
    storage place = {saved, sizeof saved, 0};

    measured.counter = (uint32_t)cycles_start();
    if (digits_init(&model, arena, sizeof arena) != DIGITS_OK || time_calls(model, &seed) != DIGITS_OK) {
        return 1;
    }
    if (digits_save(model, storage_write, &place) != DIGITS_OK) {
        return 3;
    }
    for (unsigned i = 0; i < 4u; i++) { /* its last word, little-endian */
        measured.checkpoint_crc |= (uint32_t)saved[sizeof saved - 4u + i] << (8u * i);
    }
    if (measure_stacks(model, &seed) != DIGITS_OK) {
        return 2;
    }
#if defined(MEASURE_ENERGY_S)
    train_for_a_profiler(model, &seed);
#endif
#if defined(MEASURE_PRINT)
    printf("counter %u\ntrain_cycles %u %u %u\ninfer_cycles %u %u %u\nstack %u %u of %u\ncrc 0x%08x\nloss %.6f %.6f\n",
           (unsigned)measured.counter, (unsigned)measured.train_first, (unsigned)measured.train_least,
           (unsigned)measured.train_most, (unsigned)measured.infer_first, (unsigned)measured.infer_least,
           (unsigned)measured.infer_most, (unsigned)measured.train_stack, (unsigned)measured.infer_stack,
           (unsigned)BOUND, (unsigned)measured.checkpoint_crc, (double)measured.first_loss,
           (double)measured.last_loss);
#endif
#if defined(MEASURE_CRC) /* what this program printed elsewhere */
    if (measured.checkpoint_crc != (MEASURE_CRC)) {
        return 5;
    }
#endif
#if defined(__arm__) && defined(DIGITS_STACK_BYTES)
    if (measured.train_stack == 0u || measured.train_stack > BOUND || measured.infer_stack > BOUND) {
        return 6; /* interrupts were on, or the bound is wrong */
    }
#endif
    return 0;
}
