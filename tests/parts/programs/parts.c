/* The parts of --runtime alone: what they refuse, and what they leave behind. Run under sanitizers. */
#include "net_monitor.h"
#include "net_replay.h"
#include "net_schedule.h"
#include "net_store.h"

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
    if (x != NULL) {
        memset(x, 0, NET_REPLAY_X_BYTES);
        memcpy(x, &store[slot], sizeof *store);
    }
    *label = 1;
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
    CHECK(net_replay_add(NULL, x, &label) == NET_ERR_ARGUMENT && r.held == 0u && r.turns == 0u);
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
    CHECK(r.held == 2u && r.turns == 80u);
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
    CHECK(net_replay_add(&r, x, &wrong) == NET_ERR_IO && r.held == 0u && r.turns == 0u);
    for (int i = 0; i < 50; ++i) {
        before = r;
        stop_at = i % (ROOM + 1);
        if (net_replay_add(&r, x, &label) == NET_ERR_IO) {
            CHECK(memcmp(&before, &r, sizeof r) == 0);
        } else {
            CHECK(r.turns == before.turns + 1u && r.classes[1].offered == r.turns);
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

static float not_a_number(void)
{
    const uint32_t bits = 0x7fc00000u;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int schedules_are_sound(void)
{
    net_schedule_t s = {NET_RATE_CONSTANT, 0u, 0.5f, 0u, 0.0f, 0.0f};
    net_t *m = NULL;
    CHECK(net_init(&m, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) == NET_OK);
    CHECK(net_schedule_is_sound(&s) && !net_schedule_is_sound(NULL) && net_schedule_set(m, &s, 0u) == NET_OK);
    CHECK(net_schedule_rate(NULL, 0u) < 0.0f && net_schedule_set(m, NULL, 0u) == NET_ERR_ARGUMENT);
    CHECK(net_schedule_set(NULL, &s, 0u) == NET_ERR_STATE);
    s.kind = NET_RATE_STEP;
    CHECK(!net_schedule_is_sound(&s)); /* no updates, no factor */
    s.every = 1u;
    s.factor = 1.5f;
    CHECK(!net_schedule_is_sound(&s));
    s.factor = 0.5f;
    CHECK(net_schedule_rate(&s, 3u) == 0.0625f && net_schedule_rate(&s, UINT32_MAX) == 0.0f);
    s.kind = NET_RATE_COSINE;
    s.every = UINT32_MAX;
    s.last = -0.1f;
    CHECK(!net_schedule_is_sound(&s) && net_schedule_set(m, &s, 0u) == NET_ERR_ARGUMENT);
    s.last = 0.1f;
    CHECK(net_schedule_rate(&s, 0u) == 0.5f && net_schedule_rate(&s, UINT32_MAX) == 0.1f);
    s.warm_up = UINT32_MAX;
    CHECK(net_schedule_rate(&s, UINT32_MAX - 1u) == 0.5f && net_schedule_rate(&s, UINT32_MAX) == 0.5f);
    s.rate = not_a_number();
    CHECK(!net_schedule_is_sound(&s));
    s.rate = 0.5f;
    s.kind = (net_rate_kind)3;
    CHECK(!net_schedule_is_sound(&s));
    return 0;
}

static int means_refuse(void)
{
    net_running_t running = {3u, 0u, 0.0f}, none = {0u, 0u, 0.0f};
    net_spread_t spread = {0u, 0.0f, 0.0f};
    CHECK(net_running_add(NULL, 1.0f) == NET_ERR_ARGUMENT && net_running_add(&none, 1.0f) == NET_ERR_ARGUMENT);
    CHECK(net_running_add(&running, not_a_number()) == NET_ERR_ARGUMENT && running.count == 0u);
    CHECK(net_running_add(&running, 3.0f) == NET_OK && net_running_add(&running, 1.0f) == NET_OK);
    CHECK(running.mean == 2.0f && running.count == 2u);
    CHECK(net_spread_threshold(&spread, 3.0f) == 0.0f && net_spread_threshold(NULL, 1.0f) == 0.0f);
    CHECK(net_spread_add(NULL, 1.0f) == NET_ERR_ARGUMENT);
    CHECK(net_spread_add(&spread, not_a_number()) == NET_ERR_ARGUMENT && spread.count == 0u);
    CHECK(net_spread_add(&spread, 1.0f) == NET_OK && net_spread_add(&spread, 3.0f) == NET_OK);
    CHECK(net_spread_threshold(&spread, 2.0f) == 4.0f);
    return 0;
}

static int watches_judge(void)
{
    net_watch_t none = {0.0f, {0}, {0}, {0}}, watch = {1.0f, {0}, {0}, {0}};
    CHECK(net_watch_untrained(NULL, 1.0f) == NET_ERR_ARGUMENT && net_watch_untrained(&none, 1.0f) == NET_ERR_ARGUMENT);
    none.scale = not_a_number();
    CHECK(net_watch_untrained(&none, 1.0f) == NET_ERR_ARGUMENT && none.untrained.count == 0u);
    CHECK(net_watch_add(NULL, 9.0f) == NET_HEALTHY && net_watch_add(&watch, 9.0f) == NET_HEALTHY);
    CHECK(net_watch_untrained(&watch, 0.0f) == NET_OK && watch.untrained.mean == 1.0f);
    for (int i = 0; i < 24; ++i) { /* a collapse counts after 25 steps */
        CHECK(net_watch_add(&watch, 9.0f) == NET_HEALTHY);
    }
    CHECK(net_watch_add(&watch, 9.0f) == NET_WORSE);
    for (int i = 0; i < 41; ++i) { /* until the latest 25 or so are well again */
        CHECK(net_watch_add(&watch, 0.0f) == (i < 40 ? NET_WORSE : NET_HEALTHY));
    }
    for (int i = 0; i < 33; ++i) { /* a level counts after 100 steps: the latest steps alone are well */
        CHECK(net_watch_add(&watch, 0.0f) == NET_HEALTHY);
    }
    CHECK(net_watch_add(&watch, 0.0f) == NET_WORSE);
    for (int i = 0; i < 600; ++i) {
        (void)net_watch_add(&watch, -1.0f); /* no loss is better than 0 */
    }
    CHECK(net_watch_add(&watch, 0.0f) == NET_HEALTHY && watch.slow.mean <= 1.0f);
    int steps = 0; /* until a collapse is seen: 25 steps weigh 1/25 each, so that 0.25 + 0.75 of 0.75 is passed after six */
    while (net_watch_add(&watch, not_a_number()) == NET_HEALTHY) {
        ++steps;
    }
    CHECK(steps == 5);
    return 0;
}

static int percentiles_sort(void)
{
    float values[9] = {3.0f, -1.0f, 7.0f, 0.0f, 7.0f, 2.0f, 5.0f, -4.0f, 2.0f}, found = 0.0f;
    const float bad[2] = {1.0f, not_a_number()};
    float two[2];
    CHECK(net_percentile(NULL, 9u, 500u, &found) == NET_ERR_ARGUMENT);
    CHECK(net_percentile(values, 0u, 500u, &found) == NET_ERR_ARGUMENT);
    CHECK(net_percentile(values, 9u, 1001u, &found) == NET_ERR_ARGUMENT);
    CHECK(net_percentile(values, 9u, 500u, NULL) == NET_ERR_ARGUMENT);
    memcpy(two, bad, sizeof two);
    CHECK(net_percentile(two, 2u, 500u, &found) == NET_ERR_ARGUMENT && two[0] == 1.0f);
    CHECK(net_percentile(values, 9u, 500u, &found) == NET_OK && found == 2.0f);
    for (size_t i = 1; i < 9u; ++i) {
        CHECK(values[i - 1u] <= values[i]);
    }
    CHECK(net_percentile(values, 9u, 0u, &found) == NET_OK && found == -4.0f);
    CHECK(net_percentile(values, 9u, 1000u, &found) == NET_OK && found == 7.0f);
    CHECK(net_percentile(values, 1u, 990u, &found) == NET_OK && found == -4.0f);
    return 0;
}

static int votes_have_a_majority(void)
{
    int32_t last[3], winner = -9;
    net_vote_t vote = {last, 3u, 0u, 0u}, none = {NULL, 3u, 0u, 0u}, far = {last, 3u, 0u, 3u};
    CHECK(net_vote_add(NULL, 1, &winner) == NET_ERR_ARGUMENT && net_vote_add(&vote, 1, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_vote_add(&none, 1, &winner) == NET_ERR_ARGUMENT && net_vote_add(&far, 1, &winner) == NET_ERR_ARGUMENT);
    CHECK(winner == -9 && net_vote_add(&vote, 1, &winner) == NET_OK && winner == 1);
    CHECK(net_vote_add(&vote, 2, &winner) == NET_OK && winner == 2); /* the one that came last */
    CHECK(net_vote_add(&vote, 1, &winner) == NET_OK && winner == 1);
    CHECK(net_vote_add(&vote, 3, &winner) == NET_OK && winner == 3); /* of 2, 1, 3 */
    CHECK(net_vote_add(&vote, 2, &winner) == NET_OK && winner == 2); /* of 1, 3, 2 */
    CHECK(net_vote_add(&vote, 3, &winner) == NET_OK && winner == 3);
    return 0;
}

static int classes_are_the_first_of_the_largest(void)
{
    net_output_t out = {{0.0f}};
    out.values[1] = 2.0f;
    out.values[3] = 2.0f;
    CHECK(net_class_of(&out) == 1);
    return 0;
}

static int rewinds;

static int rewind_or_fail(void *ctx)
{
    ((net_ram_t *)ctx)->at = 0u;
    return rewinds-- == 0;
}

static int the_best_is_kept(void)
{
    unsigned char bytes[NET_CHECKPOINT_BYTES];
    net_ram_t ram = {bytes, 0u};
    net_store_t store = net_ram_store(&ram), torn = store, none = {NULL, NULL, NULL, NULL};
    net_stop_t stop = {true, 0.25f, 2u, 0.0f, 0u, 0u, false}, wrong = {true, -1.0f, 2u, 0.0f, 0u, 0u, false};
    net_verdict verdict = NET_NO_VALUE;
    net_t *m = NULL;
    CHECK(net_init(&m, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) == NET_OK);
    CHECK(net_stop_add(NULL, 1.0f) == NET_NO_VALUE && net_stop_add(&wrong, 1.0f) == NET_NO_VALUE);
    CHECK(net_stop_add(&stop, not_a_number()) == NET_NO_VALUE && stop.count == 0u);
    CHECK(net_stop_keep(&stop, m, 1.0f, &none, &verdict) == NET_ERR_ARGUMENT);
    CHECK(net_stop_keep(&stop, m, 1.0f, NULL, &verdict) == NET_ERR_ARGUMENT);
    CHECK(net_stop_keep(&stop, m, 1.0f, &store, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_stop_keep(&stop, m, not_a_number(), &store, &verdict) == NET_ERR_ARGUMENT);
    CHECK(net_stop_restore(&stop, m, &store) == NET_ERR_STATE && net_stop_restore(NULL, m, &store) == NET_ERR_ARGUMENT);
    CHECK(net_stop_keep(&stop, m, 0.5f, &store, &verdict) == NET_OK && verdict == NET_BETTER && stop.kept);
    CHECK(ram.at == NET_CHECKPOINT_BYTES && net_stop_restore(&stop, m, &store) == NET_OK);
    CHECK(net_stop_keep(&stop, m, 0.75f, &store, &verdict) == NET_OK && verdict == NET_NOT_BETTER);
    CHECK(net_stop_keep(&stop, m, 0.25f, &store, &verdict) == NET_OK && verdict == NET_STOP && stop.kept);
    torn.rewind = rewind_or_fail;
    rewinds = 0;
    CHECK(net_stop_keep(&stop, m, 1.0f, &torn, &verdict) == NET_ERR_IO && verdict == NET_BETTER && !stop.kept);
    CHECK(net_stop_restore(&stop, m, &store) == NET_ERR_STATE);
    CHECK(net_stop_keep(&stop, m, 2.0f, &store, &verdict) == NET_OK && stop.kept);
    rewinds = 0;
    CHECK(net_stop_restore(&stop, m, &torn) == NET_ERR_IO);
    bytes[NET_CHECKPOINT_BYTES - 1u] ^= 1u;
    CHECK(net_stop_restore(&stop, m, &store) == NET_ERR_FORMAT);
    return 0;
}

/* ---- store: what it refuses (testing/power has what it survives) ---- */

enum { SLOT = (NET_STORE_SLOT_BYTES(8) + 255) / 256 * 256 };

static int read_medium(void *ctx, uint32_t offset, void *data, size_t size)
{
    memcpy(data, (const unsigned char *)ctx + offset, size);
    return 0;
}

static int program_medium(void *ctx, uint32_t offset, const void *data, size_t size)
{
    memcpy((unsigned char *)ctx + offset, data, size);
    return 0;
}

static int write_state(void *ctx, const void *data, size_t size)
{
    unsigned char **to = ctx;
    memcpy(*to, data, size);
    *to += size;
    return 0;
}

static int store_refuses(void)
{
    static unsigned char bytes[2 * SLOT];
    static net_slot_store_t s;
    const net_medium_t good = {read_medium, program_medium, NULL, bytes, 2, SLOT, 256, 8, 0xff};
    net_medium_t bad[8];
    for (size_t i = 0; i < 8; ++i) {
        bad[i] = good;
    }
    bad[0].read = NULL;
    bad[1].program = NULL;
    bad[2].slots = 1;
    bad[3].slot_bytes = SLOT - 256;
    bad[4].slot_bytes = SLOT + 8;
    bad[5].unit_bytes = 0;
    bad[6].unit_bytes = 512;
    bad[7].sector_bytes = 12;
    for (size_t i = 0; i < 8; ++i) {
        CHECK(net_store_open(&s, &bad[i]) == NET_ERR_ARGUMENT);
    }
    net_medium_t large = good;
    large.slots = UINT32_MAX / SLOT;
    CHECK(net_store_open(&s, &large) == NET_ERR_ARGUMENT);
    CHECK(net_store_open(NULL, &good) == NET_ERR_ARGUMENT && net_store_open(&s, NULL) == NET_ERR_ARGUMENT);
    return 0;
}

/* A medium whose callback calls the store, and the model, that it writes for. */
static struct {
    unsigned char *bytes;
    net_slot_store_t *store;
    net_t *model;
    int calls, wrong;
} nested;

static int program_nested(void *ctx, uint32_t offset, const void *data, size_t size)
{
    static net_output_t out;
    (void)ctx;
    nested.calls += 1;
    nested.wrong += net_store_save(nested.store, nested.model) != NET_ERR_STATE;
    nested.wrong += net_store_load(nested.store, nested.model) != NET_ERR_STATE;
    const net_status status = net_infer(nested.model, &out); /* the head of a record comes before the model is asked */
    nested.wrong += status != NET_ERR_STATE && status != NET_OK;
    memcpy(nested.bytes + offset, data, size);
    return 0;
}

static int read_nested(void *ctx, uint32_t offset, void *data, size_t size)
{
    (void)ctx;
    memcpy(data, nested.bytes + offset, size);
    return 0;
}

static int store_is_not_called_by_its_callbacks(void)
{
    static _Alignas(NET_ALIGNMENT) unsigned char arena[NET_ARENA_BYTES];
    static unsigned char bytes[2 * SLOT];
    static net_slot_store_t s;
    const net_medium_t medium = {read_nested, program_nested, NULL, &s, 2, SLOT, 256, 8, 0xff};
    net_t *m;
    CHECK(net_init(&m, arena, sizeof arena) == NET_OK);
    nested.bytes = bytes;
    nested.store = &s;
    nested.model = m;
    CHECK(net_store_open(&s, &medium) == NET_OK);
    CHECK(net_store_save(&s, m) == NET_OK && net_store_sequence(&s) == 1u);
    CHECK(nested.calls > 0 && nested.wrong == 0);
    CHECK(net_store_load(&s, m) == NET_OK && net_store_save(&s, m) == NET_OK);
    CHECK(nested.wrong == 0);
    return 0;
}

static int store_keeps_to_its_calls(void)
{
    static _Alignas(NET_ALIGNMENT) unsigned char arena[NET_ARENA_BYTES];
    static unsigned char bytes[2 * SLOT], first[NET_CHECKPOINT_BYTES], found[NET_CHECKPOINT_BYTES];
    static net_slot_store_t s;
    const net_medium_t medium = {read_medium, program_medium, NULL, bytes, 2, SLOT, 256, 8, 0xff};
    net_t *m;
    unsigned char *to = first;
    CHECK(net_init(&m, arena, sizeof arena) == NET_OK && net_save(m, write_state, &to) == NET_OK);
    CHECK(net_store_save(&s, m) == NET_ERR_STATE && net_store_load(&s, m) == NET_ERR_STATE);
    CHECK(net_store_sequence(&s) == 0u && net_store_sequence(NULL) == 0u && net_store_wear(NULL) == 0u);
    CHECK(net_store_open(&s, &medium) == NET_OK);
    CHECK(net_store_save(&s, NULL) == NET_ERR_ARGUMENT && net_store_load(NULL, m) == NET_ERR_ARGUMENT);
    CHECK(net_set_lr(m, 0.5f) == NET_OK && net_store_load(&s, m) == NET_ERR_FORMAT);
    to = found;
    CHECK(net_save(m, write_state, &to) == NET_OK && memcmp(first, found, sizeof first) == 0); /* initial */
    memset(arena + 16, 0xff, NET_STATE_BYTES); /* behind the handle: no numbers */
    CHECK(net_store_save(&s, m) == NET_ERR_NAN && net_store_sequence(&s) == 0u);
    for (size_t i = 0; i < sizeof bytes; ++i) {
        CHECK(bytes[i] == 0u);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} all[] = {
    {"store_refuses", store_refuses},
    {"store_keeps_to_its_calls", store_keeps_to_its_calls},
    {"store_is_not_called_by_its_callbacks", store_is_not_called_by_its_callbacks},
    {"replay_refuses", replay_refuses},
    {"replay_keeps_within_its_memory", replay_keeps_within_its_memory},
    {"replay_mixes", replay_mixes},
    {"replay_survives_its_store", replay_survives_its_store},
    {"schedules_are_sound", schedules_are_sound},
    {"means_refuse", means_refuse},
    {"watches_judge", watches_judge},
    {"percentiles_sort", percentiles_sort},
    {"votes_have_a_majority", votes_have_a_majority},
    {"classes_are_the_first_of_the_largest", classes_are_the_first_of_the_largest},
    {"the_best_is_kept", the_best_is_kept},
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
