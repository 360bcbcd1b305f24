/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Trains some updates in the largest plan, then as many in the smallest, with a checkpoint between; and all of them in the
 * largest. Writes both states. With --slices on the moving run trains in slices. `m` stands for the model's name. */
#include "m_train.h"
#include "port.h"

#include <string.h>

enum { UPDATES = 3, GUARD = 4096 };

static struct {
    unsigned char low[GUARD], arena[M_ARENA_BYTES], high[GUARD];
} memory PORT_ARENA_SECTION;
static unsigned char saved[M_CHECKPOINT_BYTES];
static size_t position;
static m_input_t samples[2 * UPDATES];
static m_label_t labels[2 * UPDATES];

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

static void train(m_t *m, int first)
{
    for (int i = first; i < first + UPDATES; i++) {
        float loss;
        *m_input(m) = samples[i];
        need(m_train_step(m, &labels[i], &loss) == M_OK, 3);
    }
}

#ifdef M_STEP_CYCLES
static void train_in_slices(m_t *m, int first)
{
    for (int i = first; i < first + UPDATES; i++) {
        float loss;
        int done = 0, slices = 0;
        *m_input(m) = samples[i];
        for (need(m_step_begin(m) == M_OK, 3); done == 0; slices++) {
            need(m_train_step(m, &labels[i], &loss) == M_ERR_STATE && m_input(m) == NULL, 11);
            need(m_step_slice(m, &labels[i], M_STEP_CYCLES / 10u, &loss, &done) == M_OK, 3);
        }
        need(slices >= 5, 12);
    }
}
#else
#define train_in_slices train
#endif

static void save(m_t *m)
{
    position = 0;
    need(m_save(m, keep, NULL) == M_OK && position == sizeof saved, 4);
}

int main(void)
{
    const int32_t input = port_open_input("input.bin"), output = port_open_output("output.bin");
    unsigned char *const arena = memory.arena;
    m_t *m;
    need(input >= 0 && output >= 0, 2);
    for (int i = 0; i < 2 * UPDATES; i++) {
        need(port_read(input, &samples[i], sizeof samples[i]) == 0, 2);
        need(port_read(input, &labels[i], sizeof labels[i]) == 0, 2);
    }
    need(m_init(&m, arena, M_PLAN_0_BYTES - 1u) == M_ERR_SIZE, 5);
    need(m_init(&m, arena, M_ARENA_BYTES) == M_OK && m_plan(m) == M_PLANS - 1u, 6);
    train_in_slices(m, 0);
    save(m);
    memset(arena, 0x5a, sizeof memory.arena);
    need(m_init(&m, arena, M_PLAN_1_BYTES - 1u) == M_OK && m_plan(m) == 0u, 7);
    position = 0;
    need(m_load(m, give, NULL) == M_OK, 8);
    for (size_t i = M_PLAN_0_BYTES; i < sizeof memory.arena; i++) {
        need(arena[i] == 0x5a, 9); /* the smaller plan leaves alone what it does not have */
    }
    train_in_slices(m, UPDATES);
    save(m);
    need(port_write(output, saved, sizeof saved) == 0, 2);
    need(m_init(&m, arena, sizeof memory.arena) == M_OK, 6);
    train(m, 0);
    train(m, UPDATES);
    save(m);
    need(port_write(output, saved, sizeof saved) == 0, 2);
    need(m_plan(NULL) == M_PLANS && m_infer(NULL, NULL) == M_ERR_STATE && m_input(NULL) == NULL, 10);
    port_close(output);
    port_close(input);
    return 0;
}
