/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Clipping of int8 training (--clip-norm): squares of integer gradients in 64 bits, and rates times a factor. The numpy
 * twins are in compiler/tinytrain_compile/ops/int8/clip.py. */
#ifndef TT_CLIP_INT8_H
#define TT_CLIP_INT8_H

#include "tt_exponents.h"
#include "tt_qloss.h"

/* The square of a gradient, of which more than +-limit does not count: so many fit into 64 bits. */
static inline int64_t tt_limited_square(int32_t gradient, int32_t limit)
{
    return tt_square(tt_clamp(gradient, -limit, limit));
}

/* The gradient, whose square is added to its row's sum: 64 bits, the low word first. */
static inline int32_t tt_squared(int32_t *row, int32_t gradient, int32_t limit)
{
    int64_t sum;
    memcpy(&sum, row, sizeof sum);
    sum += tt_limited_square(gradient, limit);
    memcpy(row, &sum, sizeof sum);
    return gradient;
}

/* Half of such a sum. */
static inline int32_t tt_word(int64_t sum, int32_t index)
{
    return (int32_t)(uint32_t)((uint64_t)sum >> (index == 0 ? 0 : 32));
}

/* A row's sum as a float32, in real units: times multiplier * 2^(shift - 31), kept within what a float32 can hold. */
static inline float tt_squares_of(const int32_t *row, int32_t multiplier, int32_t shift)
{
    uint64_t sum = ((uint64_t)(uint32_t)row[1] << 32) | (uint32_t)row[0];
    if (sum == 0u) {
        return tt_from_bits(0u);
    }
    for (; (sum >> 62) == 0u; sum <<= 1) {
        shift--;
    }
    return tt_wide_float((int64_t)sum, multiplier, tt_clamp(shift, -180, 60));
}

/* One number of a split rate (tt_split_rate) times a factor; index 0: its multiplier, 1: its shift. */
static inline int32_t tt_times(int32_t multiplier, int32_t shift, float factor, int32_t index)
{
    int32_t split[2];
    tt_split_rate(split, factor, 1u);
    return index == 0 ? tt_high_multiply(multiplier, split[0]) : shift + split[1];
}

#endif
