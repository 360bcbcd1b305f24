/* The parts of --runtime alone: what they refuse, and what they leave behind. Run under sanitizers. */
#include "net_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                  \
    do {                                                  \
        if (!(condition)) {                               \
            printf("line %d: %s\n", __LINE__, #condition); \
            return 1;                                     \
        }                                                 \
    } while (0)

enum { ROOM = 4 };

static void fill(float *values, int seed)
{
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
        values[i] = (float)((int)(i * 7u + (size_t)seed * 5u) % 11 - 5) * 0.3f;
    }
}

static _Alignas(NET_REPLAY_ALIGNMENT) unsigned char room[ROOM * NET_REPLAY_RECORD_BYTES];
static int stop_at = -1; /* slot at which the store fails */

static int write_slot(void *ctx, uint32_t slot, const void *x, const net_replay_label_t *label)
{
    float *store = ctx;
    if ((int)slot == stop_at) {
        return 1;
    }
    memcpy(&store[slot], x, sizeof *store);
    return *label < 0;
}

static int read_slot(void *ctx, uint32_t slot, void *x, net_replay_label_t *label)
{
    const float *store = ctx;
    memset(x, 0, NET_REPLAY_X_BYTES);
    memcpy(x, &store[slot], sizeof *store);
    *label = 0;
    return (int)slot == stop_at;
}

static int replay_refuses(void)
{
    net_replay_t r;
    float x[NET_INPUT_ELEMENTS] = {0};
    net_label_t label = 0;
    CHECK(net_replay_init(NULL, room, sizeof room, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_init(&r, NULL, sizeof room, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_init(&r, room, NET_REPLAY_RECORD_BYTES - 1u, 0u) == NET_ERR_SIZE);
    CHECK(net_replay_init(&r, room + 1, sizeof room - 1u, 0u) == NET_ERR_ALIGNMENT);
    CHECK(net_replay_init_store(&r, 0u, write_slot, read_slot, x, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_init_store(&r, 1u, NULL, read_slot, x, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_init_store(&r, 1u, write_slot, NULL, x, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_init(&r, room, sizeof room, 0u) == NET_OK && r.capacity == ROOM);
    CHECK(net_replay_mix(&r, 0u, 1u) == NET_ERR_ARGUMENT && net_replay_mix(&r, 65536u, 1u) == NET_ERR_ARGUMENT);
    CHECK(net_replay_mix(&r, 1u, 65536u) == NET_ERR_ARGUMENT && r.fresh == 1u && r.old == 1u);
    CHECK(net_replay_draw(&r, x, &label) == NET_ERR_STATE && !net_replay_due(&r) && !net_replay_due(NULL));
    CHECK(net_replay_add(&r, NULL, &label) == NET_ERR_ARGUMENT && net_replay_add(&r, x, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_replay_add(NULL, x, &label) == NET_ERR_ARGUMENT && r.held == 0u && r.seen == 0u);
    CHECK(net_replay_add(&r, x, &label) == NET_OK && r.held == 1u);
    CHECK(net_replay_draw(&r, NULL, &label) == NET_ERR_ARGUMENT && net_replay_draw(&r, x, NULL) == NET_ERR_ARGUMENT);
    return 0;
}

/* No byte outside of whole records is touched, and a record is what was given. */
static int replay_keeps_within_its_memory(void)
{
    unsigned char *memory = malloc(2u * NET_REPLAY_RECORD_BYTES + 3u);
    net_replay_t r;
    float x[NET_INPUT_ELEMENTS], found[NET_INPUT_ELEMENTS];
    CHECK(memory != NULL && net_replay_init(&r, memory, 2u * NET_REPLAY_RECORD_BYTES + 3u, 5u) == NET_OK);
    CHECK(r.capacity == 2u);
    for (int i = 0; i < 40; ++i) {
        const net_label_t label = i;
        net_label_t drawn = -1;
        fill(x, i);
        CHECK(net_replay_add(&r, x, &label) == NET_OK && net_replay_draw(&r, found, &drawn) == NET_OK);
        CHECK(drawn >= 0 && drawn <= i);
        fill(x, drawn);
        CHECK(memcmp(x, found, sizeof x) == 0);
    }
    CHECK(r.held == 2u && r.seen == 40u);
    free(memory);
    return 0;
}

/* Evenly: never more old ones than the ratio allows, and in the end as many. */
static int replay_mixes(void)
{
    static const uint32_t ratios[4][2] = {{1u, 1u}, {3u, 2u}, {1u, 4u}, {5u, 0u}};
    const net_label_t label = 1;
    float x[NET_INPUT_ELEMENTS] = {0};
    for (int k = 0; k < 4; ++k) {
        const uint32_t fresh = ratios[k][0], old = ratios[k][1];
        uint32_t olds = 0, news = 0;
        net_replay_t r;
        CHECK(net_replay_init(&r, room, sizeof room, 0u) == NET_OK && net_replay_mix(&r, fresh, old) == NET_OK);
        CHECK(!net_replay_due(&r) && net_replay_add(&r, x, &label) == NET_OK);
        for (uint32_t turn = 0; turn < 60u * (fresh + old); ++turn) {
            olds += net_replay_due(&r) ? 1u : 0u;
            news = turn + 1u - olds;
            CHECK(olds * fresh <= news * old && (news + 1u) * old < (olds + 1u) * fresh + old * (fresh + 1u));
        }
        CHECK(olds == 60u * old && news == 60u * fresh);
    }
    return 0;
}

/* A store that fails changes nothing but the slot; the same sample may be offered again. */
static int replay_survives_its_store(void)
{
    float store[ROOM] = {0}, x[NET_INPUT_ELEMENTS] = {0};
    net_label_t label = 1, wrong = -1;
    net_replay_t r, before;
    CHECK(net_replay_init_store(&r, ROOM, write_slot, read_slot, store, 3u) == NET_OK);
    CHECK(net_replay_add(&r, x, &wrong) == NET_ERR_IO && r.held == 0u && r.seen == 0u);
    for (int i = 0; i < 50; ++i) {
        before = r;
        stop_at = i % (ROOM + 1);
        if (net_replay_add(&r, x, &label) == NET_ERR_IO) {
            CHECK(memcmp(&before, &r, sizeof r) == 0);
        } else {
            CHECK(r.seen == before.seen + 1u);
        }
    }
    CHECK(r.held == ROOM);
    stop_at = -1;
    CHECK(net_replay_draw(&r, x, &label) == NET_OK);
    for (stop_at = 0; net_replay_draw(&r, x, &label) == NET_OK;) {
        CHECK(r.drawn < 1000u);
    }
    stop_at = -1;
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} all[] = {
    {"replay_refuses", replay_refuses},
    {"replay_keeps_within_its_memory", replay_keeps_within_its_memory},
    {"replay_mixes", replay_mixes},
    {"replay_survives_its_store", replay_survives_its_store},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        if (argc == 2 && strcmp(argv[1], all[i].name) == 0) {
            return all[i].run();
        }
    }
    return 2;
}
