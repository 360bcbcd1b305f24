/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
#include "flash.h"

#include <string.h>

enum { DONE, FAILED = -1, UNREADABLE = 1, PROGRAMMED = 1, DAMAGED = 2 };

void flash_new(flash_t *flash, const geometry_t *is)
{
    memset(flash, 0, sizeof *flash);
    flash->is = *is;
    flash->random = 1;
    memset(flash->now.bytes, is->erased, sizeof flash->now.bytes);
}

uint32_t flash_random(flash_t *flash)
{
    flash->random = flash->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(flash->random >> 33);
}

static bool fault(flash_t *flash, bool wrong, const char *what)
{
    if (wrong && flash->fault == NULL) {
        flash->fault = what;
    }
    return wrong;
}

static bool is_outside(flash_t *flash, uint32_t at, size_t size)
{
    const uint32_t end = flash->is.slots * flash->is.slot_bytes;
    return fault(flash, at > end || size > end - at, "outside of the region");
}

/* Whether this call fails. Does not return if power does. */
static bool fails(flash_t *flash)
{
    if (++flash->calls == flash->cut_call) {
        longjmp(flash->off, 1);
    }
    return flash->fails_at != 0 && (flash->fails_on ? flash->calls >= flash->fails_at : flash->calls == flash->fails_at);
}

static bool is_cut(flash_t *flash)
{
    return ++flash->operations == flash->cut_at;
}

int flash_read(void *ctx, uint32_t at, void *data, size_t size)
{
    flash_t *flash = ctx;
    const bool failed = fails(flash);
    if (is_outside(flash, at, size) || (failed && flash->failure != FAILS_SILENTLY)) {
        return FAILED;
    }
    memcpy(data, flash->now.bytes + at, size);
    for (uint32_t unit = at / flash->is.unit; size > 0 && unit <= (at + size - 1) / flash->is.unit; ++unit) {
        if (flash->now.used[unit] == DAMAGED) {
            return UNREADABLE;
        }
    }
    return DONE;
}

static void set_unit(flash_t *flash, uint32_t at, const uint8_t *data)
{
    memcpy(flash->now.bytes + at, data, flash->is.unit);
    flash->now.used[at / flash->is.unit] = PROGRAMMED;
    flash->programmed += flash->is.unit;
}

/* Power fails while the unit at data[0] is programmed, with others behind it. */
static void tear_program(flash_t *flash, uint32_t at, const uint8_t *data, size_t size)
{
    const uint32_t unit = flash->is.unit;
    uint8_t *now = flash->now.bytes + at;
    if (flash->torn == TORN_PREFIX) {
        memcpy(now, data, flash_random(flash) % unit);
        flash->now.used[at / unit] = flash->is.unreadable ? DAMAGED : PROGRAMMED;
    }
    for (uint32_t i = unit; i < size && flash->torn == TORN_SCATTERED; i += unit) {
        if (flash_random(flash) % 2 != 0) {
            set_unit(flash, at + i, data + i);
        }
    }
    if (flash->torn == TORN_GARBAGE) {
        for (uint32_t i = 0; i < unit; ++i) {
            now[i] = (uint8_t)flash_random(flash);
        }
        flash->now.used[at / unit] = flash->is.unreadable ? DAMAGED : PROGRAMMED;
    }
}

int flash_program(void *ctx, uint32_t at, const void *data, size_t size)
{
    flash_t *flash = ctx;
    const uint8_t *from = data;
    const uint32_t unit = flash->is.unit;
    const bool failed = fails(flash);
    const bool wrong = is_outside(flash, at, size) || fault(flash, at % unit != 0 || size % unit != 0, "not whole units");
    if (wrong || (failed && flash->failure != FAILS_LATE)) {
        return wrong || flash->failure == FAILS_EARLY ? FAILED : DONE;
    }
    for (uint32_t i = 0; i < size; i += unit) {
        if (flash->is.erases && fault(flash, flash->now.used[(at + i) / unit] != 0, "programmed twice")) {
            return FAILED;
        }
        if (is_cut(flash)) {
            tear_program(flash, at + i, from + i, size - i);
            longjmp(flash->off, 1);
        }
        set_unit(flash, at + i, from + i);
    }
    return failed ? FAILED : DONE;
}

static void clear(flash_t *flash, uint32_t at, uint32_t size)
{
    memset(flash->now.bytes + at, flash->is.erased, size);
    memset(flash->now.used + at / flash->is.unit, 0, size / flash->is.unit);
}

/* Power fails while a sector is erased. What is left of it can only be erased again. */
static void tear_erase(flash_t *flash, uint32_t at)
{
    const uint32_t size = flash->is.sector;
    uint8_t *now = flash->now.bytes + at;
    const uint32_t some = flash_random(flash) % size;
    if (flash->torn != TORN_NONE) {
        memset(flash->now.used + at / flash->is.unit, PROGRAMMED, size / flash->is.unit);
    }
    for (uint32_t i = 0; i < size && flash->torn != TORN_NONE; ++i) {
        const bool erased = flash->torn == TORN_PREFIX ? i < some : flash_random(flash) % 2 != 0;
        now[i] = erased ? flash->is.erased : flash->torn == TORN_GARBAGE ? (uint8_t)flash_random(flash) : now[i];
    }
}

int flash_erase(void *ctx, uint32_t at)
{
    flash_t *flash = ctx;
    const bool failed = fails(flash);
    const bool wrong = is_outside(flash, at, flash->is.sector) || fault(flash, at % flash->is.sector != 0, "no sector");
    if (wrong || (failed && flash->failure != FAILS_LATE)) {
        return wrong || flash->failure == FAILS_EARLY ? FAILED : DONE;
    }
    if (is_cut(flash)) {
        tear_erase(flash, at);
        longjmp(flash->off, 1);
    }
    clear(flash, at, flash->is.sector);
    flash->erasures[at / flash->is.slot_bytes] += at % flash->is.slot_bytes == 0 ? 1u : 0u;
    return failed ? FAILED : DONE;
}
