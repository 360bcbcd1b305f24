/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Exponents of int8 errors, which follow their peaks, and learning rates in two parts. Twins:
 * compiler/tinytrain_compile/ops/int8/update.py.
 */
#ifndef TT_EXPONENTS_H
#define TT_EXPONENTS_H

#include "tt_fixed.h"

/* Bounds of an error's exponent, where it starts, and the largest magnitude that it should leave an error. */
#define TT_EXPONENT_LIMIT 100
#define TT_EXPONENT_START (-7)
#define TT_ERROR_TARGET 63
/* Updates in a row with too small errors after which an exponent falls by one. */
#define TT_QUIET_APPLIES 8

/* Smallest exponent with which a peak > 0, seen with `exponent`, would stay within TT_ERROR_TARGET. */
static inline int32_t tt_needed_exponent(int32_t peak, int32_t exponent, bool float_peak)
{
    if (float_peak) { /* the bits of (1 + m / 2^23) 2^e <= 63 * 2^p */
        return (peak >> 23) - 127 - 5 + ((peak & 0x7fffff) > 0x7c0000 ? 1 : 0);
    }
    int32_t k = -6;
    if (peak > TT_ERROR_TARGET) {
        for (k = 1; (uint32_t)peak > ((uint32_t)TT_ERROR_TARGET << (uint32_t)k); k++) {
        }
    } else {
        while ((peak << (uint32_t)-k) > TT_ERROR_TARGET) {
            k++;
        }
    }
    return exponent + k;
}

/* Exponent state {exponent, quiet updates} after a peak: up at once, down by one after TT_QUIET_APPLIES small peaks;
 * a peak of 0 changes nothing. Returns 0, the cleared peak. */
static inline int32_t tt_update_exponent(int32_t *state, int32_t peak, bool float_peak)
{
    if (peak != 0) {
        const int32_t spare = tt_needed_exponent(peak, state[0], float_peak) - state[0];
        int32_t step = 0;
        state[1]++;
        if (spare >= 0) {
            step = spare;
            state[1] = 0;
        } else if (state[1] == TT_QUIET_APPLIES) {
            step = -1;
            state[1] = 0;
        }
        state[0] = tt_clamp(state[0] + step, -TT_EXPONENT_LIMIT, TT_EXPONENT_LIMIT);
    }
    return 0;
}

/* The same for a velocity: state[2] becomes the exponent that it has just been stored with. While state[1] is -1 the
 * exponent becomes what the peak asks for, also downwards, until a peak above 1 has told it for certain. */
static inline int32_t tt_update_stored_exponent(int32_t *state, int32_t peak)
{
    state[2] = state[0];
    if (state[1] < 0 && peak != 0) {
        const int32_t found = tt_needed_exponent(peak, state[0], false);
        state[0] = tt_clamp(found, -TT_EXPONENT_LIMIT, TT_EXPONENT_LIMIT);
        state[1] = peak > 1 ? 0 : -1;
        return 0;
    }
    return tt_update_exponent(state, peak, false);
}

/* First step: an exponent with which nothing can overflow, so that an error's peak can be seen: `above` that of the
 * largest error read. tt_first_exponent then gives it the exponent that the peak needs, and clears the peak. */
static inline void tt_start_exponent(int32_t *state, int32_t exponent)
{
    state[0] = tt_clamp(exponent, -TT_EXPONENT_LIMIT, TT_EXPONENT_LIMIT);
    state[1] = 0;
}

static inline void tt_probe0(int32_t *state, int32_t above)
{
    tt_start_exponent(state, TT_EXPONENT_START + above);
}

static inline void tt_probe1(int32_t *state, const int32_t *read, int32_t above)
{
    tt_start_exponent(state, read[0] + above);
}

static inline void tt_probe2(int32_t *state, const int32_t *a, const int32_t *b, int32_t above)
{
    tt_start_exponent(state, (a[0] > b[0] ? a[0] : b[0]) + above);
}

static inline void tt_first_exponent(int32_t *state, int32_t *peak, bool float_peak)
{
    tt_start_exponent(state, *peak == 0 ? TT_EXPONENT_START : tt_needed_exponent(*peak, state[0], float_peak));
    *peak = 0;
}

/* A learning rate divided by `samples` >= 1, as (multiplier, shift), rounded down: a long division of its mantissa.
 * (0, 0) unless the rate is positive, finite and normal. */
static inline void tt_split_rate(int32_t *rate, float value, uint32_t samples)
{
    const uint32_t bits = tt_bits(value);
    rate[0] = 0;
    rate[1] = 0;
    if (bits < 0x00800000u || bits >= 0x7f800000u) {
        return;
    }
    const uint32_t mantissa = ((bits & 0x007fffffu) | 0x00800000u) << 7;
    uint32_t quotient = mantissa / samples;
    uint32_t rest = mantissa % samples;
    int32_t shift = (int32_t)(bits >> 23) - 126;
    while (quotient < (1u << 30)) {
        rest <<= 1;
        quotient = (quotient << 1) + (rest >= samples ? 1u : 0u);
        rest -= rest >= samples ? samples : 0u;
        shift--;
    }
    rate[0] = (int32_t)quotient;
    rate[1] = shift;
}

/* A split rate times `samples`, rounded down. */
static inline void tt_multiply_rate(int32_t *rate, uint32_t samples)
{
    uint64_t product = (uint64_t)(uint32_t)rate[0] * samples;
    for (; product >> 31 != 0u; product >>= 1) {
        rate[1]++;
    }
    rate[0] = (int32_t)product;
}

#endif
