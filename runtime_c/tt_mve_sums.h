/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of kernels that work on vectors (Helium): sums of products of int8 and int16, and moves. Where there are no
 * vectors, plain C gives the same bits, so that a host checks the same kernels.
 */
#ifndef TT_MVE_SUMS_H
#define TT_MVE_SUMS_H

#include "tt_dsp.h"
#include "tt_mve_count.h"

#if TT_HAS_MVE
#define TT_CONSTANT(n) __builtin_constant_p(n)
#endif

/* Assembly that reads memory is volatile: else GCC takes it for the same in every turn of a loop, and moves it out. */

/* ---- sums of products -------------------------------------------------------------------------------------------- */

#if TT_HAS_MVE
/* Products of the vector at `one` and of those at four other places, of which the first is loaded last and may step on.
 * `with`: vmladava adds them to sums, vmladav begins sums. */
#define TT_DOT(load, with, sum, q, at) load " " q ", " at "\n\t" with " %[s" #sum "], q0, " q "\n\t"
#define TT_DOTS(load, with, one, at_0, at_1, at_2, at_3)                                                               \
    load " q0, " one "\n\t" TT_DOT(load, with, 3, "q1", at_3) TT_DOT(load, with, 2, "q2", at_2)                        \
        TT_DOT(load, with, 1, "q1", at_1) TT_DOT(load, with, 0, "q2", at_0)
/* As TT_SHORT_DOTS, of eight products from `at0` on. (A load that widens takes a low register.) */
#define TT_HALF_DOTS(with)                                                                                             \
    TT_DOTS("vldrb.s16", with, "[%[a], %[at0]]", "[%[b], %[at0]]", "[%[b], %[at1]]", "[%[b], %[at2]]", "[%[b], %[at3]]")
/* The four rows at constant distances from the first; from the first and the third; anywhere. */
#define TT_SHORT_DOTS(with)                                                                                            \
    TT_DOTS("vldrb.8", with, "[%[a]]", "[%[b]]", "[%[b], %[at1]]", "[%[b], %[at2]]", "[%[b], %[at3]]")
#define TT_NEAR_DOTS(with)                                                                                             \
    TT_DOTS("vldrb.8", with, "[%[a]], #16", "[%[b]], #16", "[%[b], %[at1]]", "[%[b2]], #16", "[%[b2], %[at1]]")
#define TT_FAR_DOTS(with)                                                                                              \
    TT_DOTS("vldrb.8", with, "[%[a]], #16", "[%[b]], #16", "[%[b1]], #16", "[%[b2]], #16", "[%[b3]], #16")
/* Of the last 16 elements those of `others`. */
#define TT_LAST_DOTS                                                                                                   \
    "vmsr p0, %[others]\n\tvpst\n\tvldrbt.8 q0, [%[a], %[last]]\n\t" TT_DOT("vldrb.8", "vmladava.s8", 3, "q1", "[%[b], %[last3]]")          \
        TT_DOT("vldrb.8", "vmladava.s8", 2, "q2", "[%[b], %[last2]]")                                                  \
            TT_DOT("vldrb.8", "vmladava.s8", 1, "q1", "[%[b], %[last1]]")                                              \
                TT_DOT("vldrb.8", "vmladava.s8", 0, "q2", "[%[b], %[last]]")
#define TT_LAST_AT(n)                                                                                                  \
    [last] "i"((n) - 16), [last1] "i"(2 * (n) - 16), [last2] "i"(3 * (n) - 16), [last3] "i"(4 * (n) - 16)
/* Of n elements, whole vectors and more than one: one or two, then the others by twos. */
#define TT_LONG_DOTS(dots, places, inputs)                                                                             \
    do {                                                                                                               \
        __asm__ volatile(dots("vmladav.s8")                                                                            \
                         : TT_SUMS_OF(s, "=&Te"), places                                                               \
                         : inputs                                                                                      \
                         : "q0", "q1", "q2", "memory");                                                                \
        if (n % 32 == 0) {                                                                                             \
            __asm__ volatile(dots("vmladava.s8")                                                                       \
                             : TT_SUMS_OF(s, "+Te"), places                                                            \
                             : inputs                                                                                  \
                             : "q0", "q1", "q2", "memory");                                                            \
        }                                                                                                              \
        if (twice == 1) {                                                                                              \
            __asm__ volatile(dots("vmladava.s8") dots("vmladava.s8")                                                   \
                             : TT_SUMS_OF(s, "+Te"), places                                                            \
                             : inputs                                                                                  \
                             : "q0", "q1", "q2", "memory");                                                            \
        } else if (twice > 1) {                                                                                        \
            __asm__ volatile("dls lr, %[twice]\n"                                                                      \
                             "1:\n\t" dots("vmladava.s8") dots("vmladava.s8") "le lr, 1b"                              \
                             : TT_SUMS_OF(s, "+Te"), places                                                            \
                             : [twice] "r"(twice), inputs                                                              \
                             : "lr", "q0", "q1", "q2", "memory");                                                      \
        }                                                                                                              \
    } while (0)
#define TT_RUN_DOTS(with)                                                                                              \
    TT_DOTS("vldrh.u16", with, "[%[b]]", "[%[a]]", "[%[a], %[at1]]", "[%[a], %[at2]]", "[%[a], %[at3]]")
#define TT_AT(step) [at1] "i"(step), [at2] "i"(2 * (step)), [at3] "i"(3 * (step))
#define TT_SUMS_OF(s, kind) [s0] kind(s##0), [s1] kind(s##1), [s2] kind(s##2), [s3] kind(s##3)
#endif

/* sum_j += a . b_j for the four rows of b, which lie one after the other; all of n elements, a constant above 0. */
static inline TT_ALWAYS void tt_dot8_x4(
    int32_t *sum_0, int32_t *sum_1, int32_t *sum_2, int32_t *sum_3, const int8_t *a, const int8_t *b, int32_t n)
{
    const int8_t *b1 = b + n, *b2 = b1 + n, *b3 = b2 + n;
#if TT_HAS_MVE
    int32_t s0, s1, s2, s3;
    if (n == 16 || n == 24) {
        __asm__ volatile(TT_SHORT_DOTS("vmladav.s8")
                         : TT_SUMS_OF(s, "=&Te")
                         : [a] "r"(a), [b] "r"(b), TT_AT(n)
                         : "q0", "q1", "q2", "memory");
        if (n == 24) {
            __asm__ volatile(TT_HALF_DOTS("vmladava.s16")
                             : TT_SUMS_OF(s, "+Te")
                             : [a] "l"(a), [b] "l"(b), [at0] "i"(16), [at1] "i"(40), [at2] "i"(64), [at3] "i"(88)
                             : "q0", "q1", "q2", "memory");
        }
    } else if (n == 8) {
        __asm__ volatile(TT_HALF_DOTS("vmladav.s16")
                         : TT_SUMS_OF(s, "=&Te")
                         : [a] "l"(a), [b] "l"(b), [at0] "i"(0), TT_AT(n)
                         : "q0", "q1", "q2", "memory");
    } else if (n < 16) {
        __asm__ volatile("dlstp.8 lr, %[n]\n"
                         "1:\n\t" TT_SHORT_DOTS("vmladav.s8") "letp lr, 1b"
                         : TT_SUMS_OF(s, "=&Te")
                         : [a] "r"(a), [b] "r"(b), [n] "r"(n), TT_AT(n)
                         : "lr", "q0", "q1", "q2", "memory");
    } else if (n < 32) {
        /* the last 16 elements, and zeros instead of those that have been multiplied */
        const uint32_t others = (0xffffu << (32 - n)) & 0xffffu;
        __asm__ volatile(TT_SHORT_DOTS("vmladav.s8") TT_LAST_DOTS
                         : TT_SUMS_OF(s, "=&Te")
                         : [a] "r"(a), [b] "r"(b), [others] "r"(others), TT_AT(n), TT_LAST_AT(n)
                         : "q0", "q1", "q2", "p0", "memory");
    } else if (n % 16 == 0) {
        const int32_t twice = (n / 16 - 1) / 2;
        if (n <= 112) {
            TT_LONG_DOTS(TT_NEAR_DOTS, TT_LIST([a] "+r"(a), [b] "+r"(b), [b2] "+r"(b2)), [at1] "i"(n));
        } else {
            TT_LONG_DOTS(TT_FAR_DOTS,
                TT_LIST([a] "+r"(a), [b] "+r"(b), [b1] "+r"(b1), [b2] "+r"(b2), [b3] "+r"(b3)), [none] "i"(0));
        }
    } else if (n <= 112) {
        __asm__ volatile(TT_NEAR_DOTS("vmladav.s8") "dlstp.8 lr, %[n]\n"
                         "1:\n\t" TT_NEAR_DOTS("vmladava.s8") "letp lr, 1b"
                         : TT_SUMS_OF(s, "=&Te"), [a] "+r"(a), [b] "+r"(b), [b2] "+r"(b2)
                         : [n] "r"(n - 16), [at1] "i"(n)
                         : "lr", "q0", "q1", "q2", "memory");
    } else {
        __asm__ volatile(TT_FAR_DOTS("vmladav.s8") "dlstp.8 lr, %[n]\n"
                         "1:\n\t" TT_FAR_DOTS("vmladava.s8") "letp lr, 1b"
                         : TT_SUMS_OF(s, "=&Te"), [a] "+r"(a), [b] "+r"(b), [b1] "+r"(b1), [b2] "+r"(b2), [b3] "+r"(b3)
                         : [n] "r"(n - 16)
                         : "lr", "q0", "q1", "q2", "memory");
    }
    *sum_0 += s0;
    *sum_1 += s1;
    *sum_2 += s2;
    *sum_3 += s3;
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
    if (TT_IS_ZERO(*sum_0) && TT_IS_ZERO(*sum_1) && TT_IS_ZERO(*sum_2) && TT_IS_ZERO(*sum_3)) {
        __asm__ volatile("dlstp.16 lr, %[n]\n"
                         "1:\n\t" TT_RUN_DOTS("vmladav.s16") "letp lr, 1b"
                         : TT_SUMS_OF(*sum_, "=&Te")
                         : [a] "r"(a), [b] "r"(b), [n] "r"(n), TT_AT(2 * step)
                         : "lr", "q0", "q1", "q2", "memory");
        return;
    }
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t" TT_RUN_DOTS("vmladava.s16") "letp lr, 1b"
                     : TT_SUMS_OF(*sum_, "+Te")
                     : [a] "r"(a), [b] "r"(b), [n] "r"(n), TT_AT(2 * step)
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

/* to[i] = value for i < n, n > 0. */
static inline TT_ALWAYS void tt_fill8(int8_t *to, int32_t value, int32_t n)
{
#if TT_HAS_MVE
    const int8x16_t all = vdupq_n_s8((int8_t)value);
    __asm__ volatile("dlstp.8 lr, %[n]\n"
                     "1:\n\tvstrb.8 %q[all], [%[to]], #16\n\tletp lr, 1b"
        : [to] "+r"(to)
        : [n] "r"(n), [all] "w"(all)
        : "lr", "memory");
#else
    memset(to, value, (size_t)n);
#endif
}

/* to[i] = from[i * pitch] for i < n, n > 0; pitch < 2^12. (A store that narrows takes a low register.) */
static inline TT_ALWAYS void tt_gather8(int8_t *to, const int8_t *from, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    if (TT_CONSTANT(pitch) && pitch <= 17) { /* 16 distances are bytes */
        const uint8x16_t places = vmulq_n_u8(tt_count_x16(), (uint8_t)pitch);
        __asm__ volatile("dlstp.8 lr, %[n]\n"
                         "1:\n\t"
                         "vldrb.u8 q0, [%[from], %q[places]]\n\t"
                         "add %[from], %[step]\n\t"
                         "vstrb.8 q0, [%[to]], #16\n\t"
                         "letp lr, 1b"
                         : [to] "+r"(to), [from] "+r"(from)
                         : [n] "r"(n), [step] "r"(16 * pitch), [places] "w"(places)
                         : "lr", "q0", "memory");
        return;
    }
    const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)pitch);
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.u16 q0, [%[from], %q[places]]\n\t"
                     "add %[from], %[step]\n\t"
                     "vstrb.16 q0, [%[to]], #8\n\t"
                     "letp lr, 1b"
                     : [to] "+l"(to), [from] "+r"(from)
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
    const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)pitch);
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

/* tt_passed8. */
static inline TT_ALWAYS uint8_t tt_passed_x8(const int8_t *from, int32_t low, int32_t high)
{
#if TT_HAS_MVE
    const uint16x8_t bits = vshlq_u16(vdupq_n_u16(1u), vreinterpretq_s16_u16(tt_count_x8())); /* 1, 2, 4 ... */
    const int16x8_t values = vldrbq_s16(from);
    const mve_pred16_t above = vcmpgtq_n_s16(values, (int16_t)low);
    return (uint8_t)vaddvq_p_u16(bits, vcmpltq_m_n_s16(values, (int16_t)high, above));
#else
    return tt_passed8(from, low, high);
#endif
}

/* tt_passed8 of every eight of n, a multiple of eight; `to` may begin where `from` does. */
static inline TT_ALWAYS void tt_passed_bits8(uint8_t *to, const int8_t *from, int32_t low, int32_t high, int32_t n)
{
#if TT_HAS_MVE
    for (int32_t i = n >> 4; i > 0; i--) {
        uint32_t bits;
        __asm__ volatile("vldrb.8 q0, [%[from]], #16\n\t"
                         "vcmp.s8 ge, q0, %[least]\n\t"
                         "vpst\n\t"
                         "vcmpt.s8 le, q0, %[most]\n\t"
                         "vmrs %[bits], p0\n\t"
                         "strh %[bits], [%[to]], #2"
                         : [from] "+r"(from), [to] "+r"(to), [bits] "=&r"(bits)
                         : [least] "r"(low + 1), [most] "r"(high - 1)
                         : "q0", "p0", "memory");
    }
    if ((n & 8) != 0) {
        *to = tt_passed_x8(from, low, high);
    }
#else
    for (int32_t i = 0; i < n; i += 8) {
        to[i / 8] = tt_passed8(from + i, low, high);
    }
#endif
}

#endif
