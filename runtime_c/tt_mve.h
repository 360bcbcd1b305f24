/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of kernels that work on vectors (Helium), four int32 at a time. Where there are no vectors, plain C gives the
 * same bits. A name in _x4 does what the helper without it does, four times; it takes a factor as multiplier and shift,
 * which is within +-31 (more bits count as 31).
 */
#ifndef TT_MVE_H
#define TT_MVE_H

#include "tt_mve_sums.h"

#if TT_HAS_MVE
typedef int32x4_t tt_i32x4;
#else
typedef int32_t tt_i32x4 __attribute__((vector_size(16)));
typedef uint32_t tt_u32x4 __attribute__((vector_size(16)));
/* What plain C does instead of vector instructions: return the expression for the four i. */
#define TT_EACH(expression)                                                                                            \
    tt_i32x4 each;                                                                                                     \
    for (int i = 0; i < 4; ++i) {                                                                                      \
        each[i] = (expression);                                                                                        \
    }                                                                                                                  \
    return each;
#endif

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static inline tt_i32x4 tt_lanes(int32_t a, int32_t b, int32_t c, int32_t d)
{
#if TT_HAS_MVE
    tt_i32x4 lanes;
    __asm__("vmov %e0, %1, %2\n\tvmov %f0, %3, %4" : "=&w"(lanes) : "r"(a), "r"(b), "r"(c), "r"(d));
    return lanes;
#else
    return (tt_i32x4) {a, b, c, d};
#endif
}

static inline tt_i32x4 tt_all(int32_t value)
{
    TT_UNSEEN(value);
    return (tt_i32x4) {value, value, value, value};
}

static inline tt_i32x4 tt_load8_x4(const int8_t *from)
{
#if TT_HAS_MVE
    return vldrbq_s32(from);
#else
    return (tt_i32x4) {from[0], from[1], from[2], from[3]};
#endif
}

static inline tt_i32x4 tt_load16_x4(const int16_t *from)
{
#if TT_HAS_MVE
    return vldrhq_s32(from);
#else
    return (tt_i32x4) {from[0], from[1], from[2], from[3]};
#endif
}

static inline tt_i32x4 tt_load32_x4(const int32_t *from)
{
#if TT_HAS_MVE
    return vldrwq_s32(from);
#else
    return (tt_i32x4) {from[0], from[1], from[2], from[3]};
#endif
}

/* from[0], from[step] ... */
static inline tt_i32x4 tt_gather16_x4(const int16_t *from, int32_t step)
{
#if TT_HAS_MVE
    return vldrhq_gather_shifted_offset_s32(from, vmulq_n_u32(tt_count_x4(), (uint32_t)step));
#else
    return (tt_i32x4) {from[0], from[step], from[2 * step], from[3 * step]};
#endif
}

static inline tt_i32x4 tt_gather8_x4(const int8_t *from, int32_t step)
{
#if TT_HAS_MVE
    return vldrbq_gather_offset_s32(from, vmulq_n_u32(tt_count_x4(), (uint32_t)step));
#else
    return (tt_i32x4) {from[0], from[step], from[2 * step], from[3 * step]};
#endif
}

/* sum + a b. */
static inline tt_i32x4 tt_mla_x4(tt_i32x4 sum, tt_i32x4 a, int32_t b)
{
#if TT_HAS_MVE
    return vmlaq_n_s32(sum, a, b);
#else
    return sum + a * b;
#endif
}

/* lanes + value, which takes no vector of its own. */
static inline tt_i32x4 tt_plus_x4(tt_i32x4 lanes, int32_t value)
{
#if TT_HAS_MVE
    return vaddq_n_s32(lanes, value);
#else
    return lanes + value;
#endif
}

/* The low bytes of the lanes, to to[0], to[step] ... */
static inline void tt_scatter8_x4(int8_t *to, int32_t step, tt_i32x4 lanes)
{
#if TT_HAS_MVE
    vstrbq_scatter_offset_s32(to, vmulq_n_u32(tt_count_x4(), (uint32_t)step), lanes);
#else
    for (int i = 0; i < 4; ++i) {
        to[i * step] = (int8_t)lanes[i];
    }
#endif
}

/* The same of the first n lanes, a constant; of all from 4 on. */
static inline TT_ALWAYS void tt_scatter8_few(int8_t *to, int32_t step, tt_i32x4 lanes, int32_t n)
{
    if (n >= 4) {
        tt_scatter8_x4(to, step, lanes);
        return;
    }
    for (int i = 0; i < n; ++i) {
        to[i * step] = (int8_t)lanes[i];
    }
}

/* The low bytes of the lanes. */
static inline void tt_store8_x4(int8_t *to, tt_i32x4 lanes)
{
#if TT_HAS_MVE
    vstrbq_s32(to, lanes);
#else
    for (int i = 0; i < 4; ++i) {
        to[i] = (int8_t)lanes[i];
    }
#endif
}

static inline void tt_store32_x4(int32_t *to, tt_i32x4 lanes)
{
#if TT_HAS_MVE
    vstrwq_s32(to, lanes);
#else
    memcpy(to, &lanes, sizeof lanes);
#endif
}

/* -1 in lane i where bit i is set, else 0. */
static inline tt_i32x4 tt_bits_x4(int32_t bits)
{
#if TT_HAS_MVE
    const tt_i32x4 to_sign = vreinterpretq_s32_u32(vddupq_n_u32(31u, 1)); /* 31, 30, 29, 28 */
    return vshrq_n_s32(vshlq_s32(tt_all(bits), to_sign), 31);
#else
    const tt_i32x4 to_sign = {31, 30, 29, 28};
    return (tt_i32x4)((tt_u32x4)tt_all(bits) << (tt_u32x4)to_sign) >> 31;
#endif
}

/* -1 where a condition holds, else 0. */
static inline tt_i32x4 tt_keep_x4(bool a, bool b, bool c, bool d)
{
    return tt_lanes(-(int32_t)a, -(int32_t)b, -(int32_t)c, -(int32_t)d);
}

/* ---- fixed point, four at a time --------------------------------------------------------------------------------- */

static inline tt_i32x4 tt_clamp_x4(tt_i32x4 value, int32_t low, int32_t high)
{
#if TT_HAS_MVE
    return vmaxq_s32(vminq_s32(value, tt_all(high)), tt_all(low));
#else
    TT_EACH(tt_clamp(value[i], low, high))
#endif
}

static inline tt_i32x4 tt_add_x4(tt_i32x4 a, tt_i32x4 b)
{
#if TT_HAS_MVE
    return vqaddq_s32(a, b);
#else
    TT_EACH(tt_add(a[i], b[i]))
#endif
}

/* tt_requantise; -31 <= shift < 0. Halves are rounded up, and less one a negative number's is rounded down. */
static inline tt_i32x4 tt_requantise_down_x4(tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift)
{
#if TT_HAS_MVE
    const tt_i32x4 high = vqrdmulhq_s32(acc, multiplier);
    return vrshlq_s32(vqaddq_s32(high, vshrq_n_s32(high, 31)), shift);
#else
    TT_EACH(tt_requantise(acc[i], multiplier[i], shift[i]))
#endif
}

/* tt_requantise where all negative results count as the same: they are rounded as positive ones are. */
static inline tt_i32x4 tt_requantise_down_positive_x4(tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift)
{
#if TT_HAS_MVE
    return vrshlq_s32(vqrdmulhq_s32(acc, multiplier), shift);
#else
    return tt_requantise_down_x4(acc, multiplier, shift);
#endif
}

/* tt_requantise; -31 <= shift <= 31. */
static inline tt_i32x4 tt_requantise_x4(tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift)
{
#if TT_HAS_MVE
    const tt_i32x4 none = tt_all(0), down = vminq_s32(shift, none);
    const tt_i32x4 high = vqrdmulhq_s32(vqshlq_s32(acc, vmaxq_s32(shift, none)), multiplier);
    return vrshlq_s32(vqaddq_s32(high, vshrq_n_s32(vandq_s32(high, down), 31)), down);
#else
    TT_EACH(tt_requantise(acc[i], multiplier[i], shift[i]))
#endif
}

/* tt_halve. */
static inline TT_ALWAYS tt_i32x4 tt_halve_x4(tt_i32x4 value, int32_t times)
{
#if TT_HAS_MVE
    return vrshrq_n_s32(vqaddq_s32(value, vshrq_n_s32(value, 31)), times);
#else
    TT_EACH(tt_halve(value[i], times))
#endif
}

/* tt_rescale by a constant factor. */
static inline TT_ALWAYS tt_i32x4 tt_rescale_x4(tt_i32x4 acc, int32_t multiplier, int32_t shift)
{
#if TT_HAS_MVE
    if (shift < 0 && shift >= -31) {
        return tt_halve_x4(vqrdmulhq_n_s32(acc, multiplier), -shift);
    }
    return tt_requantise_x4(acc, tt_all(multiplier), tt_all(tt_clamp(shift, -31, 31)));
#else
    TT_EACH(tt_rescale(acc[i], multiplier, shift))
#endif
}

/* tt_saturate8, in the low bytes of the lanes; -128 <= low <= high <= 127. */
static inline TT_ALWAYS tt_i32x4 tt_saturate8_x4(tt_i32x4 value, int32_t zero, int32_t low, int32_t high)
{
#if TT_HAS_MVE
    tt_i32x4 word = zero == 0 ? value : vqaddq_n_s32(value, zero);
    __asm__("vqmovnb.s32 %q0, %q0\n\tvqmovnb.s16 %q0, %q0" : "+w"(word)); /* in place, for which there is no intrinsic */
    int8x16_t byte = vreinterpretq_s8_s32(word);
    byte = low == -128 ? byte : vmaxq_s8(byte, vdupq_n_s8((int8_t)low));
    byte = high == 127 ? byte : vminq_s8(byte, vdupq_n_s8((int8_t)high));
    return vreinterpretq_s32_s8(byte);
#else
    TT_EACH(tt_saturate8(value[i], zero, low, high))
#endif
}

/* tt_requantise of sums that a clamp to `low` ends, which may make all negative results the same. */
static inline TT_ALWAYS tt_i32x4 tt_scaled8_down_x4(
    tt_i32x4 sum, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low)
{
    return zero <= low ? tt_requantise_down_positive_x4(sum, multiplier, shift)
                       : tt_requantise_down_x4(sum, multiplier, shift);
}

static inline TT_ALWAYS tt_i32x4 tt_requantise8_down_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    const tt_i32x4 sum = tt_add_x4(acc, bias);
    return tt_saturate8_x4(tt_scaled8_down_x4(sum, multiplier, shift, zero, low), zero, low, high);
}

static inline TT_ALWAYS tt_i32x4 tt_requantise8_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    return tt_saturate8_x4(tt_requantise_x4(tt_add_x4(acc, bias), multiplier, shift), zero, low, high);
}

/* y, which `sum` was rounded to; at least 1 where `sum` is positive, and at most 0 where it is not. */
static inline TT_ALWAYS tt_i32x4 tt_above_x4(tt_i32x4 y, tt_i32x4 sum)
{
#if TT_HAS_MVE
    return vmaxq_s32(y, vminq_s32(sum, tt_all(1)));
#else
    TT_EACH(tt_above(y[i], sum[i]))
#endif
}

static inline TT_ALWAYS tt_i32x4 tt_halve_above_x4(tt_i32x4 value, int32_t times)
{
    return tt_above_x4(tt_halve_x4(value, times), value);
}

static inline TT_ALWAYS tt_i32x4 tt_requantise8_down_above_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    const tt_i32x4 sum = tt_add_x4(acc, bias);
    return tt_saturate8_x4(tt_above_x4(tt_scaled8_down_x4(sum, multiplier, shift, zero, low), sum), zero, low, high);
}

static inline TT_ALWAYS tt_i32x4 tt_requantise8_above_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    const tt_i32x4 sum = tt_add_x4(acc, bias);
    return tt_saturate8_x4(tt_above_x4(tt_requantise_x4(sum, multiplier, shift), sum), zero, low, high);
}

/* tt_requantise8_once; -31 <= shift <= 31. A vector's rounding shift rounds half up. */
static inline TT_ALWAYS tt_i32x4 tt_requantise8_once_x4(tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift,
    int32_t zero, int32_t low, int32_t high, bool above)
{
    const tt_i32x4 sum = tt_add_x4(acc, bias);
#if TT_HAS_MVE
    const tt_i32x4 none = tt_all(0), lifted = vqshlq_s32(sum, vmaxq_s32(shift, none));
    const tt_i32x4 product = vpselq_s32(
        vqdmulhq_s32(lifted, multiplier), vqrdmulhq_s32(lifted, multiplier), vcmpltq_n_s32(shift, 0));
    const tt_i32x4 y = vrshlq_s32(product, vminq_s32(shift, none));
#else
    tt_i32x4 y;
    for (int32_t i = 0; i < 4; i++) {
        y[i] = tt_requantise_once(sum[i], multiplier[i], shift[i]);
    }
#endif
    return tt_saturate8_x4(above ? tt_above_x4(y, sum) : y, zero, low, high);
}

/* What becomes of a sum: shifts_down, above, once: see QConvAttrs. */
typedef struct tt_end8 {
    int32_t zero, low, high;
    bool shifts_down, above, once;
} tt_end8;

static inline TT_ALWAYS tt_end8 tt_end8_of(
    int32_t zero, int32_t low, int32_t high, int32_t shifts_down, int32_t above, int32_t once)
{
    return (tt_end8){zero, low, high, shifts_down != 0, above != 0, once != 0};
}

static inline TT_ALWAYS tt_i32x4 tt_ended8_x4(
    tt_i32x4 sums, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, tt_end8 end)
{
    if (end.once) {
        return tt_requantise8_once_x4(sums, bias, multiplier, shift, end.zero, end.low, end.high, end.above);
    }
    if (end.shifts_down) {
        return end.above ? tt_requantise8_down_above_x4(sums, bias, multiplier, shift, end.zero, end.low, end.high)
                         : tt_requantise8_down_x4(sums, bias, multiplier, shift, end.zero, end.low, end.high);
    }
    return end.above ? tt_requantise8_above_x4(sums, bias, multiplier, shift, end.zero, end.low, end.high)
                     : tt_requantise8_x4(sums, bias, multiplier, shift, end.zero, end.low, end.high);
}

/* -1 where a clamp to [low, high] let an int8 pass, else 0. */
static inline tt_i32x4 tt_passes_x4(tt_i32x4 value, int32_t low, int32_t high)
{
#if TT_HAS_MVE
    return vshrq_n_s32(vbicq_s32(vsubq_n_s32(value, high), vsubq_n_s32(value, low + 1)), 31);
#else
    return ((value - high) & ~(value - (low + 1))) >> 31;
#endif
}

/* tt_error of four above -2^31. */
static inline tt_i32x4 tt_error_x4(tt_i32x4 value, int32_t *peak)
{
#if TT_HAS_MVE
    *peak = (int32_t)vmaxavq_s32((uint32_t)*peak, value);
    return tt_clamp_x4(value, -127, 127);
#else
    TT_EACH(tt_error(value[i], peak))
#endif
}

/* The same, in loops that have no registers for bounds: a branch as long as the peak is small. */
static inline tt_i32x4 tt_usual_error_x4(tt_i32x4 value, int32_t *peak)
{
#if TT_HAS_MVE
    const int32_t largest = (int32_t)vmaxavq_s32((uint32_t)*peak, value);
    *peak = largest;
    return TT_LIKELY(largest <= 127) ? value : tt_clamp_x4(value, -127, 127);
#else
    return tt_error_x4(value, peak);
#endif
}

/* Four errors, 0 where keep is 0. */
static inline tt_i32x4 tt_rescaled_error_x4(
    tt_i32x4 keep, tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift, int32_t *peak)
{
    return tt_error_x4(tt_requantise_x4(acc, multiplier, shift) & keep, peak);
}

/* tt_lifted: `lift` is the same for all. */
static inline tt_i32x4 tt_lifted_x4(tt_i32x4 error, int32_t exponent, int32_t lift)
{
#if TT_HAS_MVE
    if (TT_LIKELY(lift >= 0)) {
        return vshlq_r_s32(error, lift);
    }
    for (int i = 0; i < 4; ++i) {
        error[i] = tt_aligned(error[i], exponent);
    }
    return error;
#else
    TT_EACH(tt_lifted(error[i], exponent, lift))
#endif
}

static inline TT_ALWAYS tt_i32x4 tt_summed_error_x4(tt_i32x4 keep, tt_i32x4 sum, int32_t bits, int32_t *peak)
{
    return tt_error_x4(tt_halve_x4(sum, bits) & keep, peak);
}

/* The words of which tt_noise of the weights from `index` on is made. */
static inline tt_i32x4 tt_words_x4(int32_t state, int32_t salt, int32_t index)
{
    const uint32_t first = (uint32_t)state + (uint32_t)salt + (uint32_t)index * 0x9e3779b1u;
#if TT_HAS_MVE
    return (tt_i32x4)vaddq_n_u32(vmulq_n_u32(tt_count_x4(), 0x9e3779b1u), first);
#else
    TT_EACH((int32_t)(first + (uint32_t)i * 0x9e3779b1u))
#endif
}

/* The noise of words. */
static inline tt_i32x4 tt_mixed_x4(tt_i32x4 words)
{
#if TT_HAS_MVE
    const uint32x4_t mixed = (uint32x4_t)words ^ vshrq_n_u32((uint32x4_t)words, 15);
    return (tt_i32x4)vshrq_n_u32(vaddq_n_u32(vmulq_n_u32(mixed, 1664525u), 1013904223u), 24);
#else
    TT_EACH(tt_noise(words[i], 0, 0))
#endif
}

/* tt_noise of the weights from `index` on. */
static inline tt_i32x4 tt_noise_x4(int32_t state, int32_t salt, int32_t index)
{
    return tt_mixed_x4(tt_words_x4(state, salt, index));
}

/* tt_moved_weight of four weights of a channel: apart, so that the usual moves stay in registers. */
TT_SHARED tt_i32x4 tt_moved_x4(tt_i32x4 weight, tt_i32x4 gradient, int32_t multiplier, int32_t exponent, tt_i32x4 noise,
    int32_t limit)
{
    for (int i = 0; i < 4; ++i) {
        weight[i] = tt_moved_weight(weight[i], gradient[i], multiplier, exponent, noise[i], limit);
    }
    return weight;
}

/* tt_moved_fine of four weights of a channel, whose fractions follow each other in memory, likewise. */
TT_SHARED tt_i32x4 tt_moved_fine_x4(int8_t *fraction, tt_i32x4 weight, tt_i32x4 gradient, int32_t multiplier,
    int32_t exponent, int32_t limit, int32_t skip)
{
    for (int i = skip; i < 4; ++i) {
        weight[i] = tt_moved_fine(fraction + i, weight[i], gradient[i], multiplier, exponent, limit);
    }
    return weight;
}

#if TT_HAS_MVE
/* Whether a move is below 2^30, and rounded by a shift of 1 to 30 bits after the high word of a product. */
static inline TT_ALWAYS bool tt_is_quick(int32_t down)
{
    return TT_LIKELY(down <= -33 && down >= -62);
}

/* A move of tt_is_quick. spare: bits by which gradients are lifted. */
static inline TT_ALWAYS tt_i32x4 tt_quick_x4(tt_i32x4 gradient, int32_t multiplier, int32_t down, int32_t spare)
{
    const tt_i32x4 lifted = __builtin_constant_p(spare) ? gradient << spare : vshlq_r_s32(gradient, spare);
    return vrshlq_n_s32(vmulhq_s32(lifted, tt_all(multiplier)), down + 32);
}

/* Bits that the largest of four has to spare. */
static inline TT_ALWAYS int32_t tt_spare_x4(tt_i32x4 value)
{
    const uint32_t largest = vmaxavq_s32(0, value);
    return largest >> 31 != 0 ? 0 : __builtin_clz(largest | 1u) - 1;
}
#endif

/* tt_quick_move of four weights of a channel. */
static inline tt_i32x4 tt_quick_move_x4(tt_i32x4 weight, tt_i32x4 gradient, int32_t multiplier, int32_t exponent,
    tt_i32x4 noise, int32_t limit, int32_t spare)
{
#if TT_HAS_MVE
    if (tt_is_quick(exponent - spare)) {
        const tt_i32x4 moved = weight * 256 + noise - tt_quick_x4(gradient, multiplier, exponent - spare, spare);
        return tt_clamp_x4(moved >> 8, -limit, limit);
    }
#endif
    (void)spare;
    return tt_moved_x4(weight, gradient, multiplier, exponent, noise, limit);
}

/* tt_subtract of a bias and tt_scaled, four times. */
TT_SHARED tt_i32x4 tt_moved_bias_x4(tt_i32x4 bias, tt_i32x4 summed, tt_i32x4 multiplier, tt_i32x4 exponent)
{
#if TT_HAS_MVE
    const tt_i32x4 lifted = vsubq_n_s32(exponent, 16);
    if (TT_LIKELY(vmaxavq_s32(0, summed) < 1u << 14 && vmaxvq_s32(INT32_MIN, lifted) <= -33)) {
        /* as in tt_stepped_bias; a shift by more than 30 bits would leave nothing either */
        const tt_i32x4 down = vmaxq_s32(vaddq_n_s32(lifted, 32), tt_all(-30));
        return vqsubq_s32(bias, vrshlq_s32(vmulhq_s32(summed << 16, multiplier), down));
    }
    if (vmaxvq_s32(INT32_MIN, exponent) <= -33 && vminvq_s32(INT32_MAX, exponent) >= -62) {
        return vqsubq_s32(bias, vrshlq_s32(vmulhq_s32(summed, multiplier), vaddq_n_s32(exponent, 32)));
    }
#endif
    for (int i = 0; i < 4; ++i) {
        bias[i] = tt_subtract(bias[i], tt_scaled(summed[i], multiplier[i], exponent[i]));
    }
    return bias;
}

/* tt_high_multiply by a scalar. */
static inline tt_i32x4 tt_high_multiply_x4(tt_i32x4 a, int32_t b)
{
#if TT_HAS_MVE
    return vqrdmulhq_n_s32(a, b);
#else
    TT_EACH(tt_high_multiply(a[i], b))
#endif
}

#endif
