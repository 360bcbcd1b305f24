/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Watches a memory plan while it runs on a host: only in debug builds, never in firmware.
 *
 * Around every kernel call: dead bytes are painted, and must keep the paint; live buffers that the call does not write
 * must keep their bytes; under AddressSanitizer all but the operands of the call is poisoned.
 */
#ifndef TT_DEBUG_H
#define TT_DEBUG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define TT_POISON(place, size) __asan_poison_memory_region((place), (size))
#define TT_UNPOISON(place, size) __asan_unpoison_memory_region((place), (size))

/* Weak: every call sequence of a project with several plans brings it along. */
__attribute__((weak)) const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0"; /* the check program ends without giving back what it took */
}
#else
#define TT_POISON(place, size) ((void)(place), (void)(size))
#define TT_UNPOISON(place, size) ((void)(place), (void)(size))
#endif

enum { TT_KEPT, TT_WRITTEN, TT_OPERAND }; /* live and not to change; live and written; exact bytes of an operand */
enum { TT_PAINT = 0xa5, TT_LIVE_MOST = 65536 };

/* Live buffers at one step, by memory and offset, then the operands. */
typedef struct {
    uint32_t memory;
    uint32_t offset;
    uint32_t size;
    uint32_t kind;
} tt_range_t;

/* The arena, then every further memory. */
typedef struct {
    uint8_t *at;
    size_t size;
} tt_memory_t;

static uint32_t tt_debug_sums[TT_LIVE_MOST];

static inline uint32_t tt_debug_sum(const uint8_t *bytes, size_t size)
{
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < size; ++i) {
        sum = (sum ^ bytes[i]) * 16777619u;
    }
    return sum;
}

static inline void tt_debug_fail(const char *step, const char *what, size_t offset)
{
    (void)fprintf(stderr, "plan broken at %s: %s at offset %zu\n", step, what, offset);
    exit(86);
}

/* Paint (or check) what lies between live buffers. */
static inline void tt_debug_dead(uint8_t *memory, size_t low, size_t high, const char *step, int check)
{
    if (!check && low < high) {
        memset(memory + low, TT_PAINT, high - low);
    }
    for (size_t i = low; check && i < high; ++i) {
        if (memory[i] != TT_PAINT) {
            tt_debug_fail(step, "dead memory was written", i);
        }
    }
}

/* One memory: number `index` of those that the ranges speak of. */
static inline void tt_debug_walk(
    const tt_memory_t *memory, uint32_t index, const tt_range_t *ranges, size_t count, const char *step, int check)
{
    size_t end = 0;
    for (size_t i = 0; i < count && ranges[i].kind != TT_OPERAND; ++i) {
        if (ranges[i].memory != index) {
            continue;
        }
        tt_debug_dead(memory->at, end, ranges[i].offset, step, check);
        end = end > (size_t)ranges[i].offset + ranges[i].size ? end : (size_t)ranges[i].offset + ranges[i].size;
        const uint32_t sum = tt_debug_sum(memory->at + ranges[i].offset, ranges[i].size);
        if (check && ranges[i].kind == TT_KEPT && tt_debug_sums[i] != sum) {
            tt_debug_fail(step, "a live buffer was overwritten", ranges[i].offset);
        }
        tt_debug_sums[i] = sum;
    }
    tt_debug_dead(memory->at, end, memory->size, step, check);
}

static inline void tt_debug_enter(
    const tt_memory_t *memories, uint32_t number, const tt_range_t *ranges, size_t count, const char *step)
{
    for (uint32_t i = 0; i < number; ++i) {
        tt_debug_walk(&memories[i], i, ranges, count, step, 0);
        TT_POISON(memories[i].at, memories[i].size);
    }
    for (size_t i = 0; i < count; ++i) {
        if (ranges[i].kind == TT_OPERAND) {
            TT_UNPOISON(memories[ranges[i].memory].at + ranges[i].offset, ranges[i].size);
        }
    }
}

static inline void tt_debug_leave(
    const tt_memory_t *memories, uint32_t number, const tt_range_t *ranges, size_t count, const char *step)
{
    for (uint32_t i = 0; i < number; ++i) {
        TT_UNPOISON(memories[i].at, memories[i].size);
        tt_debug_walk(&memories[i], i, ranges, count, step, 1);
    }
}

#endif
