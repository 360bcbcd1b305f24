/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the tensors of a saved state may hold: a CRC says that nothing was damaged, not who wrote it.
 *
 * Each function tells whether all of a tensor is what training can have made. The limits are those that updates keep to,
 * and that shifts and sums behind them rely on. Tensors are aligned to 4 bytes or more.
 */
#ifndef TT_STATE_H
#define TT_STATE_H

#include "tt_fixed.h"

static inline uint32_t tt_state_word(const uint8_t *tensor, uint32_t at)
{
    uint32_t word;
    memcpy(&word, (const uint8_t *)__builtin_assume_aligned(tensor, 4) + at, sizeof word);
    return word;
}

/* float32: no NaN, nothing infinite. */
static inline bool tt_holds_finite(const uint8_t *tensor, uint32_t size)
{
    bool good = true;
    for (uint32_t at = 0; at < size; at += 4u) {
        good = good && (tt_state_word(tensor, at) & 0x7f800000u) != 0x7f800000u;
    }
    return good;
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

/* int8 within +-limit. */
static inline bool tt_holds_within(const uint8_t *tensor, uint32_t size, int32_t limit)
{
    bool good = true;
    for (uint32_t at = 0; at < size; at++) {
        const int32_t value = (int32_t)(tensor[at] ^ 0x80u) - 128;
        good = good && value >= -limit && value <= limit;
    }
    return good;
}

/* int8 weights and velocities: not -128. */
static inline bool tt_holds_symmetric(const uint8_t *tensor, uint32_t size)
{
    return tt_holds_within(tensor, size, 127);
}

/* int8 shifts of channels that may change their scale (tt_rescale_channel). */
static inline bool tt_holds_shifts(const uint8_t *tensor, uint32_t size)
{
    return tt_holds_within(tensor, size, 100);
}

/* {exponent, quiet updates, [exponent of what is stored]} of an error or a velocity (tt_settle). */
static inline bool tt_holds_exponent(const uint8_t *tensor, uint32_t size)
{
    const int32_t quiet = (int32_t)tt_state_word(tensor, 4u);
    bool good = quiet >= -1 && quiet < TT_QUIET_APPLIES;
    for (uint32_t at = 0; at < size; at += 8u) {
        const int32_t exponent = (int32_t)tt_state_word(tensor, at);
        good = good && exponent >= -TT_EXPONENT_LIMIT && exponent <= TT_EXPONENT_LIMIT;
    }
    return good;
}

#endif
