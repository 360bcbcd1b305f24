/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Floats that are neighbours in memory, loaded together: two with multiply-adds that take one half of them, runs of eight that
 * an optimizer moves, and runs of twelve that a clip keeps between its bounds.
 *
 * An FPU without vectors loads a pair of registers as fast as one, and each half is then an operand of its own. C has
 * no type for that which compilers keep in registers, so with GCC for Arm a pair is a double that is never computed
 * with, and assembly names its halves. Everywhere else a pair is a struct; values are the same to the bit.
 * tt_fma_01(x, y, sum) is the first half of x times the second of y, plus the sum; tt_fma_0(x, y, sum) has a float y.
 * tt_fma_both(x, y, sum) does that to both halves of x and of a pair of sums.
 */
#ifndef TT_FLOAT_PAIRS_H
#define TT_FLOAT_PAIRS_H

#include "tt_runtime.h"

#if TT_HAS_FPU && !defined(__clang__)
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
        __asm__(TT_ADD_PRODUCT "%0, " first ", " second : "+t"(sum) : "w"(x), "w"(y)); \
        return sum; \
    }
#define TT_FMA_HALF(name, first) \
    static inline float name(tt_float_pair x, float y, float sum) \
    { \
        __asm__(TT_ADD_PRODUCT "%0, " first ", %2" : "+t"(sum) : "w"(x), "t"(y)); \
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

static inline void tt_store_pair(float *to, tt_float_pair x)
{
    *(tt_float_pair *)(void *)to = x;
}

static inline tt_float_pair tt_add_pairs(tt_float_pair x, tt_float_pair y)
{
    __asm__("vadd.f32 %0, %0, %1\n\tvadd.f32 %p0, %p0, %p1" : "+w"(x) : "w"(y));
    return x;
}

static inline tt_float_pair tt_mul_both(tt_float_pair x, float y)
{
    tt_float_pair product;
    __asm__("vmul.f32 %0, %1, %2\n\tvmul.f32 %p0, %p1, %2" : "=&w"(product) : "w"(x), "t"(y));
    return product;
}

static inline tt_float_pair tt_fma_both(tt_float_pair x, float y, tt_float_pair sum)
{
    __asm__(TT_ADD_PRODUCT "%0, %1, %2\n\t" TT_ADD_PRODUCT "%p0, %p1, %2" : "+&w"(sum) : "w"(x), "t"(y));
    return sum;
}

/* Eight gradients in s0 to s7 and eight weights in s8 to s15, by one load each: VLDM asks for a multiple of 4, as above. */
#define TT_EACH_OF_8(of) of(0, 8) of(1, 9) of(2, 10) of(3, 11) of(4, 12) of(5, 13) of(6, 14) of(7, 15)
#define TT_RUN_SCALED(g, w) "vmul.f32 s" #g ", s" #g ", %[scale]\n\t"
#define TT_RUN_DECAYED(g, w) TT_ADD_PRODUCT "s" #g ", s" #w ", %[decay]\n\t"
#define TT_RUN_MOVED(g, w) TT_SUB_PRODUCT "s" #w ", s" #g ", %[rate]\n\t"
#define TT_RUN_ADDED(g, w) "vadd.f32 s" #w ", s" #w ", s" #g "\n\t"
#define TT_RUNS_OF_8(moves, ...) \
    for (; count >= 8; count -= 8) { \
        __asm__ volatile("vldmia %[g]!, {s0-s7}\n\tvldmia %[w], {s8-s15}\n\t" moves "vstmia %[w]!, {s8-s15}" \
                         : [w] "+r"(w), [g] "+r"(g) \
                         : __VA_ARGS__ \
                         : "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", \
                         "s15", "memory"); \
    }


/* Twelve elements in s0 to s11. %[low] and %[high] are compared so that a NaN stays. An FPv5 chooses without a branch. */
#define TT_EACH_OF_12(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11)
#define TT_RAISED(x) "vcmp.f32 %[low], s" #x "\n\tvmrs APSR_nzcv, fpscr\n\tit gt\n\tvmovgt.f32 s" #x ", %[low]\n\t"
#define TT_LOWERED(x) "vcmp.f32 s" #x ", %[high]\n\tvmrs APSR_nzcv, fpscr\n\tit gt\n\tvmovgt.f32 s" #x ", %[high]\n\t"
#define TT_RAISED_FPV5(x) "vcmp.f32 %[low], s" #x "\n\tvmrs APSR_nzcv, fpscr\n\tvselgt.f32 s" #x ", %[low], s" #x "\n\t"
#define TT_LOWERED_FPV5(x) "vcmp.f32 s" #x ", %[high]\n\tvmrs APSR_nzcv, fpscr\n\tvselgt.f32 s" #x ", %[high], s" #x "\n\t"
#define TT_RUNS_OF_12(moves, ...) \
    for (; count >= 12; count -= 12) { \
        __asm__ volatile("vldmia %[x]!, {s0-s11}\n\t" moves "vstmia %[y]!, {s0-s11}" \
                         : [x] "+r"(x), [y] "+r"(y) \
                         : __VA_ARGS__ \
                         : "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "cc", "memory"); \
    }

#else
#define TT_RUNS_OF_8(moves, ...)
#define TT_RUNS_OF_12(moves, ...)
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

static inline void tt_store_pair(float *to, tt_float_pair x)
{
    to[0] = x.first;
    to[1] = x.second;
}

static inline tt_float_pair tt_add_pairs(tt_float_pair x, tt_float_pair y)
{
    return (tt_float_pair) {x.first + y.first, x.second + y.second};
}

static inline tt_float_pair tt_mul_both(tt_float_pair x, float y)
{
    return (tt_float_pair) {x.first * y, x.second * y};
}

static inline tt_float_pair tt_fma_both(tt_float_pair x, float y, tt_float_pair sum)
{
    return (tt_float_pair) {TT_FMA(x.first, y, sum.first), TT_FMA(x.second, y, sum.second)};
}
#endif

/* Loops over `count` weights, element by element and in their order: w -= rate (g scale + decay w), or without one of the
 * two. Where eight are moved together, w may lie over g. */
TT_SHARED void tt_sgd(float *w, const float *g, float rate, int32_t count)
{
    TT_RUNS_OF_8(TT_EACH_OF_8(TT_RUN_MOVED), [rate] "t"(rate))
    for (; count > 0; count--, w++, g++) {
        *w = TT_FMA(-rate, *g, *w);
    }
}

TT_SHARED void tt_sgd_scaled(float *w, const float *g, float rate, float scale, int32_t count)
{
    TT_RUNS_OF_8(TT_EACH_OF_8(TT_RUN_SCALED) TT_EACH_OF_8(TT_RUN_MOVED), [rate] "t"(rate),
        [scale] "t"(scale))
    for (; count > 0; count--, w++, g++) {
        *w = TT_FMA(-rate, *g * scale, *w);
    }
}

TT_SHARED void tt_sgd_decayed(float *w, const float *g, float rate, float decay, int32_t count)
{
    TT_RUNS_OF_8(TT_EACH_OF_8(TT_RUN_DECAYED) TT_EACH_OF_8(TT_RUN_MOVED), [rate] "t"(rate),
        [decay] "t"(decay))
    for (; count > 0; count--, w++, g++) {
        *w = TT_FMA(-rate, TT_FMA(decay, *w, *g), *w);
    }
}

TT_SHARED void tt_sgd_scaled_decayed(float *w, const float *g, float rate, float scale, float decay, int32_t count)
{
    TT_RUNS_OF_8(TT_EACH_OF_8(TT_RUN_SCALED) TT_EACH_OF_8(TT_RUN_DECAYED) TT_EACH_OF_8(TT_RUN_MOVED),
        [rate] "t"(rate), [scale] "t"(scale), [decay] "t"(decay))
    for (; count > 0; count--, w++, g++) {
        *w = TT_FMA(-rate, TT_FMA(decay, *w, *g * scale), *w);
    }
}

/* The same of sums: w += g. */
TT_SHARED void tt_accumulate(float *w, const float *g, int32_t count)
{
    TT_RUNS_OF_8(TT_EACH_OF_8(TT_RUN_ADDED), )
    for (; count > 0; count--, w++, g++) {
        *w = *w + *g;
    }
}

/* Loops over `count` elements that a clip keeps at `low` and above, at `high` and below, or both. */
#define TT_CLIP_LOW(raised) \
    { \
        TT_RUNS_OF_12(TT_EACH_OF_12(raised), [low] "t"(low)) \
        for (; count > 0; count--, x++, y++) { \
            *y = *x < low ? low : *x; \
        } \
    }
#define TT_CLIP_HIGH(lowered) \
    { \
        TT_RUNS_OF_12(TT_EACH_OF_12(lowered), [high] "t"(high)) \
        for (; count > 0; count--, x++, y++) { \
            *y = high < *x ? high : *x; \
        } \
    }
#define TT_CLIP_BOTH(raised, lowered) \
    { \
        TT_RUNS_OF_12(TT_EACH_OF_12(raised) TT_EACH_OF_12(lowered), [low] "t"(low), [high] "t"(high)) \
        for (; count > 0; count--, x++, y++) { \
            const float raised_x = *x < low ? low : *x; \
            *y = high < raised_x ? high : raised_x; \
        } \
    }
TT_SHARED void tt_clip_low(float *y, const float *x, float low, int32_t count) TT_CLIP_LOW(TT_RAISED)
TT_SHARED void tt_clip_low_fpv5(float *y, const float *x, float low, int32_t count) TT_CLIP_LOW(TT_RAISED_FPV5)
TT_SHARED void tt_clip_high(float *y, const float *x, float high, int32_t count) TT_CLIP_HIGH(TT_LOWERED)
TT_SHARED void tt_clip_high_fpv5(float *y, const float *x, float high, int32_t count) TT_CLIP_HIGH(TT_LOWERED_FPV5)
TT_SHARED void tt_clip_both(float *y, const float *x, float low, float high, int32_t count)
    TT_CLIP_BOTH(TT_RAISED, TT_LOWERED)
TT_SHARED void tt_clip_both_fpv5(float *y, const float *x, float low, float high, int32_t count)
    TT_CLIP_BOTH(TT_RAISED_FPV5, TT_LOWERED_FPV5)

#endif
