/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Trains some batches in the largest plan, then as many in the smallest, with a checkpoint between; and all of them in each
 * plan alone. Writes the three states. Plans take different numbers of samples in a call: train() does not know how many.
 * With --slices on the run that moves trains in slices. `m` stands for the model's name. C and C++ alike. */
#include "m_train.h"
#include "port.h"

#include <string.h>

enum { BATCHES = 2, ALL = 2 * BATCHES * M_BATCH, GUARD = 4096 };

static struct {
    unsigned char low[GUARD], arena[M_ARENA_BYTES], high[GUARD];
} memory PORT_ARENA_SECTION;
static unsigned char saved[M_CHECKPOINT_BYTES];
static size_t position;
static m_input_t samples[ALL];
static m_label_t labels[ALL];
static m_output_t outputs[M_MICRO_BATCH + 1];

static void need(int holds, int code)
{
    if (!holds) {
        port_exit(code);
    }
}

static int keep(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    memcpy(saved + position, data, size);
    position += size;
    return 0;
}

static int give(void *ctx, void *data, size_t size)
{
    (void)ctx;
    memcpy(data, saved + position, size);
    position += size;
    return 0;
}

#ifdef M_STEP_CYCLES
static m_status in_slices(m_t *m, const m_label_t *label, uint32_t n, float *loss)
{
    int done = 0;
    m_status status = m_step_begin(m);
    need(status != M_OK || m_step_slice(m, label, n + 1u, 0u, loss, &done) == M_ERR_ARGUMENT, 14);
    while (status == M_OK && done == 0) {
        status = m_step_slice(m, label, n, M_STEP_CYCLES / 10u, loss, &done);
    }
    return status;
}
#else
#define in_slices m_accumulate
#endif

typedef m_status (*step_fn)(m_t *m, const m_label_t *label, uint32_t n, float *loss);

static void train(m_t *m, uint32_t first, step_fn step)
{
    const uint32_t together = m_micro_batch(m);
    float loss;
    for (uint32_t at = first; at < first + (uint32_t)(BATCHES * M_BATCH); at += together) {
        memcpy(m_input(m), &samples[at], together * sizeof samples[at]);
        need(step(m, &labels[at], together, &loss) == M_OK, 3);
        if ((at + together) % M_BATCH == 0) {
            need(m_apply(m) == M_OK, 3);
        }
    }
}

static void save(m_t *m)
{
    position = 0;
    need(m_save(m, keep, NULL) == M_OK && position == sizeof saved, 4);
}

/* The first output of all is that of one, and another number of samples is refused and changes nothing. */
static void check_counts(m_t *m)
{
    const uint32_t together = m_micro_batch(m);
    float loss = -1.0f;
    save(m);
    for (uint32_t n = 0; n <= M_MICRO_BATCH; n++) {
        memcpy(m_input(m), samples, together * sizeof samples[0]);
        if (n != together) {
            need(m_accumulate(m, labels, n, &loss) == M_ERR_ARGUMENT && loss == -1.0f, 11);
            need(m_infer_batch(m, outputs, n) == M_ERR_ARGUMENT, 11);
        }
    }
    need(m_apply(m) == M_ERR_STATE, 11);
    memset(outputs, 0x5a, sizeof outputs);
    need(m_infer_batch(m, outputs, together) == M_OK, 12);
    memset(&outputs[M_MICRO_BATCH], 0xa5, sizeof outputs[0]);
    for (uint32_t k = 0; k < together; k++) {
        memcpy(m_input(m), &samples[k], sizeof samples[k]);
        need(m_infer(m, &outputs[M_MICRO_BATCH]) == M_OK, 12);
        need(memcmp(&outputs[M_MICRO_BATCH], &outputs[k], sizeof outputs[k]) == 0, 13);
    }
}

int main(void)
{
    const int32_t input = port_open_input("input.bin"), output = port_open_output("output.bin");
    unsigned char *const arena = memory.arena;
    const size_t sizes[M_PLANS] = {M_PLAN_0_BYTES, M_PLAN_1_BYTES};
    m_t *m;
    need(input >= 0 && output >= 0, 2);
    for (int i = 0; i < ALL; i++) {
        need(port_read(input, &samples[i], sizeof samples[i]) == 0, 2);
        need(port_read(input, &labels[i], sizeof labels[i]) == 0, 2);
    }
    need(m_init(&m, arena, M_ARENA_BYTES) == M_OK && m_plan(m) == M_PLANS - 1u && m_micro_batch(m) == M_MICRO_BATCH, 6);
    check_counts(m);
    train(m, 0, in_slices);
    save(m);
    memset(arena, 0x5a, sizeof memory.arena);
    need(m_init(&m, arena, M_PLAN_1_BYTES - 1u) == M_OK && m_plan(m) == 0u && m_micro_batch(m) < M_MICRO_BATCH, 7);
    position = 0;
    need(m_load(m, give, NULL) == M_OK, 8);
    for (size_t i = M_PLAN_0_BYTES; i < sizeof memory.arena; i++) {
        need(arena[i] == 0x5a, 9); /* the smaller plan leaves alone what it does not have */
    }
    check_counts(m);
    train(m, BATCHES * M_BATCH, in_slices);
    save(m);
    need(port_write(output, saved, sizeof saved) == 0, 2);
    for (uint32_t plan = 0; plan < M_PLANS; plan++) {
        need(m_init(&m, arena, sizes[plan]) == M_OK && m_plan(m) == plan, 6);
        train(m, 0, m_accumulate);
        train(m, BATCHES * M_BATCH, m_accumulate);
        save(m);
        need(port_write(output, saved, sizeof saved) == 0, 2);
    }
    need(m_micro_batch(NULL) == 0u && m_accumulate(NULL, labels, 1u, NULL) == M_ERR_STATE, 10);
    port_close(output);
    port_close(input);
    return 0;
}
