/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Cuts the power of a model that saves what it learns, in every way that its arguments ask for, and judges what a reset
 * finds: the state before or the new one, to the byte, from which training goes on as if nothing had happened.
 *
 *   cuts single|double|flips|failing GEOMETRY STRIDE    every STRIDE-th case; prints: cases losses
 *   cuts random|wear|soak GEOMETRY COUNT                so many cases
 *   cuts refused GEOMETRY STRIDE                        the guard restores: every STRIDE-th call of the flash
 *   cuts images GEOMETRY FOLDER                         writes the medium and the state after every save
 *
 * With GUARDED a state is saved only by m_guard_check, which accepts every finite one.
 *
 * `m` stands for the model's name (testing/power/campaign.py puts it there). */
#include "flash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FAST_CRC
#include "crc.h"
#include "tt_runtime.h"
#endif
#include "learn.h"
#include "m_store.h"
#ifdef GUARDED
#include "m_guard.h"
#endif

enum { SAVES = 5, STATES = SAVES + 4, NOTHING = -1 };

static const geometry_t geometries[] = {
    {"STM32L4, 2 KB pages, ECC", 2, 0, 2048, 8, true, true, 0xff},
    {"STM32H5, 8 KB sectors, ECC", 2, 0, 8192, 16, true, true, 0xff},
    {"nRF52840, 4 KB pages", 3, 0, 4096, 4, true, false, 0xff},
    {"RP2040, QSPI flash", 4, 0, 4096, 256, true, false, 0xff},
    {"STM32L0, erased is 0", 2, 0, 128, 4, true, false, 0x00},
    {"FRAM, words", 3, 0, 4, 4, false, false, 0xff},
};

typedef struct {
    uint8_t bytes[M_CHECKPOINT_BYTES];
} state_t;

typedef struct {
    uint8_t *bytes;
    size_t at;
} cursor_t;

static _Alignas(16) uint8_t arena[M_ARENA_BYTES];
static m_t *m;
static m_slot_store_t store;
static flash_t flash;
static state_t states[STATES]; /* after so many rounds */
static contents_t before[SAVES + 1]; /* the medium before save j + 1 */
static m_slot_store_t stores[SAVES + 1];
static uint64_t spent[SAVES + 1]; /* operations of save j + 1 */
static uint64_t cases, losses;

static int write_piece(void *ctx, const void *data, size_t size)
{
    cursor_t *to = ctx;
    memcpy(to->bytes + to->at, data, size);
    to->at += size;
    return 0;
}

static int read_piece(void *ctx, void *data, size_t size)
{
    cursor_t *from = ctx;
    memcpy(data, from->bytes + from->at, size);
    from->at += size;
    return 0;
}

static void get_state(state_t *state)
{
    cursor_t to = {state->bytes, 0};
    need(m_save(m, write_piece, &to) == M_OK && to.at == M_CHECKPOINT_BYTES, "m_save");
}

static void set_state(state_t *state)
{
    cursor_t from = {state->bytes, 0};
    need(m_load(m, read_piece, &from) == M_OK, "m_load");
}

static m_medium_t medium(void)
{
    const geometry_t *is = &flash.is;
    return (m_medium_t){flash_read,     flash_program,  is->erases ? flash_erase : NULL, &flash, is->slots,
                        is->slot_bytes, is->sector, is->unit, is->erased};
}

static void reset(void)
{
    flash.cut_at = flash.cut_call = flash.fails_at = 0;
    memset(arena, 0xa5, sizeof arena);
    memset(&store, 0xa5, sizeof store);
    need(m_init(&m, arena, sizeof arena) == M_OK, "m_init");
}

static void lose(const char *what, int save)
{
    if (losses++ < 3) {
        fprintf(stderr, "%s, save %d: %s\n", flash.is.name, save, what);
    }
}

/* Saves the model, through the guard if there is one. */
static m_status save_model(void)
{
#ifdef GUARDED
    static m_output_t out;
    m_guard_verdict verdict;
    const m_status status = m_guard_check(m, &out, &store, &verdict);
    need(verdict == M_GUARD_ACCEPTED, "the guard refuses what it has to accept");
    return status;
#else
    return m_store_save(&store, m);
#endif
}

/* After a reset: which state there is, `low` to `high`; NOTHING for another one. */
static int recover(int low, int high)
{
    reset();
    const m_medium_t where = medium();
    if (m_store_open(&store, &where) != M_OK) {
        return NOTHING;
    }
    const m_status status = m_store_load(&store, m);
    if (status != (m_store_sequence(&store) == 0 ? M_ERR_FORMAT : M_OK)) {
        return NOTHING;
    }
    state_t found;
    get_state(&found);
    for (int i = high; i >= low; --i) {
        if (memcmp(&found, &states[i], sizeof found) == 0) {
            return i;
        }
    }
    return NOTHING;
}

/* Learns and saves once more from state i, without a cut, and looks for it after a reset. */
static bool goes_on(int i)
{
    learn(m, i + 1);
    state_t next;
    get_state(&next);
    const bool learned = memcmp(&next, &states[i + 1], sizeof next) == 0;
    return learned && save_model() == M_OK && recover(i + 1, i + 1) == i + 1 && flash.fault == NULL;
}

/* A case: what a reset has to find is state `save` - 1 or `save`, or between `low` and `save`. */
static void judge(int low, int save)
{
    ++cases;
    const int found = recover(low, save);
    if (found == NOTHING || flash.fault != NULL) {
        lose(flash.fault != NULL ? flash.fault : "neither the state before nor the new one", save);
    } else if (!goes_on(found)) {
        lose(flash.fault != NULL ? flash.fault : "training does not go on", save);
    }
    flash.fault = NULL;
}

/* The moment before save number `save`, which is to save state `save`. */
static void rewind_to(int save)
{
    reset();
    memcpy(&flash.now, &before[save - 1], sizeof flash.now);
    store = stores[save - 1];
    set_state(&states[save]);
}

/* Saves, and is cut in operation `cut` of this save (0: not). Whether it was. */
static bool save_cut(uint64_t cut, int torn, uint64_t random)
{
    flash.torn = torn;
    flash.random = random * 0x9e3779b97f4a7c15u + 1;
    flash.cut_at = cut == 0 ? 0 : flash.operations + cut;
    if (setjmp(flash.off) != 0) {
        return true;
    }
    const m_status status = save_model();
    flash.cut_at = 0;
    return status != M_OK;
}

/* The run that nothing disturbs: every state, and the medium before every save. */
static void prepare(int geometry)
{
    geometry_t is = geometries[geometry];
    const uint32_t least = (M_STORE_SLOT_BYTES(is.unit) + is.sector - 1u) / is.sector * is.sector;
    is.slot_bytes = least + (geometry % 2 == 0 ? least / 2 / is.sector * is.sector : 0);
    if (is.slot_bytes < 256) { /* small sectors and a small state: room for changes behind it */
        is.slot_bytes = 2 * least;
    }
    need(is.slots * is.slot_bytes <= FLASH_MOST && is.slots * is.slot_bytes / is.unit <= UNITS_MOST, "too large");
    flash_new(&flash, &is);
    need(m_init(&m, arena, sizeof arena) == M_OK, "m_init");
    for (int i = 0; i < STATES; ++i) {
        get_state(&states[i]);
        learn(m, i + 1);
    }
#ifdef FAST_CRC
    need(fast_crc32(7, states, sizeof states - 3) == tt_crc32(7, states, sizeof states - 3), "another CRC");
#endif
    const m_medium_t where = medium();
    need(recover(0, 0) == 0 && m_store_open(&store, &where) == M_OK, "an empty medium");
    for (int j = 1; j <= SAVES + 1; ++j) {
        memcpy(&before[j - 1], &flash.now, sizeof flash.now);
        stores[j - 1] = store;
        if (j <= SAVES) {
            set_state(&states[j]);
            const uint64_t start = flash.operations;
            need(!save_cut(0, 0, 0) && flash.fault == NULL && m_store_sequence(&store) == (uint32_t)j, "m_store_save");
            spent[j - 1] = flash.operations - start;
        }
    }
    need(M_CHECKPOINT_BYTES > 256 || m_store_wear(&store) < SAVES, "no save wrote changes alone");
}

/* Every operation of five saves, in four ways. */
static void single(uint64_t stride)
{
    for (int save = 1; save <= SAVES; ++save) {
        for (uint64_t cut = 1; cut <= spent[save - 1]; cut += stride) {
            for (int torn = 0; torn < TORN_KINDS; ++torn) {
                rewind_to(save);
                need(save_cut(cut, torn, cut), "no cut");
                judge(save - 1, save);
            }
        }
    }
}

/* A cut, and another one in the save that follows the reset. False: that has fewer operations. */
static bool twice(int save, uint64_t cut, int torn, uint64_t again, int torn_again)
{
    rewind_to(save);
    need(save_cut(cut, torn, cut), "no cut");
    const int found = recover(save - 1, save);
    if (found == NOTHING) {
        lose("neither the state before nor the new one", save);
        return false;
    }
    learn(m, found + 1);
    const bool was_cut = save_cut(again, torn_again, again);
    if (was_cut) {
        judge(found, found + 1);
    }
    return was_cut;
}

static void all_pairs(uint64_t stride)
{
    for (int save = 1; save <= SAVES; ++save) {
        for (uint64_t cut = 1; cut <= spent[save - 1]; cut += stride) {
            for (int torn = 0; torn < TORN_KINDS * TORN_KINDS; ++torn) {
                uint64_t again = 1;
                while (twice(save, cut, torn / TORN_KINDS, again, torn % TORN_KINDS)) {
                    again += stride;
                }
            }
        }
    }
}

static void random_pairs(uint64_t count)
{
    uint64_t random = 7;
    while (cases < count) {
        flash.random = random++;
        const int save = 1 + (int)(flash_random(&flash) % SAVES);
        const uint64_t cut = 1 + flash_random(&flash) % spent[save - 1];
        const int torn = (int)(flash_random(&flash) % TORN_KINDS);
        const uint64_t again = 1 + flash_random(&flash) % spent[save % SAVES];
        (void)twice(save, cut, torn, again, (int)(flash_random(&flash) % TORN_KINDS));
    }
}

/* Every bit of every slot behind the last save. */
static void flips(uint64_t stride)
{
    const uint64_t bits = 8u * (uint64_t)flash.is.slots * flash.is.slot_bytes;
    for (uint64_t bit = 0; bit < bits; bit += stride) {
        rewind_to(SAVES + 1);
        flash.now.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        judge(SAVES - 1, SAVES);
    }
}

/* A session of two saves in which one call fails, or all from one on: a reset finds the last state that was saved, or
 * one that was to be. */
static bool failing_session(uint64_t call, bool on, int failure)
{
    rewind_to(SAVES - 1);
    flash.calls = 0;
    flash.fails_at = call;
    flash.fails_on = on;
    flash.failure = failure;
    int safe = SAVES - 2;
    for (int save = SAVES - 1; save <= SAVES; ++save) {
        set_state(&states[save]);
        const m_status status = save_model();
        if (status == M_OK) {
            safe = save;
        } else if (status != M_ERR_IO) {
            lose("another status than M_ERR_IO", save);
        }
    }
    const m_medium_t where = medium();
    const m_status opened = m_store_open(&store, &where);
    const m_status loaded = opened == M_OK ? m_store_load(&store, m) : opened;
    if (loaded != M_OK && loaded != M_ERR_IO) {
        lose("another status than M_ERR_IO", SAVES);
    }
    const bool reached = flash.calls >= call;
    if (reached) {
        judge(safe, SAVES);
    }
    return reached;
}

static void failing(uint64_t stride)
{
    for (int way = 0; way < 2 * FAILURES; ++way) {
        uint64_t call = 1;
        while (failing_session(call, way % 2 != 0, way / 2)) {
            call += stride;
        }
    }
}

/* Many saves on one medium, a reset behind each, over the end of the numbers: slots wear alike, and little is written.
 * cuts: power fails in every second save. */
static void soak(uint64_t count, bool cuts)
{
    const geometry_t is = flash.is;
    flash_new(&flash, &is);
    need(recover(0, 0) == 0, "an empty medium");
    store.tried = UINT32_MAX - (uint32_t)count / 2u;
    states[1] = states[0];
    int learned = 0;
    for (cases = 0; cases < count; ++cases) {
        const uint64_t random = cases * 31u + 7u;
        learn(m, ++learned);
        states[0] = states[1]; /* the state before, and the new one */
        get_state(&states[1]);
        const uint64_t most = 1 + spent[cases % SAVES];
        const uint64_t operation = cuts && cases % 2 != 0 ? 1 + random * 2654435761u % most : 0;
        const bool cut = save_cut(operation, (int)(random % TORN_KINDS), random);
        const int found = recover(cut ? 0 : 1, 1);
        if (found == NOTHING || flash.fault != NULL) {
            lose(flash.fault != NULL ? flash.fault : "neither the state before nor the new one", (int)cases);
            break;
        }
        states[1] = states[found];
    }
    printf("erased");
    for (uint32_t slot = 0; slot < flash.is.slots; ++slot) {
        printf(" %u", flash.erasures[slot]);
    }
    printf(" programmed %llu counted %u\n", (unsigned long long)flash.programmed, m_store_wear(&store));
}

#ifdef GUARDED
/* The guard refuses a model whose weights overflow, and power or the flash fails in a call of the restore: a reset finds
 * the state that was accepted last. False: the restore has fewer calls, and the model is in that state again. */
static bool refused_once(int save, uint64_t call, bool cut)
{
    rewind_to(save);
    need(m_set_lr(m, 1e38f) == M_OK, "m_set_lr");
    learn(m, 1);
    flash.calls = 0;
    *(cut ? &flash.cut_call : &flash.fails_at) = call;
    flash.fails_on = true;
    flash.failure = FAILS_EARLY;
    if (setjmp(flash.off) == 0) {
        static m_output_t out;
        static state_t restored;
        m_guard_verdict verdict;
        const m_status status = m_guard_check(m, &out, &store, &verdict);
        const bool reached = flash.calls >= call;
        if (verdict != M_GUARD_REFUSED || status != (reached ? M_ERR_IO : save == 1 ? M_ERR_FORMAT : M_OK)) {
            lose("the guard accepts it, or returns another status", save);
        }
        get_state(&restored);
        if (!reached && memcmp(&restored, &states[save - 1], sizeof restored) != 0) {
            lose("the state that was accepted last is not restored", save);
        }
        judge(save - 1, save - 1);
        return reached;
    }
    judge(save - 1, save - 1);
    return true;
}

static void refused(uint64_t stride)
{
    for (int save = 1; save <= SAVES + 1; ++save) {
        for (int cut = 0; cut < 2; ++cut) {
            uint64_t call = 1;
            while (refused_once(save, call, cut != 0)) {
                call += stride;
            }
        }
    }
}
#endif

static void put_file(const char *folder, int number, const char *kind, const void *data, size_t size)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%s/%d.%s", folder, number, kind);
    FILE *file = fopen(name, "wb");
    need(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0, "cannot write an image");
}

static void images(const char *folder)
{
    for (int i = 0; i <= SAVES; ++i) {
        put_file(folder, i, "medium", before[i].bytes, (size_t)flash.is.slots * flash.is.slot_bytes);
        put_file(folder, i, "state", &states[i], sizeof states[i]);
    }
    const geometry_t *is = &flash.is;
    printf("%u %u %u %u\n", is->slots, is->slot_bytes, is->unit, (unsigned)is->erased);
}

int main(int count, char **arguments)
{
    need(count == 4, "usage: cuts WHAT GEOMETRY NUMBER");
    const char *what = arguments[1];
    const int geometry = atoi(arguments[2]);
    need(geometry >= 0 && geometry < (int)(sizeof geometries / sizeof geometries[0]), "no such geometry");
    prepare(geometry);
    if (strcmp(what, "images") == 0) {
        images(arguments[3]);
        return 0;
    }
    const uint64_t number = strtoull(arguments[3], NULL, 10);
    if (strcmp(what, "single") == 0) {
        single(number);
    } else if (strcmp(what, "double") == 0) {
        all_pairs(number);
    } else if (strcmp(what, "random") == 0) {
        random_pairs(number);
    } else if (strcmp(what, "flips") == 0) {
        flips(number);
    } else if (strcmp(what, "failing") == 0) {
        failing(number);
    } else if (strcmp(what, "wear") == 0 || strcmp(what, "soak") == 0) {
        soak(number, what[0] == 's');
#ifdef GUARDED
    } else if (strcmp(what, "refused") == 0) {
        refused(number);
#endif
    } else {
        need(false, "no such campaign");
    }
    printf("%s: %llu %llu\n", flash.is.name, (unsigned long long)cases, (unsigned long long)losses);
    return 0;
}
