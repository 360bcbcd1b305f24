/* Helpers of kernels that work on vectors (Helium): sums of products of int8, and four int32 at a time. Where there are
 * no vectors, plain C gives the same bits, so that a host checks the same kernels. A name in _x4 does what the helper
 * without it does, four times; it takes a factor as multiplier and shift, which is within +-31 (more bits count as 31).
 */
#ifndef TT_MVE_H
#define TT_MVE_H

#include "tt_dsp.h"

#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#define TT_HAS_MVE 1
typedef int32x4_t tt_i32x4;
#else
#define TT_HAS_MVE 0
typedef int32_t tt_i32x4 __attribute__((vector_size(16)));
#endif

/* result[i] = expression, for the four i: what plain C does instead of a vector instruction. */
#define TT_EACH(result, expression)                                                                                    \
    for (int i = 0; i < 4; ++i) {                                                                                      \
        (result)[i] = (expression);                                                                                    \
    }

/* Assembly that reads memory is volatile: else GCC takes it for the same in every turn of a loop, and moves it out. */

/* ---- sums of products -------------------------------------------------------------------------------------------- */

/* sum_j += a . b_j for the four rows of b, which lie one after the other; all of n elements, n > 0. */
static inline TT_ALWAYS void tt_dot8_x4(
    int32_t *sum_0, int32_t *sum_1, int32_t *sum_2, int32_t *sum_3, const int8_t *a, const int8_t *b, int32_t n)
{
    const int8_t *b1 = b + n, *b2 = b1 + n, *b3 = b2 + n;
#if TT_HAS_MVE
    __asm__ volatile("dlstp.8 lr, %[n]\n"
            "1:\n\t"
            "vldrb.8 q0, [%[a]], #16\n\t"
            "vldrb.8 q1, [%[b]], #16\n\t"
            "vmladava.s8 %[s0], q0, q1\n\t"
            "vldrb.8 q2, [%[b1]], #16\n\t"
            "vmladava.s8 %[s1], q0, q2\n\t"
            "vldrb.8 q3, [%[b2]], #16\n\t"
            "vmladava.s8 %[s2], q0, q3\n\t"
            "vldrb.8 q1, [%[b3]], #16\n\t"
            "vmladava.s8 %[s3], q0, q1\n\t"
            "letp lr, 1b"
            : [s0] "+Te"(*sum_0), [s1] "+Te"(*sum_1), [s2] "+Te"(*sum_2), [s3] "+Te"(*sum_3), [a] "+r"(a), [b] "+r"(b),
            [b1] "+r"(b1), [b2] "+r"(b2), [b3] "+r"(b3)
            : [n] "r"(n)
            : "lr", "q0", "q1", "q2", "q3", "memory");
#else
    for (int32_t k = 0; k < n; ++k) {
        *sum_0 += a[k] * b[k];
        *sum_1 += a[k] * b1[k];
        *sum_2 += a[k] * b2[k];
        *sum_3 += a[k] * b3[k];
    }
#endif
}

/* sum_i += a_i . b for four runs of n <= 8 elements, which begin `step` apart, a constant of at most 40. */
static inline TT_ALWAYS void tt_dot16_x4(int32_t *sum_0, int32_t *sum_1, int32_t *sum_2, int32_t *sum_3,
    const int16_t *a, const int16_t *b, int32_t step, int32_t n)
{
#if TT_HAS_MVE
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrh.u16 q0, [%[b]]\n\t"
                     "vldrh.u16 q1, [%[a]]\n\t"
                     "vmladava.s16 %[s0], q0, q1\n\t"
                     "vldrh.u16 q2, [%[a], %[at1]]\n\t"
                     "vmladava.s16 %[s1], q0, q2\n\t"
                     "vldrh.u16 q1, [%[a], %[at2]]\n\t"
                     "vmladava.s16 %[s2], q0, q1\n\t"
                     "vldrh.u16 q2, [%[a], %[at3]]\n\t"
                     "vmladava.s16 %[s3], q0, q2\n\t"
                     "letp lr, 1b"
                     : [s0] "+Te"(*sum_0), [s1] "+Te"(*sum_1), [s2] "+Te"(*sum_2), [s3] "+Te"(*sum_3)
                     : [a] "r"(a), [b] "r"(b), [n] "r"(n), [at1] "i"(2 * step), [at2] "i"(4 * step), [at3] "i"(6 * step)
                     : "lr", "q0", "q1", "q2", "memory");
#else
    for (int32_t k = 0; k < n; ++k) {
        *sum_0 += a[k] * b[k];
        *sum_1 += a[step + k] * b[k];
        *sum_2 += a[2 * step + k] * b[k];
        *sum_3 += a[3 * step + k] * b[k];
    }
#endif
}

/* sum + a[0] + ... + a[n - 1], n > 0. */
static inline TT_ALWAYS int32_t tt_sum8(int32_t sum, const int8_t *a, int32_t n)
{
#if TT_HAS_MVE
    __asm__ volatile("dlstp.8 lr, %[n]\n"
            "1:\n\t"
            "vldrb.8 q0, [%[a]], #16\n\t"
            "vaddva.s8 %[sum], q0\n\t"
            "letp lr, 1b"
            : [sum] "+Te"(sum), [a] "+r"(a)
            : [n] "r"(n)
            : "lr", "q0", "memory");
#else
    for (int32_t k = 0; k < n; ++k) {
        sum += a[k];
    }
#endif
    return sum;
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

/* to[i] = from[i] for i < n, n > 0. */
static inline TT_ALWAYS void tt_copy8(int8_t *to, const int8_t *from, int32_t n)
{
#if TT_HAS_MVE
    __asm__ volatile("dlstp.8 lr, %[n]\n"
            "1:\n\t"
            "vldrb.8 q0, [%[from]], #16\n\t"
            "vstrb.8 q0, [%[to]], #16\n\t"
            "letp lr, 1b"
            : [to] "+r"(to), [from] "+r"(from)
            : [n] "r"(n)
            : "lr", "q0", "memory");
#else
    memcpy(to, from, (size_t)n);
#endif
}

/* to[i] = from[i * pitch] for i < n, n > 0; pitch < 2^12. */
static inline TT_ALWAYS void tt_gather8(int8_t *to, const int8_t *from, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    const uint16x8_t places = vidupq_n_u16(0u, 1) * (uint16_t)pitch;
    __asm__ volatile("dlstp.16 lr, %[n]\n"
            "1:\n\t"
            "vldrb.u16 q0, [%[from], %q[places]]\n\t"
            "add %[from], %[step]\n\t"
            "vstrb.16 q0, [%[to]], #8\n\t"
            "letp lr, 1b"
            : [to] "+r"(to), [from] "+r"(from)
            : [n] "r"(n), [step] "r"(8 * pitch), [places] "w"(places)
            : "lr", "q0", "memory");
#else
    for (int32_t i = 0; i < n; ++i) {
        to[i] = from[i * pitch];
    }
#endif
}

/* to[i] = from[i * pitch] + offset for i < n, n > 0; pitch < 2^12. */
static inline TT_ALWAYS void tt_widen8(int16_t *to, const int8_t *from, int32_t pitch, int32_t n, int32_t offset)
{
#if TT_HAS_MVE
    const uint16x8_t places = vidupq_n_u16(0u, 1) * (uint16_t)pitch;
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.s16 q0, [%[from], %q[places]]\n\t"
                     "add %[from], %[step]\n\t"
                     "vadd.i16 q0, q0, %[offset]\n\t"
                     "vstrh.16 q0, [%[to]], #16\n\t"
                     "letp lr, 1b"
                     : [to] "+r"(to), [from] "+r"(from)
                     : [n] "r"(n), [step] "r"(8 * pitch), [places] "w"(places), [offset] "r"(offset)
                     : "lr", "q0", "memory");
#else
    for (int32_t i = 0; i < n; ++i) {
        to[i] = (int16_t)(from[i * pitch] + offset);
    }
#endif
}

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
    return vldrhq_gather_shifted_offset_s32(from, vidupq_n_u32(0u, 1) * (uint32_t)step);
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

/* The low bytes of the lanes, to to[0], to[step] ... */
static inline void tt_scatter8_x4(int8_t *to, int32_t step, tt_i32x4 lanes)
{
#if TT_HAS_MVE
    vstrbq_scatter_offset_s32(to, vidupq_n_u32(0u, 1) * (uint32_t)step, lanes);
#else
    for (int i = 0; i < 4; ++i) {
        to[i * step] = (int8_t)lanes[i];
    }
#endif
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
    const tt_i32x4 each = {1, 2, 4, 8};
    return (tt_all(bits) & each) != 0;
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
    tt_i32x4 y;
    TT_EACH(y, tt_clamp(value[i], low, high))
    return y;
#endif
}

static inline tt_i32x4 tt_add_x4(tt_i32x4 a, tt_i32x4 b)
{
#if TT_HAS_MVE
    return vqaddq_s32(a, b);
#else
    tt_i32x4 y;
    TT_EACH(y, tt_add(a[i], b[i]))
    return y;
#endif
}

/* tt_requantise; -31 <= shift <= 0. Halves are rounded up, and less one a negative number's is rounded down. */
static inline tt_i32x4 tt_requantise_down_x4(tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift)
{
#if TT_HAS_MVE
    const tt_i32x4 high = vqrdmulhq_s32(acc, multiplier);
    return vrshlq_s32(vqaddq_s32(high, vshrq_n_s32(vandq_s32(high, shift), 31)), shift);
#else
    tt_i32x4 y;
    TT_EACH(y, tt_requantise(acc[i], multiplier[i], shift[i]))
    return y;
#endif
}

/* tt_requantise; -31 <= shift <= 31. */
static inline tt_i32x4 tt_requantise_x4(tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift)
{
#if TT_HAS_MVE
    const tt_i32x4 none = tt_all(0);
    return tt_requantise_down_x4(vqshlq_s32(acc, vmaxq_s32(shift, none)), multiplier, vminq_s32(shift, none));
#else
    tt_i32x4 y;
    TT_EACH(y, tt_requantise(acc[i], multiplier[i], shift[i]))
    return y;
#endif
}

static inline tt_i32x4 tt_requantise8_down_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    const tt_i32x4 y = tt_requantise_down_x4(tt_add_x4(acc, bias), multiplier, shift);
    return tt_clamp_x4(y, low - zero, high - zero) + zero;
}

static inline tt_i32x4 tt_requantise8_x4(
    tt_i32x4 acc, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift, int32_t zero, int32_t low, int32_t high)
{
    const tt_i32x4 y = tt_requantise_x4(tt_add_x4(acc, bias), multiplier, shift);
    return tt_clamp_x4(y, low - zero, high - zero) + zero;
}

/* -1 where a clamp to [low, high] let a value pass, else 0. */
static inline tt_i32x4 tt_passes_x4(tt_i32x4 value, int32_t low, int32_t high)
{
#if TT_HAS_MVE
    const uint32_t passed = (uint32_t)vcmpgtq_n_s32(value, low) & (uint32_t)vcmpltq_n_s32(value, high);
    return vpselq_s32(tt_all(-1), tt_all(0), (mve_pred16_t)passed);
#else
    return (low < value) & (high > value);
#endif
}

/* Four errors, 0 where keep is 0. */
static inline tt_i32x4 tt_rescaled_error_x4(
    tt_i32x4 keep, tt_i32x4 acc, tt_i32x4 multiplier, tt_i32x4 shift, int32_t *peak)
{
    const tt_i32x4 value = tt_requantise_x4(acc, multiplier, shift) & keep;
#if TT_HAS_MVE
    *peak = vmaxvq_s32(*peak, vqabsq_s32(value));
    return tt_clamp_x4(value, -127, 127);
#else
    tt_i32x4 y;
    TT_EACH(y, tt_error(value[i], peak))
    return y;
#endif
}

/* tt_noise of the weights from `index` on. */
static inline tt_i32x4 tt_noise_x4(int32_t state, int32_t salt, int32_t index)
{
#if TT_HAS_MVE
    const uint32x4_t steps = {0u, 0x9e3779b1u, 2u * 0x9e3779b1u, 3u * 0x9e3779b1u};
    uint32x4_t word = steps + ((uint32_t)state + (uint32_t)salt + (uint32_t)index * 0x9e3779b1u);
    word ^= vshrq_n_u32(word, 15);
    return (tt_i32x4)vshrq_n_u32(word * 1664525u + 1013904223u, 24);
#else
    tt_i32x4 y;
    TT_EACH(y, tt_noise(state, salt, index + i))
    return y;
#endif
}

/* tt_quick_move of four weights of a channel. */
static inline tt_i32x4 tt_quick_move_x4(tt_i32x4 weight, tt_i32x4 gradient, int32_t multiplier, int32_t exponent,
    tt_i32x4 noise, int32_t limit, int32_t spare)
{
#if TT_HAS_MVE
    const int32_t down = exponent - spare;
    if (TT_LIKELY(down <= -33 && down >= -62)) { /* the move is then below 2^30 */
        const tt_i32x4 high = vmulhq_s32(vshlq_r_s32(gradient, spare), tt_all(multiplier));
        return tt_clamp_x4((weight * 256 + noise - vrshlq_n_s32(high, down + 32)) >> 8, -limit, limit);
    }
#endif
    tt_i32x4 y = weight;
    (void)spare;
    TT_EACH(y, tt_moved_weight(weight[i], gradient[i], multiplier, exponent, noise[i], limit))
    return y;
}

#endif
