/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the tensors of a saved state, and samples, may hold: a CRC says that nothing was damaged, not who wrote it.
 *
 * Each function tells whether all of a tensor is what training can have made. The limits are those that updates keep to,
 * and that shifts and sums behind them rely on. Tensors are aligned to 4 bytes or more.
 */
#ifndef TT_STATE_H
#define TT_STATE_H

#include "tt_runtime.h"

static inline uint32_t tt_state_word(const uint8_t *tensor, uint32_t at)
{
    uint32_t word;
    memcpy(&word, (const uint8_t *)__builtin_assume_aligned(tensor, 4) + at, sizeof word);
    return word;
}

/* float32: no NaN, nothing infinite. The exponent of one that is either has all its bits set: the sum below then has its
 * first. */
static inline bool tt_holds_finite(const uint8_t *tensor, uint32_t size)
{
    uint32_t seen = 0u;
    for (uint32_t at = 0; at < size; at += 4u) {
        seen |= (tt_state_word(tensor, at) & 0x7fffffffu) + 0x00800000u;
    }
    return seen < 0x80000000u;
}

/* The same of numbers of any alignment. */
static inline bool tt_are_finite(const void *numbers, uint32_t size)
{
    uint32_t seen = 0u;
    for (uint32_t at = 0; at < size; at += 4u) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)numbers + at, sizeof word);
        seen |= (word & 0x7fffffffu) + 0x00800000u;
    }
    return seen < 0x80000000u;
}

/* float32: finite, and 0 (of either sign) or above. */
static inline bool tt_holds_not_negative(const uint8_t *tensor, uint32_t size)
{
    bool good = true;
    for (uint32_t at = 0; at < size; at += 4u) {
        const uint32_t bits = tt_state_word(tensor, at);
        good = good && (bits < 0x7f800000u || bits == 0x80000000u);
    }
    return good;
}

/* float32: 0 to 1. */
static inline bool tt_holds_powers(const uint8_t *tensor, uint32_t size)
{
    bool good = true;
    for (uint32_t at = 0; at < size; at += 4u) {
        good = good && tt_state_word(tensor, at) <= 0x3f800000u;
    }
    return good;
}

#endif
