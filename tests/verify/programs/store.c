/* Trains on the samples of input.bin, from the state in a store if there is one, and saves in it. If there is one, the
 * checkpoint and the delta beside it must be accepted, and both must come back as they were from the checkpoint.
 *
 * input.bin: the medium of the store, a checkpoint and a delta, zeros if they are new; then samples of M_INPUT_ELEMENTS
 * floats and a label each. output.bin: the loss of every step, then the medium, a checkpoint and a delta.
 */
#include "m_delta.h"
#include "m_store.h"
#include "m_train.h"
#include "port.h"

#include <string.h>

enum { GUARD = @GUARD@, SAMPLES = @SAMPLES@, SLOT = M_STORE_SLOT_BYTES(1) + 1024 };

static struct {
    unsigned char low[GUARD];
    _Alignas(M_ALIGNMENT) unsigned char bytes[M_ARENA_BYTES];
    unsigned char high[GUARD];
} arena PORT_ARENA_SECTION;
static unsigned char bytes[2 * SLOT];
static m_slot_store_t store;
static unsigned char given[M_CHECKPOINT_BYTES + M_DELTA_BYTES], kept[sizeof given];
static size_t at;

static int read_bytes(void *ctx, uint32_t offset, void *data, size_t size)
{
    memcpy(data, (const unsigned char *)ctx + offset, size);
    return 0;
}

static int write_bytes(void *ctx, uint32_t offset, const void *data, size_t size)
{
    memcpy((unsigned char *)ctx + offset, data, size);
    return 0;
}

static int take(void *ctx, void *data, size_t size)
{
    (void)ctx;
    memcpy(data, given + at, size);
    at += size;
    return 0;
}

static int put(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    memcpy(kept + at, data, size);
    at += size;
    return 0;
}

/* The checkpoint and the delta of a model. */
static int keep(m_t *m)
{
    at = 0;
    return m_save(m, put, NULL) == M_OK && m_delta_get(m, kept + M_CHECKPOINT_BYTES) == M_OK;
}

static void want(int right, int code)
{
    if (!right) {
        port_exit(code);
    }
}

int main(void)
{
    const m_medium_t medium = {read_bytes, write_bytes, NULL, bytes, 2, SLOT, 1, 1, 0};
    const int32_t input = port_open_input("input.bin"), output = port_open_output("output.bin");
    m_t *m;
    m_label_t label;
    float loss;
    want(input >= 0 && output >= 0 && port_read(input, bytes, sizeof bytes) == 0, 1);
    want(m_init(&m, arena.bytes, sizeof arena.bytes) == M_OK && m_store_open(&store, &medium) == M_OK, 2);
    want(port_read(input, given, sizeof given) == 0, 8);
    const m_status read = m_load(m, take, NULL);
    want(read != M_OK || (keep(m) && memcmp(kept, given, sizeof kept) == 0), 9);
    want(m_delta_apply(m, given + M_CHECKPOINT_BYTES, M_DELTA_BYTES) == read, 10);
    const m_status found = m_store_load(&store, m);
    want(found == read, 11);
    want(found == M_OK || found == M_ERR_FORMAT, 3); /* ERR_FORMAT: nothing was ever saved */
    for (int i = 0; i < SAMPLES; ++i) {
        want(port_read(input, m_input(m), M_INPUT_ELEMENTS * sizeof(float)) == 0, 4);
        want(port_read(input, &label, sizeof label) == 0 && m_train_step(m, &label, &loss) == M_OK, 5);
        want(port_write(output, &loss, sizeof loss) == 0, 6);
    }
    want(m_store_save(&store, m) == M_OK && port_write(output, bytes, sizeof bytes) == 0, 7);
    want(keep(m) && port_write(output, kept, sizeof kept) == 0, 12);
    port_close(input);
    port_close(output);
    return 0;
}
