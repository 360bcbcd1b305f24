/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Scalar helpers in integers: fixed point, int8 errors, stochastic rounding.
 *
 * Twins in compiler/tinytrain_compile/ops/fixed_point.py and int8/pointwise.py. Sums that could overflow are
 * saturated; right shifts of negative numbers are arithmetic, as GCC, Clang and Arm define them. A factor f is stored
 * as (multiplier, shift): f = multiplier * 2^(shift - 31), multiplier 0 or in [2^30, 2^31). Exponents stay far inside
 * +-2^30. */
#ifndef TT_FIXED_H
#define TT_FIXED_H

#include "tt_runtime.h"

static inline int32_t tt_clamp(int32_t value, int32_t low, int32_t high)
{
    return value < low ? low : value > high ? high : value;
}

static inline int32_t tt_clamp64(int64_t value)
{
    return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

/* Saturating a + b. */
static inline int32_t tt_add(int32_t a, int32_t b)
{
    const uint32_t sum = (uint32_t)a + (uint32_t)b;
    if (((((uint32_t)a ^ sum) & ((uint32_t)b ^ sum)) >> 31) != 0u) {
        return a < 0 ? INT32_MIN : INT32_MAX;
    }
    return (int32_t)sum;
}

/* Saturating a - b. */
static inline int32_t tt_subtract(int32_t a, int32_t b)
{
    const uint32_t difference = (uint32_t)a - (uint32_t)b;
    if (((((uint32_t)a ^ (uint32_t)b) & ((uint32_t)a ^ difference)) >> 31) != 0u) {
        return a < 0 ? INT32_MIN : INT32_MAX;
    }
    return (int32_t)difference;
}

/* Saturating value * 2^bits; bits >= 0, above 31 they count as 31. */
static inline int32_t tt_shift_left(int32_t value, int32_t bits)
{
    const uint32_t n = bits > 31 ? 31u : (uint32_t)bits;
    if (value > (INT32_MAX >> n)) {
        return INT32_MAX;
    }
    if (value < (INT32_MIN >> n)) {
        return INT32_MIN;
    }
    return (int32_t)((uint32_t)value << n);
}

/* value / 2^bits, ties away from zero; bits >= 0, above 31 they count as 31. */
static inline int32_t tt_shift_right(int32_t value, int32_t bits)
{
    const uint32_t n = bits > 31 ? 31u : (uint32_t)bits;
    const uint32_t mask = (1u << n) - 1u;
    const uint32_t half = (mask >> 1) + (value < 0 ? 1u : 0u);
    return (value >> n) + (((uint32_t)value & mask) > half ? 1 : 0);
}

/* value * 2^exponent: saturating to the left, rounded to the right. */
static inline int32_t tt_shift(int32_t value, int32_t exponent)
{
    return exponent > 0 ? tt_shift_left(value, exponent) : tt_shift_right(value, -exponent);
}

/* a b / 2^31, rounded half up. Not for both at INT32_MIN (a multiplier is never negative). */
static inline int32_t tt_high_multiply(int32_t a, int32_t b)
{
#if defined(__thumb__) && !defined(__thumb2__)
    /* Armv6-M multiplies 32 bits only. No sum overflows: halves are below 2^16, and upper ones within +-2^15. */
    const int32_t a_low = a & 0xffff, a_high = a >> 16, b_low = b & 0xffff, b_high = b >> 16;
    const int32_t middle = a_high * b_low + (int32_t)(((uint32_t)a_low * (uint32_t)b_low) >> 16);
    const int32_t rest = a_low * b_high + (middle & 0xffff); /* bits 16 to 31 of the product are its low ones */
    const int32_t high = a_high * b_high + (middle >> 16) + (rest >> 16);
    return (int32_t)(((uint32_t)high << 1) + ((((uint32_t)rest >> 14 & 3u) + 1u) >> 1));
#else
    return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);
#endif
}

/* a b / 2^31, rounded down; otherwise as tt_high_multiply. */
static inline int32_t tt_high_floor(int32_t a, int32_t b)
{
#if defined(__thumb__) && !defined(__thumb2__)
    const int32_t a_low = a & 0xffff, a_high = a >> 16, b_low = b & 0xffff, b_high = b >> 16;
    const int32_t middle = a_high * b_low + (int32_t)(((uint32_t)a_low * (uint32_t)b_low) >> 16);
    const int32_t rest = a_low * b_high + (middle & 0xffff);
    const int32_t high = a_high * b_high + (middle >> 16) + (rest >> 16);
    return (int32_t)(((uint32_t)high << 1) + ((uint32_t)rest >> 15 & 1u));
#else
    return (int32_t)(((int64_t)a * b) >> 31);
#endif
}

/* Armv6-M: acc times a multiplier, shifted right by 31 and by n = 1 to 31 more, rounded twice, plus `zero`. Both roundings are
 * one sum, acc multiplier + 2^(n + 30) +- 2^30 (the sign of acc), and its upper half is the carry of the last shift. Its lower
 * 16 bits do not matter: +-2^14 is added to what is above them. Halves of a sum that fits 16 bits take two multiplications
 * rather than four, and leave no bits but the sign where n + 15 is above 31. In: a, m; n plus some multiple of 256 that
 * `zero` may read. Out: m. */
#if TT_HAS_THUMB1
#define TT_SIGNED_ROUND(sum) "asrs %[a], %[a], #31\n\tadds %[a], %[a]\n\tadds %[a], #1\n\tlsls %[a], #14\n\tadds " sum ", %[a]\n\t"
#define TT_POSITIVE_ROUND(sum) "movs %[a], #1\n\tlsls %[a], #14\n\tadds " sum ", %[a]\n\t"
#define TT_NARROW_PRODUCT(shift, round, zero)                                                                          \
    "lsrs %[h], %[m], #16\n\tuxth %[m], %[m]\n\tmuls %[h], %[a]\n\tmuls %[m], %[a]\n\t" shift " %[m], #16\n\t"         \
    "adds %[m], %[h]\n\t" round("%[m]") zero "adds %[n], #15\n\tasrs %[m], %[n]\n\tadcs %[m], %[h]\n\t"
#define TT_WIDE_PRODUCT(round, zero)                                                                                   \
    "uxth %[t], %[a]\n\tasrs %[a], #16\n\tuxth %[u], %[m]\n\tlsrs %[m], #16\n\t"                                     \
    "movs %[h], %[t]\n\tmuls %[h], %[u]\n\tlsrs %[h], #16\n\tmuls %[u], %[a]\n\tadds %[u], %[h]\n\t"               \
    "muls %[t], %[m]\n\tuxth %[h], %[u]\n\tadds %[t], %[h]\n\tmuls %[m], %[a]\n\tasrs %[u], #16\n\t"               \
    "adds %[m], %[u]\n\t" round("%[t]") "asrs %[h], %[t], #16\n\tadds %[m], %[h]\n\t" zero                          \
    "subs %[n], #1\n\tlsls %[t], #17\n\tasrs %[m], %[n]\n\tadcs %[m], %[h]\n\t"
#define TT_NO_ZERO "movs %[h], #0\n\t"
static inline int32_t tt_high_halved(int32_t acc, int32_t multiplier, int32_t down)
{
    int32_t h, t, u;
    __asm__(".syntax unified\n\tsxth %[h], %[a]\n\tcmp %[h], %[a]\n\tbne 1f\n\t"
            TT_NARROW_PRODUCT("asrs", TT_SIGNED_ROUND, TT_NO_ZERO)
            "b 2f\n1:\n\t" TT_WIDE_PRODUCT(TT_SIGNED_ROUND, TT_NO_ZERO) "2:"
            : [a] "+l"(acc), [m] "+l"(multiplier), [n] "+l"(down), [h] "=&l"(h), [t] "=&l"(t), [u] "=&l"(u)
            :
            : "cc");
    return multiplier;
}
#endif

/* acc times a factor, rounded twice: CMSIS-NN's requantisation, with a saturating left shift. */
TT_SHARED int32_t tt_requantise(int32_t acc, int32_t multiplier, int32_t shift)
{
    if (shift > 0) {
        return tt_high_multiply(tt_shift_left(acc, shift), multiplier);
    }
#if TT_HAS_THUMB1
    if (shift < 0) {
        return tt_high_halved(acc, multiplier, shift < -31 ? 31 : -shift);
    }
#endif
    return tt_shift_right(tt_high_multiply(acc, multiplier), -shift);
}

/* acc times a factor, rounded once: to the nearest, ties up. LiteRT's requantisation of a dense layer. */
TT_SHARED int32_t tt_requantise_once(int32_t acc, int32_t multiplier, int32_t shift)
{
    if (shift >= 0) {
        return tt_high_multiply(tt_shift_left(acc, shift), multiplier);
    }
    const int32_t n = shift < -31 ? 31 : -shift;
    return ((tt_high_floor(acc, multiplier) >> (n - 1)) + 1) >> 1;
}

/* value * multiplier * 2^exponent through 64 bits, rounded half up, saturated. */
static inline int32_t tt_scaled(int32_t value, int32_t multiplier, int32_t exponent)
{
    int64_t product = (int64_t)value * multiplier;
    if (exponent >= 0) {
        return tt_shift_left(tt_clamp64(product), exponent);
    }
    const uint32_t n = exponent < -62 ? 62u : (uint32_t)-exponent;
    if (n > 32u) { /* the low word does not matter */
        return ((int32_t)(product >> 32) + (1 << (n - 33u))) >> (n - 32u);
    }
    product = (product + ((int64_t)1 << (n - 1u))) >> n;
    return tt_clamp64(product);
}

/* A bias less tt_scaled of its gradient. */
static inline int32_t tt_moved_bias(int32_t bias, int32_t gradient, int32_t multiplier, int32_t exponent)
{
    return tt_subtract(bias, tt_scaled(gradient, multiplier, exponent));
}

/* The same by what its step is made of: a function, for it is needed once a channel and is long. rate: multiplier and shift;
 * p: of the gradient. */
TT_SHARED int32_t tt_stepped_bias(
    int32_t bias, int32_t gradient, int32_t multiplier, int32_t shift, const int32_t *rate, const int32_t *p)
{
    /* a small gradient is lifted, so that most products need their upper word alone; no sum is beyond 2^61 */
    const int32_t lift = gradient >= -(1 << 14) && gradient < 1 << 14 ? 16 : 0;
    const int32_t exponent = shift + rate[1] + p[0] - 31 - lift;
    return tt_moved_bias(bias, gradient * (1 << lift), tt_high_multiply(multiplier, rate[0]), exponent);
}

/* value + zero in [low, high], as int8; no sum can overflow. */
static inline int8_t tt_saturate8(int32_t value, int32_t zero, int32_t low, int32_t high)
{
    return (int8_t)(tt_clamp(value, low - zero, high - zero) + zero);
}

/* An error as int8 in +-127; *peak gathers the largest magnitude before that. */
static inline int8_t tt_error(int32_t value, int32_t *peak)
{
    const int32_t kept = value == INT32_MIN ? -INT32_MAX : value;
    const int32_t magnitude = kept < 0 ? -kept : kept;
    if (magnitude > *peak) {
        *peak = magnitude;
    }
    return (int8_t)tt_clamp(value, -127, 127);
}

/* Whether a clamp to [low, high] let this value pass: it is at neither end. */
static inline bool tt_passes(int32_t value, int32_t low, int32_t high)
{
    return value > low && value < high;
}

/* An int8 error as a summand: 8 bits of fraction after `exponent` is applied, within +-2^29. */
static inline int32_t tt_aligned(int32_t error, int32_t exponent)
{
    return tt_clamp(tt_shift(error * 65536, exponent - 8), -(1 << 29), 1 << 29);
}

/* One byte of noise for the weight at `index`: the high byte of an LCG step on a mixed word. */
static inline int32_t tt_noise(int32_t state, int32_t salt, int32_t index)
{
    uint32_t word = (uint32_t)state + (uint32_t)salt + (uint32_t)index * 0x9e3779b1u;
    word ^= word >> 15;
    return (int32_t)((word * 1664525u + 1013904223u) >> 24);
}

/* Next state of the noise. */
static inline int32_t tt_next_noise(int32_t state)
{
    return (int32_t)((uint32_t)state * 1664525u + 1013904223u);
}

/* A weight after one step with stochastic rounding: (multiplier, exponent) scale the gradient to 1/256 of a weight. */
TT_SHARED int8_t tt_moved_weight(
    int32_t weight, int32_t gradient, int32_t multiplier, int32_t exponent, int32_t noise, int32_t limit)
{
    const int32_t move = tt_clamp(tt_scaled(gradient, multiplier, exponent), -(1 << 24), 1 << 24);
    return (int8_t)tt_clamp((weight * 256 - move + noise) >> 8, -limit, limit);
}

/* A weight with 8 fraction bits after one step: 256 weight + *fraction, less the move, rounded half up to a weight. */
TT_SHARED int8_t tt_moved_fine(
    int8_t *fraction, int32_t weight, int32_t gradient, int32_t multiplier, int32_t exponent, int32_t limit)
{
    const int32_t move = tt_clamp(tt_scaled(gradient, multiplier, exponent), -(1 << 24), 1 << 24);
    const int32_t value = tt_clamp(weight * 256 + *fraction - move, -limit * 256, limit * 256);
    const int32_t rounded = (value + 128) >> 8;
    *fraction = (int8_t)(value - rounded * 256);
    return (int8_t)rounded;
}

/* Momentum: gradient + momentum velocity, which then keeps this sum over N, rounded stochastically to an int8.
 * rate: {.., .., momentum N as multiplier and shift, 1 / N likewise}; state: {exponent to store with, .., exponent that
 * the velocity is stored with}; unit: exponent of the gradient. *peak gathers the largest magnitude. */
TT_SHARED int32_t tt_momentum(int8_t *velocity, int32_t gradient, int32_t *peak, const int32_t *rate,
    const int32_t *state, int32_t unit, int32_t noise)
{
    const int32_t total = tt_add(gradient, tt_scaled(*velocity, rate[2], rate[3] - 31 + state[2] - unit));
    const int32_t fine = tt_clamp(tt_scaled(total, rate[4], rate[5] - 23 + unit - state[0]), -(1 << 30), 1 << 30);
    const int32_t least = total != 0 ? 1 : 0;
    const int32_t magnitude = tt_clamp(((fine < 0 ? -fine : fine) + 255) >> 8, least, 1 << 22);
    if (magnitude > *peak) {
        *peak = magnitude;
    }
    *velocity = (int8_t)tt_clamp((fine + noise) >> 8, -127, 127);
    return total;
}

/* Doubles the unit of a channel if one of its weights stands at the limit and all shifts have room: halves weights (with
 * their 8 fraction bits) and bias, ties away from zero, and moves the shifts that stand for the unit. Returns the shift
 * of the weight's update constant; fraction, and bias with the shift of its own, may be null. */
TT_SHARED int8_t tt_rescale_channel(int8_t *w, int8_t *fraction, int32_t count, int32_t limit, int32_t shift,
    int8_t *forward, int8_t *error, int32_t *bias, int8_t *bias_shift)
{
    bool full = false;
    for (int32_t i = 0; i < count; ++i) {
        full = full || w[i] >= limit || w[i] <= -limit;
    }
    const bool room = *forward < 100 && *error < 100 && shift > -99 && (bias_shift == NULL || *bias_shift > -99);
    if (!full || !room) {
        return (int8_t)shift;
    }
    for (int32_t i = 0; i < count; ++i) {
        if (fraction == NULL) {
            w[i] = (int8_t)tt_shift_right(w[i], 1);
        } else {
            const int32_t value = tt_shift_right(w[i] * 256 + fraction[i], 1);
            w[i] = (int8_t)((value + 128) >> 8);
            fraction[i] = (int8_t)(value - w[i] * 256);
        }
    }
    ++*forward;
    ++*error;
    if (bias_shift != NULL) {
        *bias = tt_shift_right(*bias, 1);
        *bias_shift = (int8_t)(*bias_shift - 2);
    }
    return (int8_t)(shift - 2);
}

/* The nearest integer, ties to even, for |x| < 2^22. */
static inline int32_t tt_round_even(float x)
{
    return (int32_t)((x + 12582912.0f) - 12582912.0f);
}

/* The nearest int32, ties to even, saturating; 0 for NaN: what an FPU does by itself. */
static inline int32_t tt_rounded(float x)
{
#if TT_HAS_FPU
    float y; /* the bits of an integer: where the instruction leaves them */
    __asm__("vcvtr.s32.f32 %0, %1" : "=t"(y) : "t"(x));
    return (int32_t)tt_bits(y);
#elif defined(__riscv_flen) && defined(__GNUC__)
    int32_t y;
    __asm__("fcvt.w.s %0, %1, rne" : "=r"(y) : "f"(x));
    return x == x ? y : 0;
#else
    if (!(x > -2147483648.0f && x < 2147483648.0f)) {
        return x > 0.0f ? INT32_MAX : x < 0.0f ? INT32_MIN : 0;
    }
    const int32_t whole = (int32_t)x;
    const float rest = x - (float)whole, near = (whole & 1) != 0 ? 0.49999997f : 0.5f;
    return whole + (rest > near ? 1 : 0) - (rest < -near ? 1 : 0);
#endif
}

/* The nearest integer, ties to even; beyond +-1024 any integer beyond it; 0 for NaN. */
static inline int32_t tt_rounded_near(float x)
{
#if TT_HAS_FPU || (defined(__riscv_flen) && defined(__GNUC__))
    return tt_rounded(x);
#else
    const uint32_t bits = tt_bits(x), magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x44800000u) { /* 1024 */
        return magnitude > 0x7f800000u ? 0 : bits > magnitude ? -1024 : 1024;
    }
    return tt_round_even(x);
#endif
}

/* round(x * inverse) + zero in [low, high]; `inverse` is 1 / scale. NaN gives zero. */
static inline int8_t tt_quantise(float x, float inverse, int32_t zero, int32_t low, int32_t high)
{
    return tt_saturate8(tt_rounded_near(x * inverse), zero, low, high);
}

/* 2^exponent, within the normal float32 numbers. */
static inline float tt_exponent_factor(int32_t exponent)
{
    return tt_exp2i(tt_clamp(exponent, -126, 127));
}

/* The bits of the least magnitude that 2^-exponent makes 127.5, which rounds beyond 127. (The largest factor is 2^127, and
 * 2^-127 is no normal number, so the edge is made of half of 127.5.) */
static inline int32_t tt_error_edge(int32_t exponent)
{
    return (int32_t)tt_bits(63.75f * tt_exponent_factor(exponent + 1));
}

/* round(g * inverse * factor) in +-127, 0 for NaN; *peak gathers the bits of the largest |g * inverse|. A magnitude below
 * the peak and the edge (of the factor) changes neither. */
static inline int8_t tt_quantise_error(float g, float inverse, float factor, int32_t edge, int32_t *peak)
{
    const float value = g * inverse;
    const int32_t magnitude = (int32_t)(tt_bits(value) & 0x7fffffffu);
    int32_t rounded = tt_rounded_near(value * factor), top = *peak;
    if (!TT_LIKELY(magnitude < edge) || !TT_LIKELY(magnitude < top)) {
        const int32_t kept = magnitude > 0x7f800000 ? 0 : magnitude; /* NaN */
        rounded = tt_clamp(rounded, -127, 127);
        top = kept > top ? kept : top;
    }
    *peak = top; /* a store in any case, so that the peak of a loop is in a register */
    return (int8_t)rounded;
}

/* A stream keeps the last few rows of an image, row r in slot r modulo `slots`, slots `pitch` elements apart. Of `rows` rows
 * from row `first` on: at which element each begins, or -1 outside of the image of `height` rows. */
static inline void tt_find_rows(
    int32_t *row_at, int32_t rows, int32_t first, int32_t height, int32_t slots, int32_t pitch)
{
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t row = first + i;
        row_at[i] = row < 0 || row >= height ? -1 : row % slots * pitch;
    }
}

/* The same where each row of the image is followed by zeros: one in `apart` rows is of the image. */
static inline void tt_find_rows_apart(
    int32_t *row_at, int32_t rows, int32_t first, int32_t height, int32_t slots, int32_t pitch, int32_t apart)
{
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t row = (first + i) / apart, between = (first + i) % apart;
        row_at[i] = first + i < 0 || between != 0 || row >= height ? -1 : row % slots * pitch;
    }
}

#endif
