/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Two floats that are neighbours in memory, loaded together, and multiply-adds that take one half of them.
 *
 * An FPU without vectors loads a pair of registers as fast as one, and each half is then an operand of its own. C has
 * no type for that which compilers keep in registers, so with GCC for Arm a pair is a double that is never computed
 * with, and assembly names its halves. Everywhere else a pair is a struct; values are the same to the bit.
 * tt_fma_01(x, y, sum) is the first half of x times the second of y, plus the sum; tt_fma_0(x, y, sum) has a float y.
 */
#ifndef TT_FLOAT_PAIRS_H
#define TT_FLOAT_PAIRS_H

#include "tt_runtime.h"

#if TT_HAS_FMA && defined(__ARM_FEATURE_FMA) && defined(__arm__) && defined(__GNUC__) && !defined(__clang__)
typedef double tt_float_pair __attribute__((may_alias));

/* x points to two floats, not always to a multiple of 8 bytes as C wants for a double: what GCC loads it with (VLDR,
 * VLDM, LDRD) asks for a multiple of 4 on every Cortex-M. */
static inline tt_float_pair tt_load_pair(const float *x)
{
    return *(const tt_float_pair *)(const void *)x;
}

/* %1 is the first single register of a double, %p1 the second. */
#define TT_FMA_HALVES(name, first, second) \
    static inline float name(tt_float_pair x, tt_float_pair y, float sum) \
    { \
        __asm__("vfma.f32 %0, " first ", " second : "+t"(sum) : "w"(x), "w"(y)); \
        return sum; \
    }
#define TT_FMA_HALF(name, first) \
    static inline float name(tt_float_pair x, float y, float sum) \
    { \
        __asm__("vfma.f32 %0, " first ", %2" : "+t"(sum) : "w"(x), "t"(y)); \
        return sum; \
    }
TT_FMA_HALVES(tt_fma_00, "%1", "%2")
TT_FMA_HALVES(tt_fma_01, "%1", "%p2")
TT_FMA_HALVES(tt_fma_10, "%p1", "%2")
TT_FMA_HALVES(tt_fma_11, "%p1", "%p2")
TT_FMA_HALF(tt_fma_0, "%1")
TT_FMA_HALF(tt_fma_1, "%p1")
#undef TT_FMA_HALVES
#undef TT_FMA_HALF

#else
typedef struct {
    float first, second;
} tt_float_pair;

static inline tt_float_pair tt_load_pair(const float *x)
{
    return (tt_float_pair) {x[0], x[1]};
}

static inline float tt_fma_00(tt_float_pair x, tt_float_pair y, float sum)
{
    return TT_FMA(x.first, y.first, sum);
}

static inline float tt_fma_01(tt_float_pair x, tt_float_pair y, float sum)
{
    return TT_FMA(x.first, y.second, sum);
}

static inline float tt_fma_10(tt_float_pair x, tt_float_pair y, float sum)
{
    return TT_FMA(x.second, y.first, sum);
}

static inline float tt_fma_11(tt_float_pair x, tt_float_pair y, float sum)
{
    return TT_FMA(x.second, y.second, sum);
}

static inline float tt_fma_0(tt_float_pair x, float y, float sum)
{
    return TT_FMA(x.first, y, sum);
}

static inline float tt_fma_1(tt_float_pair x, float y, float sum)
{
    return TT_FMA(x.second, y, sum);
}
#endif

#endif
