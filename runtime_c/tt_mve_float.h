/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Four float32 at a time (Helium). Where there are no vectors, plain C gives the same bits, so that a host checks the
 * same kernels. Helium takes denormals for 0, in operands and in results, whatever FPSCR says: so does the C.
 * (One difference is left: a result whose exact value is below 2^-126 and rounds up to it is 0 on Helium alone.)
 * step: elements from lane to lane in memory. "some" only touches the first n lanes, and loads 0 into the others.
 */
#ifndef TT_MVE_FLOAT_H
#define TT_MVE_FLOAT_H

#include "tt_mve_count.h"

#if TT_HAS_MVE_FLOAT
typedef float32x4_t tt_f32x4;
typedef int32x4_t tt_b32x4;
#else
typedef float tt_f32x4 __attribute__((vector_size(16)));
typedef int32_t tt_b32x4 __attribute__((vector_size(16)));

static inline tt_f32x4 tt_flushed_f32x4(tt_f32x4 x)
{
    const tt_b32x4 tiny = ((tt_b32x4)x & 0x7f800000) == 0;
    return (tt_f32x4)((tt_b32x4)x & ~(tiny & 0x7fffffff));
}
#endif

/* ---- moves ------------------------------------------------------------------------------------------------------- */

static inline tt_f32x4 tt_all_f32x4(float value)
{
    TT_UNSEEN(value);
    return (tt_f32x4) {value, value, value, value};
}

static inline tt_b32x4 tt_all_b32x4(int32_t value)
{
    TT_UNSEEN(value);
    return (tt_b32x4) {value, value, value, value};
}

static inline tt_f32x4 tt_load_f32x4(const float *from)
{
#if TT_HAS_MVE_FLOAT
    return vldrwq_f32(from);
#else
    return (tt_f32x4) {from[0], from[1], from[2], from[3]};
#endif
}

static inline tt_f32x4 tt_gather_f32x4(const float *from, int32_t step)
{
#if TT_HAS_MVE_FLOAT
    return vldrwq_gather_shifted_offset_f32(from, vmulq_n_u32(tt_count_x4(), (uint32_t)step));
#else
    return (tt_f32x4) {from[0], from[step], from[2 * step], from[3 * step]};
#endif
}

static inline tt_f32x4 tt_load_some_f32x4(const float *from, int32_t step, int32_t n)
{
#if TT_HAS_MVE_FLOAT
    const mve_pred16_t live = vctp32q((uint32_t)n);
    return step == 1 ? vldrwq_z_f32(from, live)
                     : vldrwq_gather_shifted_offset_z_f32(from, vmulq_n_u32(tt_count_x4(), (uint32_t)step), live);
#else
    tt_f32x4 y = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int32_t i = 0; i < n; ++i) {
        y[i] = from[i * step];
    }
    return y;
#endif
}

static inline void tt_store_f32x4(float *to, tt_f32x4 lanes)
{
#if TT_HAS_MVE_FLOAT
    vstrwq_f32(to, lanes);
#else
    memcpy(to, &lanes, sizeof lanes);
#endif
}

static inline void tt_scatter_f32x4(float *to, int32_t step, tt_f32x4 lanes)
{
#if TT_HAS_MVE_FLOAT
    vstrwq_scatter_shifted_offset_f32(to, vmulq_n_u32(tt_count_x4(), (uint32_t)step), lanes);
#else
    for (int32_t i = 0; i < 4; ++i) {
        to[i * step] = lanes[i];
    }
#endif
}

static inline void tt_store_some_f32x4(float *to, int32_t step, int32_t n, tt_f32x4 lanes)
{
#if TT_HAS_MVE_FLOAT
    const mve_pred16_t live = vctp32q((uint32_t)n);
    if (step == 1) {
        vstrwq_p_f32(to, lanes, live);
    } else {
        vstrwq_scatter_shifted_offset_p_f32(to, vmulq_n_u32(tt_count_x4(), (uint32_t)step), lanes, live);
    }
#else
    for (int32_t i = 0; i < n; ++i) {
        to[i * step] = lanes[i];
    }
#endif
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

/* A name in _all takes the same last operand for all lanes. */

static inline tt_f32x4 tt_add_f32x4(tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return vaddq_f32(a, b);
#else
    return tt_flushed_f32x4(tt_flushed_f32x4(a) + tt_flushed_f32x4(b));
#endif
}

static inline tt_f32x4 tt_add_all_f32x4(tt_f32x4 a, float b)
{
#if TT_HAS_MVE_FLOAT
    return vaddq_n_f32(a, b);
#else
    return tt_add_f32x4(a, tt_all_f32x4(b));
#endif
}

static inline tt_f32x4 tt_sub_f32x4(tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return vsubq_f32(a, b);
#else
    return tt_flushed_f32x4(tt_flushed_f32x4(a) - tt_flushed_f32x4(b));
#endif
}

static inline tt_f32x4 tt_sub_all_f32x4(tt_f32x4 a, float b)
{
#if TT_HAS_MVE_FLOAT
    return vsubq_n_f32(a, b);
#else
    return tt_sub_f32x4(a, tt_all_f32x4(b));
#endif
}

static inline tt_f32x4 tt_mul_f32x4(tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return vmulq_f32(a, b);
#else
    return tt_flushed_f32x4(tt_flushed_f32x4(a) * tt_flushed_f32x4(b));
#endif
}

static inline tt_f32x4 tt_mul_all_f32x4(tt_f32x4 a, float b)
{
#if TT_HAS_MVE_FLOAT
    return vmulq_n_f32(a, b);
#else
    return tt_mul_f32x4(a, tt_all_f32x4(b));
#endif
}

/* x, with 0 for -0. */
static inline tt_f32x4 tt_unsigned_zero_f32x4(tt_f32x4 x)
{
    return tt_add_all_f32x4(x, 0.0f);
}

/* Lane by lane: denormals are kept. */
static inline tt_f32x4 tt_div_f32x4(tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    register tt_f32x4 x __asm__("q0") = a; /* there is no such instruction on vectors: on the four registers of one */
    register tt_f32x4 y __asm__("q1") = b;
    __asm__("vdiv.f32 s0, s0, s4\n\tvdiv.f32 s1, s1, s5\n\tvdiv.f32 s2, s2, s6\n\tvdiv.f32 s3, s3, s7" : "+w"(x) : "w"(y));
    return x;
#else
    return a / b;
#endif
}

/* c + a b, as TT_FMA. */
static inline tt_f32x4 tt_fma_f32x4(tt_f32x4 c, tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return vfmaq_f32(c, a, b);
#else
    const tt_f32x4 x = tt_flushed_f32x4(a), y = tt_flushed_f32x4(b), z = tt_flushed_f32x4(c);
    return tt_flushed_f32x4((tt_f32x4) {TT_FMA(x[0], y[0], z[0]), TT_FMA(x[1], y[1], z[1]), TT_FMA(x[2], y[2], z[2]),
        TT_FMA(x[3], y[3], z[3])});
#endif
}

static inline tt_f32x4 tt_fma_all_f32x4(tt_f32x4 c, tt_f32x4 a, float b)
{
#if TT_HAS_MVE_FLOAT
    return vfmaq_n_f32(c, a, b);
#else
    return tt_fma_f32x4(c, a, tt_all_f32x4(b));
#endif
}

/* c - a b, as TT_FMA. */
static inline tt_f32x4 tt_fms_f32x4(tt_f32x4 c, tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return vfmsq_f32(c, a, b);
#else
    return tt_fma_f32x4(c, -a, b);
#endif
}

/* a b + c, as TT_FMA. */
static inline tt_f32x4 tt_fma_to_all_f32x4(tt_f32x4 a, tt_f32x4 b, float c)
{
#if TT_HAS_MVE_FLOAT
    return vfmasq_n_f32(a, b, c);
#else
    return tt_fma_f32x4(tt_all_f32x4(c), a, b);
#endif
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* yes where a > b, else no. */
static inline tt_f32x4 tt_pick_f32x4(tt_f32x4 a, tt_f32x4 b, tt_f32x4 yes, tt_f32x4 no)
{
#if TT_HAS_MVE_FLOAT
    tt_f32x4 y; /* GCC would carry the predicate through a core register */
    __asm__("vcmp.f32 gt, %q1, %q2\n\tvpsel %q0, %q3, %q4" : "=w"(y) : "w"(a), "w"(b), "w"(yes), "w"(no) : "p0");
    return y;
#else
    const tt_b32x4 above = tt_flushed_f32x4(a) > tt_flushed_f32x4(b);
    return (tt_f32x4)((above & (tt_b32x4)yes) | (~above & (tt_b32x4)no));
#endif
}

/* Lane i where bit i is set, else 0. */
static inline tt_f32x4 tt_kept_f32x4(int32_t bits, tt_f32x4 lanes)
{
#if TT_HAS_MVE_FLOAT
    const uint32_t pairs = ((uint32_t)bits | (uint32_t)bits << 6) & 0x0303u;
    const uint32_t spread = (pairs | pairs << 3) & 0x1111u; /* a predicate has four bits for each lane */
    return vpselq_f32(lanes, vdupq_n_f32(0.0f), (mve_pred16_t)(spread * 15u));
#else
    const tt_b32x4 each = {1, 2, 4, 8};
    return (tt_f32x4)(((bits & each) != 0) & (tt_b32x4)lanes);
#endif
}

/* Bit i is set where a > b. */
static inline uint32_t tt_above_f32x4(tt_f32x4 a, tt_f32x4 b)
{
#if TT_HAS_MVE_FLOAT
    return (((uint32_t)vcmpgtq_f32(a, b) & 0x1111u) * 0x1248u >> 12) & 15u; /* a predicate has four bits for each lane */
#else
    const tt_b32x4 above = tt_flushed_f32x4(a) > tt_flushed_f32x4(b);
    return (uint32_t)((above[0] & 1) | (above[1] & 2) | (above[2] & 4) | (above[3] & 8));
#endif
}

/* Bit i is set where x[i] > low, for eight. */
static inline uint8_t tt_above8_f32(const float *x, float low)
{
    const tt_f32x4 bound = tt_all_f32x4(low);
    return (uint8_t)(tt_above_f32x4(tt_load_f32x4(x), bound) | tt_above_f32x4(tt_load_f32x4(x + 4), bound) << 4);
}

/* Bit i is set where low < x[i] < high, for eight. */
static inline uint8_t tt_between8_f32(const float *x, float low, float high)
{
    const tt_f32x4 upper = tt_all_f32x4(high);
    const uint32_t bits = tt_above_f32x4(upper, tt_load_f32x4(x)) | tt_above_f32x4(upper, tt_load_f32x4(x + 4)) << 4;
    return (uint8_t)(bits & tt_above8_f32(x, low));
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* e to the power x, error < 1.0 ulp; overflows to inf, underflows to 0. The polynomial of tt_expf. */
static inline tt_f32x4 tt_exp_f32x4(tt_f32x4 x)
{
    const tt_f32x4 low = tt_all_f32x4(-88.0f), high = tt_all_f32x4(89.0f);
    const tt_f32x4 c = tt_pick_f32x4(low, x, low, tt_pick_f32x4(x, high, high, x)); /* NaN stays */
    /* c = n ln 2 + r: 1.5 2^23 leaves no room for a fraction, so adding it rounds; n times the short first part of
     * ln 2 is exact. */
    const tt_f32x4 shifted = tt_add_all_f32x4(tt_mul_all_f32x4(c, 1.44269502f), 12582912.0f);
    const tt_b32x4 n = (tt_b32x4)shifted - tt_all_b32x4(0x4b400000);
    const tt_f32x4 k = tt_sub_all_f32x4(shifted, 12582912.0f);
    const tt_f32x4 r = tt_fma_all_f32x4(tt_fma_all_f32x4(c, k, -0.693359375f), k, 2.12194442e-4f);
    tt_f32x4 q = tt_add_all_f32x4(tt_mul_all_f32x4(r, 0.0013814539f), 0.0083687445f);
    q = tt_fma_to_all_f32x4(q, r, 0.04166839f);
    q = tt_fma_to_all_f32x4(q, r, 0.16666521f);
    q = tt_fma_to_all_f32x4(q, r, 0.49999994f);
    const tt_f32x4 y = tt_add_all_f32x4(tt_fma_f32x4(r, tt_mul_f32x4(r, r), q), 1.0f);
    /* Two factors: 2^n itself may be out of range. */
    const tt_b32x4 half = n >> 1, bias = tt_all_b32x4(127);
    return tt_mul_f32x4(tt_mul_f32x4(y, (tt_f32x4)((half + bias) << 23)), (tt_f32x4)((n - half + bias) << 23));
}

/* Logistic function, as tt_sigmoidf. */
static inline tt_f32x4 tt_sigmoid_f32x4(tt_f32x4 x)
{
    const tt_f32x4 e = tt_exp_f32x4((tt_f32x4)((tt_b32x4)x | tt_all_b32x4(INT32_MIN)));
    return tt_div_f32x4(tt_pick_f32x4(tt_all_f32x4(0.0f), x, e, tt_all_f32x4(1.0f)), tt_add_all_f32x4(e, 1.0f));
}

/* Hyperbolic tangent, error < 1.5 ulp. The polynomial of tt_tanhf. */
static inline tt_f32x4 tt_tanh_f32x4(tt_f32x4 x)
{
    const tt_b32x4 sign = (tt_b32x4)x & tt_all_b32x4(INT32_MIN);
    const tt_f32x4 a = (tt_f32x4)((tt_b32x4)x ^ sign), most = tt_all_f32x4(9.02f);
    const tt_f32x4 z = tt_mul_f32x4(a, a);
    tt_f32x4 p = tt_add_all_f32x4(tt_mul_all_f32x4(z, -0.005697401f), 0.020632561f);
    p = tt_fma_to_all_f32x4(p, z, -0.0537378f);
    p = tt_fma_to_all_f32x4(p, z, 0.1333142f);
    p = tt_fma_to_all_f32x4(p, z, -0.3333328f);
    const tt_f32x4 near = tt_fma_f32x4(a, tt_mul_f32x4(a, z), p), c = tt_pick_f32x4(a, most, most, a); /* NaN stays */
    const tt_f32x4 e = tt_exp_f32x4(tt_add_f32x4(c, c));
    const tt_f32x4 part = tt_div_f32x4(tt_all_f32x4(2.0f), tt_add_all_f32x4(e, 1.0f));
    const tt_f32x4 y = tt_pick_f32x4(tt_all_f32x4(0.625f), a, near, tt_sub_f32x4(tt_all_f32x4(1.0f), part));
    return (tt_f32x4)((tt_b32x4)y | sign);
}

/* Error function, error < 1.5 ulp. The polynomials of tt_erff. */
static inline tt_f32x4 tt_erf_f32x4(tt_f32x4 x)
{
    const tt_b32x4 sign = (tt_b32x4)x & tt_all_b32x4(INT32_MIN);
    const tt_f32x4 a = (tt_f32x4)((tt_b32x4)x ^ sign), most = tt_all_f32x4(3.925f);
    const tt_f32x4 z = tt_mul_f32x4(a, a);
    tt_f32x4 p = tt_add_all_f32x4(tt_mul_all_f32x4(z, 8.3763836e-05f), -0.00081441854f);
    p = tt_fma_to_all_f32x4(p, z, 0.0052011623f);
    p = tt_fma_to_all_f32x4(p, z, -0.026859451f);
    p = tt_fma_to_all_f32x4(p, z, 0.112836964f);
    p = tt_fma_to_all_f32x4(p, z, -0.37612635f);
    p = tt_fma_to_all_f32x4(p, z, 0.12837917f);
    const tt_f32x4 c = tt_pick_f32x4(a, most, most, a); /* NaN stays */
    tt_f32x4 q = tt_add_all_f32x4(tt_mul_all_f32x4(c, 0.00019604235f), -0.0030442483f);
    q = tt_fma_to_all_f32x4(q, c, 0.022231027f);
    q = tt_fma_to_all_f32x4(q, c, -0.103940114f);
    q = tt_fma_to_all_f32x4(q, c, -0.6371725f);
    q = tt_fma_to_all_f32x4(q, c, -1.1276814f);
    q = tt_fma_to_all_f32x4(q, c, -0.00019428242f);
    const tt_f32x4 far = tt_sub_f32x4(tt_all_f32x4(1.0f), tt_exp_f32x4(q));
    const tt_f32x4 y = tt_pick_f32x4(tt_all_f32x4(0.92f), a, tt_fma_f32x4(a, a, p), far);
    return (tt_f32x4)((tt_b32x4)y | sign);
}

#endif
