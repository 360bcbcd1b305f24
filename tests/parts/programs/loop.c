/* A loop around the step with the parts of --runtime, on the samples of input.bin; writes what each of them decided.
 *
 * input.bin: samples of NET_INPUT_ELEMENTS floats and a label. output.bin: a record_t for every step; then the reservoir,
 * percentiles of the losses, and the checkpoint of the best state, which the model has again.
 */
#include "net_monitor.h"
#include "net_replay.h"
#include "net_schedule.h"
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

/* What was decided in a step. */
typedef struct {
    int32_t old;
    int32_t label;
    float first; /* value of the sample */
    float loss;
    float rates[3];
    float mean;
    int32_t verdict;
    int32_t voted;
    float threshold;
    int32_t health;
    float trust;
} record_t;

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
    if (x != NULL) {
        memcpy(x, store[slot].x, NET_REPLAY_X_BYTES);
    }
    *label = store[slot].label;
    return 0;
}

/* The next sample into the slot: a new one, which is offered to both reservoirs, or an old one of either. */
static net_label_t next_sample(net_t *m, net_replay_t *ram, net_replay_t *store, uint32_t *taken, record_t *said)
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
    said->old = old ? 1 : 0;
    said->label = label;
    said->first = slot->values[0];
    return label;
}

static const net_schedule_t schedules[3] = {
    {NET_RATE_CONSTANT, 7u, 0.05f, 0u, 0.0f, 0.0f},
    {NET_RATE_STEP, 0u, 0.0625f, 9u, 0.7f, 0.0f},
    {NET_RATE_COSINE, 10u, 0.06f, 75u, 0.0f, 0.01f},
};

static unsigned char best[NET_CHECKPOINT_BYTES];
static float losses[STEPS];
static int32_t votes[7];

static void watch(net_t *m, record_t *said, uint32_t step)
{
    static net_running_t running = {20u, 0u, 0.0f};
    static net_stop_t stop = {false, 0.01f, 6u, 0.0f, 0u, 0u, false};
    static net_ram_t ram = {best, 0u};
    static net_spread_t spread;
    static net_vote_t vote = {votes, 7u, 0u, 0u};
    static net_watch_t health = {.scale = 1.5f};
    const net_store_t store = net_ram_store(&ram);
    net_verdict verdict = NET_NO_VALUE;
    losses[step] = said->loss;
    if (step < 20u && net_watch_untrained(&health, said->loss) != NET_OK) {
        port_exit(11);
    }
    said->health = (int32_t)net_watch_add(&health, step < 60u ? said->loss : 6.0f * said->loss);
    said->trust = health.slow.mean;
    if (net_running_add(&running, said->loss) != NET_OK || net_spread_add(&spread, said->loss) != NET_OK ||
        net_stop_keep(&stop, m, running.mean, &store, &verdict) != NET_OK ||
        net_vote_add(&vote, said->label, &said->voted) != NET_OK) {
        port_exit(9);
    }
    said->mean = running.mean;
    said->verdict = (int32_t)verdict;
    said->threshold = net_spread_threshold(&spread, 2.5f);
    if (step + 1u == STEPS && net_stop_restore(&stop, m, &store) != NET_OK) {
        port_exit(10);
    }
}

static void say_ends(net_t *m)
{
    static const uint32_t shares[6] = {0u, 1u, 500u, 501u, 990u, 1000u};
    float value = 0.0f;
    put(room, sizeof room);
    for (size_t i = 0; i < 6u; ++i) {
        if (net_percentile(losses, STEPS - 1u, shares[i], &value) != NET_OK) {
            port_exit(11);
        }
        put(&value, sizeof value);
    }
    static unsigned char again[NET_CHECKPOINT_BYTES];
    net_ram_t ram = {again, 0u};
    const net_store_t store = net_ram_store(&ram);
    if (net_save(m, store.write, store.ctx) != NET_OK || memcmp(again, best, sizeof best) != 0) {
        port_exit(12); /* it is not the best state */
    }
    put(best, sizeof best);
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
        record_t said = {0};
        const net_label_t label = next_sample(m, &ram, &store, &taken, &said);
        if (net_schedule_set(m, &schedules[2], step) != NET_OK || net_train_step(m, &label, &said.loss) != NET_OK) {
            port_exit(8);
        }
        for (size_t i = 0; i < 3u; ++i) {
            said.rates[i] = net_schedule_rate(&schedules[i], step);
        }
        watch(m, &said, step);
        put(&said, sizeof said);
    }
    say_ends(m);
    port_close(output);
    return 0;
}
