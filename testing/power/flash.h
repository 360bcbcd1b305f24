/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* A flash that loses its power: remembers what was programmed since the last erase, refuses what the part would refuse,
 * and stops the program (longjmp) in the middle of an operation, which then has had a part of its effect. */
#ifndef FLASH_H
#define FLASH_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FLASH_MOST = 1 << 18, UNITS_MOST = 1 << 16, SLOTS_MOST = 8 };

/* What an operation leaves that is cut. */
enum { TORN_NONE, TORN_PREFIX, TORN_SCATTERED, TORN_GARBAGE, TORN_KINDS };

/* A call that fails: has no effect, has had its effect, or has none and does not say so (worn cells). */
enum { FAILS_EARLY, FAILS_LATE, FAILS_SILENTLY, FAILURES };

typedef struct {
    const char *name;
    uint32_t slots, slot_bytes, sector, unit;
    bool erases;       /* false: FRAM, any byte at any time */
    bool unreadable;   /* a torn unit cannot be read (ECC) */
    uint8_t erased;
} geometry_t;

typedef struct {
    uint8_t bytes[FLASH_MOST];
    uint8_t used[UNITS_MOST]; /* of each unit: programmed since the last erase; 2: cannot be read */
} contents_t;

typedef struct {
    geometry_t is;
    contents_t now;
    uint64_t operations; /* units programmed and sectors erased so far */
    uint64_t cut_at;     /* power fails in this operation; 0: never */
    int torn;
    uint64_t calls;      /* of the three functions */
    uint64_t cut_call;   /* power fails at the beginning of this one; 0: never */
    uint64_t fails_at;   /* this call fails; 0: none */
    bool fails_on;       /* and all after it */
    int failure;         /* what a call that fails does */
    uint64_t random;
    uint64_t programmed; /* bytes */
    uint32_t erasures[SLOTS_MOST]; /* of the first sector of each slot */
    jmp_buf off;         /* where a reset begins */
    const char *fault;   /* what no part allows, or NULL */
} flash_t;

void flash_new(flash_t *flash, const geometry_t *is);
uint32_t flash_random(flash_t *flash);
int flash_read(void *ctx, uint32_t at, void *data, size_t size);
int flash_program(void *ctx, uint32_t at, const void *data, size_t size);
int flash_erase(void *ctx, uint32_t at);

#endif
