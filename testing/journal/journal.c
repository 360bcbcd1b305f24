/* Makes the updates of input.bin (a byte: is there a key? the key; for each update the rate and the samples with their
 * labels), and writes the record of each to output.bin, and then the checkpoint. */
#include "m_journal.h"
#include "m_train.h"
#include "port.h"

#include <string.h>

enum { GUARD = @GUARD@, UPDATES = @UPDATES@ };

static struct {
    unsigned char low[GUARD], arena[M_ARENA_BYTES], high[GUARD];
} memory PORT_ARENA_SECTION;

static uint8_t key[M_JOURNAL_KEY_BYTES];
static m_journal_t journal;
static int32_t input, output;

static void must(int good, int code)
{
    if (!good) {
        port_exit(code);
    }
}

static int put(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    return port_write(output, data, size);
}

static void get(void *data, size_t size)
{
    must(port_read(input, data, size) == 0, 2);
}

int main(void)
{
    static m_label_t label;
    m_t *m = NULL;
    float rate, loss;
    unsigned char is_keyed;
    input = port_open_input("input.bin");
    output = port_open_output("output.bin");
    get(&is_keyed, sizeof is_keyed);
    get(key, sizeof key);
    must(m_init(&m, memory.arena, sizeof memory.arena) == M_OK, 3);
    must(m_journal_init(&journal, is_keyed ? key : NULL) == M_OK, 4);
    for (uint32_t update = 0; update < UPDATES; ++update) {
        get(&rate, sizeof rate);
        must(m_set_lr(m, rate) == M_OK, 5);
#if M_HAS_ACCUMULATE
        for (uint32_t i = 0; i < M_BATCH / M_MICRO_BATCH; ++i) {
            get(m_input(m)->values, sizeof *m_input(m));
            get(&label, sizeof label);
            must(m_journal_accumulate(&journal, m, &label, &loss) == M_OK, 6);
        }
        must(m_journal_apply(&journal, m) == M_OK, 7);
#else
        get(m_input(m)->values, sizeof *m_input(m));
        get(&label, sizeof label);
        must(m_journal_train_step(&journal, m, &label, &loss) == M_OK, 8);
#endif
        must(m_journal_number(m) == update + 1u, 9);
        must(port_write(output, journal.record, sizeof journal.record) == 0, 10);
    }
    must(m_save(m, put, NULL) == M_OK, 11);
    port_close(output);
    return 0;
}
