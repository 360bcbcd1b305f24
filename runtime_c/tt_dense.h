/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The forward pass of an int8 layer of one pixel whose outputs are no whole tiles. The same bits on every core. */
#ifndef TT_DENSE_H
#define TT_DENSE_H

#include "tt_dsp.h"

#if TT_HAS_MVE
#include <arm_mve.h>
#endif

/* What the ends of the sums read: of every output, and of all. */
typedef struct tt_dense_ends {
    const int32_t *bias, *multiplier;
    const int8_t *shift;
    int32_t zero, low, high;
    bool shifts_down, above, once;
} tt_dense_ends;

static inline TT_ALWAYS tt_dense_ends tt_dense_ends_of(const int32_t *bias, const int32_t *multiplier, const int8_t *shift,
    int32_t zero, int32_t low, int32_t high, int32_t shifts_down, int32_t above, int32_t once)
{
    return (tt_dense_ends){bias, multiplier, shift, zero, low, high, shifts_down != 0, above != 0, once != 0};
}

static inline TT_ALWAYS int8_t tt_dense_end(int32_t sum, int32_t o, tt_dense_ends by)
{
    const int32_t factor = tt_factor(by.multiplier[o]);
    if (by.once) {
        const int32_t down = tt_down(by.multiplier[o], by.shift[o]);
        return tt_requantise8_once(sum, by.bias[o], factor, down, by.zero, by.low, by.high, by.above);
    }
    if (by.shifts_down) {
        const int32_t down = -by.shift[o];
        return by.above ? tt_requantise8_kept_above(sum, by.bias[o], factor, down, by.zero, by.low, by.high)
                        : tt_requantise8_kept(sum, by.bias[o], factor, down, by.zero, by.low, by.high);
    }
    const int32_t down = tt_down(by.multiplier[o], by.shift[o]);
    return by.above ? tt_requantise8_above(sum, by.bias[o], factor, down, by.zero, by.low, by.high)
                    : tt_requantise8(sum, by.bias[o], factor, down, by.zero, by.low, by.high);
}

#if TT_HAS_MVE
/* The sum of (a[i] - zero) b[i] for i < n, n > 0. */
static inline TT_ALWAYS int32_t tt_dense_sum8(const int8_t *a, const int8_t *b, int32_t n, int32_t zero)
{
    int32_t products = 0, sum = 0;
    __asm__ volatile("dlstp.8 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.8 q0, [%[a]], #16\n\t"
                     "vldrb.8 q1, [%[b]], #16\n\t"
                     "vmladava.s8 %[products], q0, q1\n\t"
                     "vaddva.s8 %[sum], q1\n\t"
                     "letp lr, 1b"
                     : [products] "+Te"(products), [sum] "+Te"(sum), [a] "+r"(a), [b] "+r"(b)
                     : [n] "r"(n)
                     : "lr", "q0", "q1", "memory");
    return products - zero * sum;
}
#endif

/* y[o] = the end of the sum of (x[i] - zero) w[o, i]; inputs: a multiple of four. scratch: for as many int16; x is read before
 * y is written. */
static inline TT_ALWAYS void tt_dense8(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t outputs,
    int32_t inputs, int32_t zero, tt_dense_ends by)
{
#if TT_HAS_MVE
    int8_t *const own = (int8_t *)scratch;
    memcpy(own, x, (size_t)inputs);
    for (int32_t o = 0; o < outputs; o++, w += inputs) {
        y[o] = tt_dense_end(tt_dense_sum8(own, w, inputs, zero), o, by);
    }
#else
    int32_t o = 0;
    for (int32_t i = 0; i < inputs; i += 4) {
        tt_widen4(scratch + i, x + i, -zero);
    }
    for (; o + 4 <= outputs; o += 4, w += 4 * inputs) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        tt_dot_direct_1x4(&s0, &s1, &s2, &s3, scratch, w, inputs, inputs / 4);
        y[o] = tt_dense_end(s0, o, by);
        y[o + 1] = tt_dense_end(s1, o + 1, by);
        y[o + 2] = tt_dense_end(s2, o + 2, by);
        y[o + 3] = tt_dense_end(s3, o + 3, by);
    }
    for (; o < outputs; o++, w += inputs) {
        y[o] = tt_dense_end(tt_dot_direct(0, scratch, w, inputs / 4), o, by);
    }
#endif
}

#endif
