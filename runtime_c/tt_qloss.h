/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Losses in integers. Twins in compiler/tinytrain_compile/ops/int8/loss.py, int8/weighted_loss.py and int8/targets.py. */
#ifndef TT_QLOSS_H
#define TT_QLOSS_H

#include "tt_fixed.h"

/* ---- Cross entropy -------------------------------------------------------------------------------------------------- */

/* log2 of a number >= 1 with 24 bits of fraction, one bit per turn, rounded down. */
static inline int32_t tt_binary_log(int32_t value)
{
    uint32_t m = (uint32_t)value;
    int32_t result = 31 * (1 << 24);
    while ((m >> 31) == 0u) {
        m <<= 1;
        result -= 1 << 24;
    }
    for (int32_t bit = 1 << 23; bit != 0; bit >>= 1) {
        const uint64_t square = ((uint64_t)m * m) >> 31;
        const bool is_two = (square >> 32) != 0u;
        m = (uint32_t)(is_two ? square >> 1 : square);
        result += is_two ? bit : 0;
    }
    return result;
}

/* numerator / divisor with 30 bits of fraction, rounded down; 0 < numerator <= divisor. */
static inline int32_t tt_ratio(int32_t numerator, int32_t divisor)
{
    uint32_t rest = (uint32_t)numerator;
    uint32_t result = 0u;
    for (int32_t turn = 0; turn <= 30; turn++) {
        result <<= 1;
        if (rest >= (uint32_t)divisor) {
            rest -= (uint32_t)divisor;
            result |= 1u;
        }
        rest <<= 1;
    }
    return (int32_t)result;
}

/* The cross entropy of one label: ln(sum / 2^bits) + scale * distance, with loss_bits of fraction; distance is that of
 * the label's logit from the largest, (multiplier, shift) its scale. ln 2 = 1488522236 * 2^-31. */
static inline int32_t tt_cross_entropy(
    int32_t sum, int32_t bits, int32_t distance, int32_t multiplier, int32_t shift, int32_t loss_bits)
{
    const int32_t above = tt_binary_log(sum) - bits * (1 << 24);
    return tt_requantise(above, 1488522236, loss_bits - 24) + tt_requantise(distance * (1 << 22), multiplier, shift);
}

/* The float32 nearest to value * multiplier * 2^(shift - 31), ties to even, made of integers; 0 or a normal number. */
static inline float tt_scaled_float(int32_t value, int32_t multiplier, int32_t shift)
{
    const uint32_t magnitude = value < 0 ? 0u - (uint32_t)value : (uint32_t)value;
    uint64_t product = (uint64_t)magnitude * (uint32_t)multiplier;
    int32_t exponent = shift + 32 + 126; /* of the leading bit, biased, less one: the mantissa's own is added to it */
    if (product == 0u) {
        return tt_from_bits(0u);
    }
    while ((product >> 63) == 0u) {
        product <<= 1;
        exponent--;
    }
    const uint32_t high = (uint32_t)(product >> 32);
    const uint32_t rest = (high & 0xffu) | ((uint32_t)product != 0u ? 1u : 0u); /* half of the last bit is 0x80 */
    const uint32_t up = rest > 0x80u || (rest == 0x80u && (high & 0x100u) != 0u) ? 1u : 0u;
    return tt_from_bits((value < 0 ? 0x80000000u : 0u) + ((uint32_t)exponent << 23) + (high >> 8) + up);
}

/* ---- mse and bce ---------------------------------------------------------------------------------------------------- */

/* Largest magnitude of a target in fixed point, and what NaN becomes. */
#define TT_TARGET_LIMIT (1 << 30)
#define TT_NO_TARGET INT32_MIN
/* Fraction bits of a sigmoid. */
#define TT_SIGMOID_BITS 28

/* value * multiplier * 2^(shift - 31) as an integer, ties away from zero, made of the float's bits; a denormal is 0. */
TT_SHARED int32_t tt_fixed(float value, int32_t multiplier, int32_t shift)
{
    const uint32_t bits = tt_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const int32_t right = 181 - shift - (int32_t)(magnitude >> 23);
    if (magnitude > 0x7f800000u) {
        return TT_NO_TARGET;
    }
    if (magnitude < 0x00800000u || multiplier == 0) {
        return 0;
    }
    uint64_t product = (uint64_t)(((magnitude & 0x007fffffu) | 0x00800000u) << 7) * (uint32_t)multiplier;
    if (right < 1 || magnitude == 0x7f800000u) {
        product = TT_TARGET_LIMIT;
    } else if (right > 25) { /* the low word does not matter */
        const uint32_t n = right > 56 ? 31u : (uint32_t)right - 25u;
        product = ((uint32_t)(product >> 32) + (1u << (n - 1u))) >> n;
    } else {
        product = (product + ((uint64_t)64 << (uint32_t)right)) >> ((uint32_t)right + 7u);
    }
    const int32_t result = product > TT_TARGET_LIMIT ? TT_TARGET_LIMIT : (int32_t)product;
    return (bits >> 31) != 0u ? -result : result;
}

/* value less a target in its units, within +-limit; 0 if the target is NaN. */
static inline int32_t tt_difference(int32_t value, float target, int32_t multiplier, int32_t shift, int32_t limit)
{
    const int32_t wanted = tt_fixed(target, multiplier, shift);
    return wanted == TT_NO_TARGET ? 0 : tt_clamp(tt_subtract(value, wanted), -limit, limit);
}

static inline int64_t tt_product(int32_t a, int32_t b)
{
    return (int64_t)a * b;
}

static inline int64_t tt_square(int32_t value)
{
    return tt_product(value, value);
}

/* The binary cross entropy of a logit, `distance` units (multiplier, shift) from 0, with loss_bits of fraction:
 * |z| (1 - t) or |z| t, by the logit's sign, less ln(sigmoid |z|); sigmoid: the latter's, with TT_SIGMOID_BITS. */
static inline int32_t tt_sigmoid_loss(
    int32_t distance, int32_t sigmoid, float target, int32_t multiplier, int32_t shift, int32_t loss_bits)
{
    const int32_t wanted = tt_fixed(target, 1 << 30, TT_SIGMOID_BITS + 1);
    if (wanted == TT_NO_TARGET) {
        return 0;
    }
    const int32_t weight = distance > 0 ? (1 << TT_SIGMOID_BITS) - wanted : wanted;
    const int32_t far = tt_requantise((distance < 0 ? -distance : distance) * (1 << 22), multiplier, shift);
    const int32_t above = TT_SIGMOID_BITS * (1 << 24) - tt_binary_log(sigmoid);
    return tt_add(tt_scaled(far, weight, -TT_SIGMOID_BITS), tt_requantise(above, 1488522236, loss_bits - 24));
}

/* tt_scaled_float of 64 bits, cut to 31 first. */
static inline float tt_wide_float(int64_t value, int32_t multiplier, int32_t shift)
{
    uint64_t magnitude = value < 0 ? (uint64_t)-value : (uint64_t)value;
    for (; magnitude >> 31 != 0u; magnitude >>= 1) {
        shift++;
    }
    return tt_scaled_float(value < 0 ? -(int32_t)magnitude : (int32_t)magnitude, multiplier, shift);
}

/* The float32 of value / divisor times a factor; |value| < 2^62, divisor > 0. */
static inline float tt_quotient_float(int64_t value, int32_t divisor, int32_t multiplier, int32_t shift)
{
    uint64_t magnitude = value < 0 ? (uint64_t)-value : (uint64_t)value;
    if (magnitude == 0u) {
        return tt_from_bits(0u);
    }
    for (; (magnitude >> 61) == 0u; magnitude <<= 1) {
        shift--;
    }
    const int64_t quotient = (int64_t)(magnitude / (uint32_t)divisor);
    return tt_wide_float(value < 0 ? -quotient : quotient, multiplier, shift);
}

#endif
