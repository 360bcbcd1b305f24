/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* tt_state.h for what int8 training remembers: weights, velocities, shifts, exponents. */
#ifndef TT_STATE_INT8_H
#define TT_STATE_INT8_H

#include "tt_exponents.h"
#include "tt_state.h"

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

/* {exponent, quiet updates, [exponent of what is stored]} of an error or a velocity (tt_update_exponent). */
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
