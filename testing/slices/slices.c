/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Trains on one sample, as a whole and in slices, and writes the checkpoint behind each; a plugin counts the calls.
 * `m` stands for the model's name. Of a project without slices, the steps as a whole alone. */
#include "m_train.h"
#include "port.h"

enum { GUARD = 4096, STEPS = 2 };

static struct {
    unsigned char low[GUARD], arena[M_ARENA_BYTES], high[GUARD];
} memory PORT_ARENA_SECTION;

static m_input_t sample;
static m_label_t label;
static int32_t output;

static int put(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    return port_write(output, data, size);
}

static void need(m_status status)
{
    if (status != M_OK) {
        port_exit(2);
    }
}

#ifdef M_STEP_CYCLES
enum { WAYS = 3 };
static const uint32_t budgets[WAYS] = {0, M_STEP_CYCLES / 50u, UINT32_MAX};

static void step_in_slices(m_t *m, uint32_t budget, float *loss)
{
    int done = 0;
    need(m_step_begin(m));
    while (done == 0) {
        need(m_step_slice(m, &label, budget, loss, &done));
    }
}
#else
enum { WAYS = 0 };
#endif

int main(void)
{
    const int32_t input = port_open_input("input.bin");
    output = port_open_output("output.bin");
    if (input < 0 || output < 0 || port_read(input, &sample, sizeof sample) != 0 ||
        port_read(input, &label, sizeof label) != 0) {
        return 1;
    }
    for (int way = -1; way < WAYS; way++) {
        m_t *m;
        float loss;
        need(m_init(&m, memory.arena, sizeof memory.arena));
        for (int step = 0; step < STEPS; step++) {
            *m_input(m) = sample;
#ifdef M_STEP_CYCLES
            if (way >= 0) {
                step_in_slices(m, budgets[way], &loss);
                continue;
            }
#endif
            need(m_train_step(m, &label, &loss));
        }
        need(m_save(m, put, NULL));
    }
    port_close(output);
    return 0;
}
