/* A loop around the step with the parts of --runtime, on the samples of input.bin; writes what each of them decided.
 *
 * input.bin: samples of NET_INPUT_ELEMENTS floats and a label. output.bin: for every step whether it is an old sample,
 * its label and first value, and the loss; then the reservoir.
 */
#include "net_replay.h"
#include "net_train.h"
#include "port.h"

#include <string.h>

enum {
    GUARD = @GUARD@,
    SAMPLES = @SAMPLES@,
    STEPS = @STEPS@,
    ROOM = 5,
};

typedef struct {
    float x[NET_INPUT_ELEMENTS];
    net_label_t label;
} sample_t;

static struct {
    unsigned char low[GUARD];
    _Alignas(NET_ALIGNMENT) unsigned char bytes[NET_ARENA_BYTES];
    unsigned char high[GUARD];
} arena PORT_ARENA_SECTION;

static sample_t samples[SAMPLES], stored[ROOM];
static _Alignas(NET_REPLAY_ALIGNMENT) unsigned char room[ROOM * NET_REPLAY_RECORD_BYTES];
static int32_t output;

static void put(const void *data, size_t size)
{
    if (port_write(output, data, size) != 0) {
        port_exit(4);
    }
}

static int write_slot(void *ctx, uint32_t slot, const void *x, const net_replay_label_t *label)
{
    sample_t *store = ctx;
    memcpy(store[slot].x, x, NET_REPLAY_X_BYTES);
    store[slot].label = *label;
    return 0;
}

static int read_slot(void *ctx, uint32_t slot, void *x, net_replay_label_t *label)
{
    const sample_t *store = ctx;
    memcpy(x, store[slot].x, NET_REPLAY_X_BYTES);
    *label = store[slot].label;
    return 0;
}

/* The next sample into the slot: a new one, which is offered to both reservoirs, or an old one of either. */
static net_label_t next_sample(net_t *m, net_replay_t *ram, net_replay_t *store, uint32_t *taken)
{
    net_input_t *slot = net_input(m);
    net_label_t label = 0, other = 0;
    net_input_t same;
    const bool old = net_replay_due(ram);
    if (old != net_replay_due(store)) {
        port_exit(5);
    }
    if (old) {
        if (net_replay_draw(ram, slot->values, &label) != NET_OK || net_replay_draw(store, same.values, &other) != NET_OK ||
            label != other || memcmp(slot, &same, sizeof same) != 0) {
            port_exit(6);
        }
    } else {
        const sample_t *sample = &samples[(*taken)++ % SAMPLES];
        memcpy(slot, sample->x, sizeof *slot);
        label = sample->label;
        if (net_replay_add(ram, slot->values, &label) != NET_OK || net_replay_add(store, slot->values, &label) != NET_OK) {
            port_exit(7);
        }
    }
    const int32_t said[2] = {old ? 1 : 0, label};
    put(said, sizeof said);
    put(&slot->values[0], sizeof slot->values[0]);
    return label;
}

int main(void)
{
    const int32_t input = port_open_input("input.bin");
    output = port_open_output("output.bin");
    net_t *m = NULL;
    net_replay_t ram, store;
    uint32_t taken = 0;
    if (port_read(input, samples, sizeof samples) != 0 || net_init(&m, arena.bytes, sizeof arena.bytes) != NET_OK ||
        net_replay_init(&ram, room, sizeof room, 7u) != NET_OK || net_replay_mix(&ram, 3u, 2u) != NET_OK ||
        net_replay_init_store(&store, ROOM, write_slot, read_slot, stored, 7u) != NET_OK ||
        net_replay_mix(&store, 3u, 2u) != NET_OK) {
        port_exit(3);
    }
    for (uint32_t step = 0; step < STEPS; ++step) {
        const net_label_t label = next_sample(m, &ram, &store, &taken);
        float loss = 0.0f;
        if (net_train_step(m, &label, &loss) != NET_OK) {
            port_exit(8);
        }
        put(&loss, sizeof loss);
    }
    put(room, sizeof room);
    port_close(output);
    return 0;
}
