/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Scalar helpers that generated kernels call: float32, no libm, no double, no static RAM. Integers are in tt_fixed.h.
 *
 * Every function gives the same bits on every Cortex-M and on a host, whatever the flags below allow: only additions,
 * multiplications, divisions, TT_FMA, comparisons and integer steps in a fixed order, denormals kept (FPSCR.FZ clear).
 * Where TT_FMA does not fuse, the numpy twins in compiler/tinytrain_compile/ops/scalar_math.py repeat these steps one by
 * one.
 * Polynomials are minimax fits; "fit" is the error of the polynomial alone, "error" the worst of all float32 arguments
 * (measured, in units in the last place of the result). Any NaN equals any NaN.
 */
#ifndef TT_RUNTIME_H
#define TT_RUNTIME_H

#include "tt_config.h" /* before all others: it says how this is compiled */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* TT_FMA(a, b, c): a * b + c, fused where the target can do that and the network is not of integers. The header of a
 * generated project says so (TT_HAS_FMA), so that every machine computes what the target does: one without the
 * instruction takes tt_fmaf. Where it does not fuse, an FPU has an instruction that rounds both, which GCC does not use. */
#if TT_HAS_FMA
#define TT_ADD_PRODUCT "vfma.f32 "
#define TT_SUB_PRODUCT "vfms.f32 "
#else
#define TT_ADD_PRODUCT "vmla.f32 "
#define TT_SUB_PRODUCT "vmls.f32 "
#endif
#if !TT_HAS_FMA && TT_HAS_FPU
#define TT_FMA(a, b, c) tt_mla((a), (b), (c))
static inline TT_ALWAYS float tt_mla(float a, float b, float c)
{
    __asm__(TT_ADD_PRODUCT "%0, %1, %2" : "+t"(c) : "t"(a), "t"(b));
    return c;
}
#elif !TT_HAS_FMA
#define TT_FMA(a, b, c) ((a) * (b) + (c))
#elif defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF) || defined(__FMA__)
#define TT_FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#else
#define TT_FMA(a, b, c) tt_fmaf((a), (b), (c))
#endif

/* A product that is rounded before it is added, also where TT_FMA fuses the two. */
static inline float tt_rounded_product(float a, float b)
{
    return a * b;
}

/* TT_UNSEEN(x): a variable that the compiler keeps in a core register and whose value it does not see. A vector of
 * one number is made from one: a vector of constants that GCC 12 sees, it loads from a table in the code, by two
 * instructions that it counts as one, and a large kernel then has branches that do not reach their ends. For the same
 * reason Helium kernels and helpers write no vector of constants, and none beside a vector ("x + 1"): they take an
 * intrinsic with a scalar operand ("_n"), which GCC 12 does not look into, or tt_all, tt_all_f32x4. */
#ifdef __ARM_FEATURE_MVE
#define TT_UNSEEN(x) __asm__("" : "+r"(x))
#else
#define TT_UNSEEN(x) (void)(x)
#endif

static inline uint32_t tt_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tt_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* a * b + c, rounded once, without the instruction. A double holds the product, and the sum but for what rounding loses:
 * that goes into its last bit (an inexact sum becomes odd), which is enough for the second rounding to be right. */
static inline float tt_fmaf(float a, float b, float c)
{
    const double product = (double)a * (double)b;
    double sum = product + (double)c;
    const double added = sum - product;
    const double lost = (product - (sum - added)) + ((double)c - added);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((lost > 0.0 || lost < 0.0) && (bits & 1u) == 0u) { /* not if a result is infinite or NaN */
        bits = (lost > 0.0) == (sum > 0.0) ? bits + 1u : bits - 1u;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}

/* x, with 0 for -0. */
static inline float tt_unsigned_zero(float x)
{
    return x + 0.0f;
}

/* 2 to the power n, -126 <= n <= 127. */
static inline float tt_exp2i(int32_t n)
{
    return tt_from_bits((uint32_t)(n + 127) << 23);
}

/* The part y of e^x = 2^n y, 0.7 < y < 1.42, for a finite x; the bits of n are the lowest of *shifted. fit 2^-28. */
static inline float tt_exp_part(float x, uint32_t *shifted)
{
    /* x = n ln 2 + r: 1.5 2^23 leaves no room for a fraction, so adding it rounds; n times the short first part of ln 2 is
     * exact. */
    const float rounded = TT_FMA(x, 1.44269502f, 12582912.0f);
    const float k = rounded - 12582912.0f;
    const float r = TT_FMA(k, 2.12194442e-4f, TT_FMA(k, -0.693359375f, x));
    const float z = r * r;
    const float far = TT_FMA(z, 0.00137568859f, TT_FMA(r, 0.0083697075f, 0.0416690856f));
    const float q = TT_FMA(z, far, TT_FMA(r, 0.166665211f, 0.49999997f));
    *shifted = tt_bits(rounded);
    return 1.0f + TT_FMA(z, q, r);
}

/* e to the power x where 2^n y may be out of range. */
TT_SHARED float tt_exp_at_ends(float x)
{
    if (!(x <= 88.72284f)) {
        return x > 88.72284f ? tt_from_bits(0x7f800000u) : x;
    }
    if (x < -103.98f) {
        return 0.0f;
    }
    uint32_t shifted;
    const float y = tt_exp_part(x, &shifted);
    /* Two factors: 2^n itself may be out of range. Only the last product can round (to a denormal). */
    const int32_t n = (int32_t)(shifted - 0x4b400000u);
    const int32_t half = n / 2;
    return (y * tt_exp2i(half)) * tt_exp2i(n - half);
}

/* e to the power x. Error < 1.0 ulp; overflows to inf, underflows through denormals to 0. */
static inline float tt_expf(float x)
{
    if ((tt_bits(x) & 0x7fffffffu) >= 0x42ae999au) { /* 87.3, of either sign, and NaN */
        return tt_exp_at_ends(x);
    }
    uint32_t shifted;
    const float y = tt_exp_part(x, &shifted);
    return tt_from_bits(tt_bits(y) + (shifted << 23));
}

/* Natural logarithm. Error < 1.0 ulp; log(+-0) = -inf, log(negative) = NaN. fit 2^-30. */
static inline float tt_logf(float x)
{
    uint32_t bits = tt_bits(x);
    int32_t exponent = 0;
    if (bits >= 0x7f800000u) { /* inf, NaN and everything with a sign */
        if ((bits & 0x7fffffffu) == 0u) {
            return tt_from_bits(0xff800000u);
        }
        return bits > 0xff800000u || bits < 0x80000000u ? x : tt_from_bits(0x7fc00000u);
    }
    if (bits < 0x00800000u) {
        if (bits == 0u) {
            return tt_from_bits(0xff800000u);
        }
        bits = tt_bits(x * 33554432.0f); /* a denormal times 2^25 is exact and normal */
        exponent = -25;
    }
    /* x = 2^k m with sqrt(1/2) <= m < sqrt(2) */
    bits += 0x3f800000u - 0x3f3504f3u;
    const float k = (float)(exponent + (int32_t)(bits >> 23) - 127);
    const float f = tt_from_bits((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    /* log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f / (2 + f) */
    const float s = f / (2.0f + f);
    const float z = s * s;
    const float rest = z * (0.66666776f + z * (0.39977574f + z * 0.29870936f));
    const float square = 0.5f * (f * f);
    return k * 0.693359375f - ((square - (s * (square + rest) + k * -2.12194442e-4f)) - f);
}

/* log(1 + x), accurate near 0. Error < 1.5 ulp; log1p(-1) = -inf, below -1 NaN. */
static inline float tt_log1pf(float x)
{
    const float u = 1.0f + x;
    const float d = u - 1.0f;
    if (d == 0.0f) {
        return x;
    }
    if (u == 0.0f || x - x != 0.0f) { /* -1, infinite or NaN */
        return tt_logf(u);
    }
    return tt_logf(u) + (x - d) / u; /* what rounding 1 + x lost, to first order */
}

/* Square root, correctly rounded: sqrt(-0) = -0, sqrt(negative) = NaN, and every NaN is 0x7fc00000. An FPU's instruction
 * rounds correctly, too; without one, one result bit per turn, integers only. */
static inline float tt_sqrtf(float x)
{
#if TT_HAS_FPU
    float y;
    __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
    return y == y ? y : tt_from_bits(0x7fc00000u);
#elif defined(__riscv_flen) && defined(__GNUC__)
    float y;
    __asm__("fsqrt.s %0, %1" : "=f"(y) : "f"(x)); /* its NaN is this one */
    return y;
#else
    const uint32_t bits = tt_bits(x);
    if ((bits & 0x7fffffffu) == 0u || bits == 0x7f800000u) {
        return x;
    }
    if (bits > 0x7f800000u) {
        return tt_from_bits(0x7fc00000u);
    }
    int32_t exponent = (int32_t)(bits >> 23);
    uint32_t remainder = bits & 0x007fffffu;
    if (exponent != 0) {
        remainder |= 0x00800000u;
    } else {
        exponent = 1;
        while (remainder < 0x00800000u) {
            remainder <<= 1;
            exponent--;
        }
    }
    exponent -= 127;
    if (((uint32_t)exponent & 1u) != 0u) {
        remainder <<= 1;
        exponent--;
    }
    /* root = floor(sqrt(mantissa)) with one bit below the last: doubled remainder against 2 root + bit */
    remainder <<= 1;
    uint32_t root = 0u;
    uint32_t twice_root = 0u;
    for (uint32_t bit = 0x01000000u; bit != 0u; bit >>= 1) {
        const uint32_t trial = twice_root + bit;
        if (trial <= remainder) {
            twice_root = trial + bit;
            remainder -= trial;
            root += bit;
        }
        remainder <<= 1;
    }
    /* A root is never half way between two floats, so its lowest bit alone decides the rounding. */
    return tt_from_bits(((root + 1u) >> 1) + 0x3f000000u + ((uint32_t)(exponent / 2) << 23));
#endif
}

/* Hyperbolic tangent. Error < 1.5 ulp. fit 2^-27 below 0.625; above, polynomials of quarters of an octave. */
static inline float tt_tanhf(float x)
{
    /* A number in the middle of each quarter, from 0.625 to 9.02, and the coefficients around it; rows of 32 bytes. */
    static const float parts[16][8] = {
        {0.6874732f, 0.5963563f, 0.6443591f, -0.3842676f, 0.0144578535f, 0.11946291f, -0.078812785f, 0.0f},
        {0.8123744f, 0.670898f, 0.5498958f, -0.36892408f, 0.064246744f, 0.079935044f, -0.06987973f, 0.0f},
        {0.9374493f, 0.7340481f, 0.4611733f, -0.33852354f, 0.094833486f, 0.043363262f, -0.06648473f, 0.0f},
        {1.1253259f, 0.8094135f, 0.3448498f, -0.27912748f, 0.110979125f, 0.0035762377f, -0.032017283f, 0.0f},
        {1.3747424f, 0.8797685f, 0.2260074f, -0.19883503f, 0.09959322f, -0.021125754f, -0.009519096f, 0.0f},
        {1.625279f, 0.9253863f, 0.14366017f, -0.13294147f, 0.075138375f, -0.02513554f, 0.0012715291f, 0.0f},
        {1.8746567f, 0.9540144f, 0.089856476f, -0.085724436f, 0.051832568f, -0.020859152f, 0.0044895695f, 0.0f},
        {2.2495773f, 0.97800773f, 0.043500863f, -0.042543307f, 0.027109047f, -0.012387519f, 0.00397293f, 0.0f},
        {2.749523f, 0.991852f, 0.016229663f, -0.016096732f, 0.010554689f, -0.005147216f, 0.001932286f, 0.0f},
        {3.2493773f, 0.9969939f, 0.006003156f, -0.0059848228f, 0.003966594f, -0.0019780663f, 0.0007614989f, 0.0f},
        {3.7507064f, 0.998896f, 0.002206777f, -0.0022042233f, 0.0014661916f, -0.0007373453f, 0.00029271314f, 0.0f},
        {4.5f, 0.9997532f, 0.00049352046f, -0.0004926109f, 0.00032854697f, -0.00017254586f, 6.790717e-05f, 0.0f},
        {5.5f, 0.9999666f, 6.680499e-05f, -6.669535e-05f, 4.4501558e-05f, -2.3397764e-05f, 9.225234e-06f, 0.0f},
        {6.5f, 0.99999547f, 9.041334e-06f, -9.026742e-06f, 6.023319e-06f, -3.1673903e-06f, 1.2491414e-06f, 0.0f},
        {7.5f, 0.9999994f, 1.2236163e-06f, -1.221646e-06f, 8.151802e-07f, -4.2867518e-07f, 1.6906466e-07f, 0.0f},
        {8.51f, 0.99999994f, 1.6231952e-07f, -1.6203637e-07f, 1.0813213e-07f, -5.6980213e-08f, 2.24598e-08f, 0.0f},
    };
    const uint32_t size = tt_bits(x) & 0x7fffffffu;
    if (!TT_LIKELY(size >= 0x3f200000u)) { /* 0.625 */
        const float z = x * x;
        const float far = TT_FMA(z * z, -0.005697401f, TT_FMA(z, 0.020632561f, -0.0537378f));
        const float p = TT_FMA(z * z, far, TT_FMA(z, 0.1333142f, -0.3333328f));
        return x * TT_FMA(z, p, 1.0f);
    }
    const uint32_t sign = tt_bits(x) & 0x80000000u;
    if (size >= 0x411051ecu) { /* 9.02; NaN stays */
        return size > 0x7f800000u ? x : tt_from_bits(0x3f800000u | sign);
    }
    const float *const part = parts[(int32_t)(size >> 21) - 505];
#if TT_HAS_FPU
    float y;
    __asm__("vldmia %1, {s0-s6}\n\tvsub.f32 s0, %2, s0\n\t" TT_ADD_PRODUCT "s5, s0, s6\n\t" TT_ADD_PRODUCT "s4, s0, s5\n\t"
            TT_ADD_PRODUCT "s3, s0, s4\n\t" TT_ADD_PRODUCT "s2, s0, s3\n\t" TT_ADD_PRODUCT "s1, s0, s2\n\tvmov %0, s1"
            : "=r"(y) : "r"(part), "t"(tt_from_bits(size)), "m"(*(const float(*)[8])part)
            : "s0", "s1", "s2", "s3", "s4", "s5", "s6");
    return tt_from_bits(tt_bits(y) | sign);
#else
    const float t = tt_from_bits(size) - part[0];
    const float far = TT_FMA(t, TT_FMA(t, TT_FMA(t, part[6], part[5]), part[4]), part[3]);
    return tt_from_bits(tt_bits(TT_FMA(t, TT_FMA(t, far, part[2]), part[1])) | sign);
#endif
}

/* Error function. Error < 1.5 ulp. fit 2^-31 below 0.92; above, 1 - exp(p(x)) with p = log(erfc). */
static inline float tt_erff(float x)
{
    const uint32_t sign = tt_bits(x) & 0x80000000u;
    const float a = tt_from_bits(tt_bits(x) & 0x7fffffffu);
    float y;
    if (a < 0.92f) {
        const float z = a * a;
        float p = TT_FMA(z, 8.3763836e-05f, -0.00081441854f);
        p = TT_FMA(z, p, 0.0052011623f);
        p = TT_FMA(z, p, -0.026859451f);
        p = TT_FMA(z, p, 0.112836964f);
        p = TT_FMA(z, p, -0.37612635f);
        p = TT_FMA(z, p, 0.12837917f);
        y = TT_FMA(a, p, a);
    } else if (a < 3.925f) {
        float p = TT_FMA(a, 0.00019604235f, -0.0030442483f);
        p = TT_FMA(a, p, 0.022231027f);
        p = TT_FMA(a, p, -0.103940114f);
        p = TT_FMA(a, p, -0.6371725f);
        p = TT_FMA(a, p, -1.1276814f);
        p = TT_FMA(a, p, -0.00019428242f);
        y = 1.0f - tt_expf(p);
    } else {
        y = a > 3.0f ? 1.0f : a; /* NaN stays */
    }
    return tt_from_bits(tt_bits(y) | sign);
}

/* Logistic function 1 / (1 + exp(-x)). Error < 2.5 ulp; never overflows, underflows through denormals to 0. */
static inline float tt_sigmoidf(float x)
{
    const float e = tt_expf(tt_from_bits(tt_bits(x) | 0x80000000u));
    return (tt_bits(x) >= 0x80000000u ? e : 1.0f) / (1.0f + e);
}

/* The quadrant q (of which two bits count) and the rest r in [-pi/4, pi/4] of a >= 0, finite: a = q pi/2 + r. 2/pi is
 * multiplied in integers: of the bits that make whole turns none is needed, and 96 of those behind are enough for all a. */
static inline uint32_t tt_quadrant(float a, float *r)
{
    static const uint32_t two_over_pi[8] = {
        0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
    };
    if (a < 0.7853982f) {
        *r = a;
        return 0u;
    }
    const uint32_t bits = tt_bits(a);
    const uint32_t m = (bits & 0x007fffffu) | 0x00800000u;
    const uint32_t start = (bits >> 23) - 120u; /* the bit of the table that counts 2 in m 2/pi 2^exponent */
    const uint32_t *word = two_over_pi + start / 32u;
    const uint32_t shift = start % 32u;
    uint32_t part[3];
    for (uint32_t i = 0u; i < 3u; i++) {
        const uint64_t both = ((uint64_t)word[i] << 32) | word[i + 1u];
        part[i] = (uint32_t)(both >> (32u - shift));
    }
    const uint64_t middle = (uint64_t)m * part[1] + (((uint64_t)m * part[2]) >> 32);
    const uint64_t turns = (((uint64_t)(m * part[0]) << 32) + middle); /* in 2^-64 turns */
    const uint32_t quadrant = (uint32_t)((turns + (UINT64_C(1) << 61)) >> 62);
    const uint64_t rest = turns - ((uint64_t)quadrant << 62); /* two's complement */
    const bool below = (rest >> 63) != 0u;
    const float size = (float)(below ? 0u - rest : rest) * 3.4061217e-19f; /* pi/2 2^-62 */
    *r = below ? -size : size;
    return quadrant;
}

/* Sine of r in [-pi/4, pi/4] advanced by q quarters of a turn. fit 2^-28. */
static inline float tt_sine_of(uint32_t q, float r)
{
    const float z = r * r;
    float y;
    if ((q & 1u) == 0u) {
        y = r + (r * z) * (-0.16666655f + z * (0.008332161f + z * -0.00019515296f));
    } else {
        y = (1.0f - 0.5f * z) + (z * z) * (0.041666646f + z * (-0.0013887316f + z * 2.4433157e-05f));
    }
    return (q & 2u) == 0u ? y : -y;
}

/* Sine and cosine of any angle in radians. Error < 3.0 ulp; of infinities NaN. */
static inline float tt_sinf(float x)
{
    const uint32_t sign = tt_bits(x) & 0x80000000u;
    const float a = tt_from_bits(tt_bits(x) ^ sign);
    if (!(a <= 3.4028235e38f)) {
        return x - x;
    }
    float r;
    const uint32_t q = tt_quadrant(a, &r);
    return tt_from_bits(tt_bits(tt_sine_of(q, r)) ^ sign);
}

static inline float tt_cosf(float x)
{
    const float a = tt_from_bits(tt_bits(x) & 0x7fffffffu);
    if (!(a <= 3.4028235e38f)) {
        return x - x;
    }
    float r;
    const uint32_t q = tt_quadrant(a, &r);
    return tt_sine_of(q + 1u, r);
}

/* Whether a number is neither NaN nor infinite, without float instructions. */
/* a to the power of b, as exp(b log |a|): error some |b log a| ulp. Of a negative a for whole b (8388608 and above count
 * as even), else NaN. */
static inline float tt_powf(float a, float b)
{
    const float size = tt_from_bits(tt_bits(a) & 0x7fffffffu);
    const bool large = !(b < 8388608.0f && b > -8388608.0f);
    const int32_t whole = large ? 0 : (int32_t)b;
    float y = tt_expf(b * tt_logf(size));
    if (b == 0.0f) {
        return 1.0f;
    }
    if (size == 0.0f) {
        y = b > 0.0f ? 0.0f : tt_from_bits(0x7f800000u);
    }
    if (a < 0.0f) {
        if (!large && (float)whole != b) {
            return tt_from_bits(0x7fc00000u);
        }
        y = (whole & 1) != 0 ? -y : y;
    }
    return y;
}

/* Every bit of a word changes about half of the result's (MurmurHash3's last step). */
static inline uint32_t tt_mix(uint32_t word)
{
    word ^= word >> 16;
    word *= 0x85ebca6bu;
    word ^= word >> 13;
    word *= 0xc2b2ae35u;
    return word ^ (word >> 16);
}

/* 24 random bits for an element of a sample: a hash of both. */
static inline int32_t tt_random(int32_t seed, int32_t sample, int32_t element)
{
    const uint32_t base = tt_mix((uint32_t)seed + (uint32_t)sample * 0x9e3779b1u);
    return (int32_t)(tt_mix(base ^ ((uint32_t)element * 0x9e3779b1u)) >> 8);
}

/* A count that begins again behind its largest. */
static inline int32_t tt_counted(int32_t count, int32_t more)
{
    return (int32_t)((uint32_t)count + (uint32_t)more);
}

static inline bool tt_is_finite(float x)
{
    return (tt_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* CRC-32 (IEEE 802.3, reflected, polynomial 0xedb88320) of `size` bytes; start with 0, feed the result back in to
 * continue. A table of 16 words: half a byte per turn. */
static inline uint32_t tt_crc32(uint32_t crc, const void *data, size_t size)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
        0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu, 0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu,
    };
    const unsigned char *byte = (const unsigned char *)data;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= byte[i];
        crc = (crc >> 4) ^ table[crc & 15u];
        crc = (crc >> 4) ^ table[crc & 15u];
    }
    return ~crc;
}

#endif
