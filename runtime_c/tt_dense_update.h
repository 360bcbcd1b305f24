/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Updates of the int8 weights of a dense layer whose input is one sample: the gradient of weight (o, i) is g[o] x[i], less
 * x's zero point. Row by row: a row that no gradient moves is only held within its limit. Each gives the same bits on every
 * core and on a host. Twins: compiler/tinytrain_compile/ops/int8/conv.py.
 */
#ifndef TT_DENSE_UPDATE_H
#define TT_DENSE_UPDATE_H

#include "tt_dsp.h"

#if TT_HAS_MVE
#include <arm_mve.h>
#endif

#define TT_LIFT 7 /* bits to the left of inputs in scratch: they have nine with their sign, so sixteen in all */
#define TT_GOLDEN 0x9e3779b1u /* by how much the word that makes noise differs from a weight to the next */

/* A row: weights, their number and magnitude at most; inputs in scratch; the gradient of the output; its step (size,
 * exponent); the word of the first weight's noise. */
typedef struct {
    int8_t *w;
    const int16_t *x;
    int32_t count, limit, g, size, exponent;
    uint32_t word;
} tt_dense_row;

/* The largest magnitude of inputs in scratch. */
static inline int32_t tt_largest_input(const int16_t *x, int32_t count)
{
    int32_t largest = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t magnitude = x[i] < 0 ? -x[i] : x[i];
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest >> TT_LIFT;
}

/* Whether the step of a row moves no weight; largest: magnitude of its inputs. Moves grow with gradients. */
static inline bool tt_rests(const tt_dense_row *row, int32_t largest)
{
    const int32_t most = row->g * largest;
    return tt_scaled(most, row->size, row->exponent) == 0 && tt_scaled(-most, row->size, row->exponent) == 0;
}

/* A move is the upper half of ((g x 2^lift size) / 2^32 + 2^15): with these bits to the left no product overflows, and it is
 * tt_scaled to the bit. Other exponents (all moves are 0, or hundreds of weights) take the long way. */
static inline int32_t tt_move_lift(const tt_dense_row *row)
{
    const int32_t lift = 48 + row->exponent;
    return lift >= 0 && lift <= 15 ? lift : -1;
}

#if TT_HAS_DSP && !TT_HAS_MVE
#define TT_ODD_BYTES 0xff00ff00u
#define TT_EACH_HALF 0x00010001u
#define TT_EACH_BYTE 0x01010101u
/* Moves of four weights, as halves of words: of weights 0 and 2, of 1 and 3. g: 2^(16 - TT_LIFT + lift) times that of the
 * row. */
static inline TT_ALWAYS void tt_moves4(uint32_t *even, uint32_t *odd, const int16_t *x, int32_t g, int32_t size)
{
    uint32_t x01, x23;
    int32_t m0, m1, m2, m3, half = 1 << 15;
    memcpy(&x01, x, sizeof x01);
    memcpy(&x23, x + 2, sizeof x23);
    __asm__("smulwb %0, %1, %2" : "=r"(m0) : "r"(g), "r"(x01));
    __asm__("smulwt %0, %1, %2" : "=r"(m1) : "r"(g), "r"(x01));
    __asm__("smulwb %0, %1, %2" : "=r"(m2) : "r"(g), "r"(x23));
    __asm__("smulwt %0, %1, %2" : "=r"(m3) : "r"(g), "r"(x23));
    __asm__("smmla %0, %0, %1, %2" : "+r"(m0) : "r"(size), "r"(half));
    __asm__("smmla %0, %0, %1, %2" : "+r"(m2) : "r"(size), "r"(half));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*even) : "r"(m2), "r"(m0));
    __asm__("smmla %0, %0, %1, %2" : "+r"(m1) : "r"(size), "r"(half));
    __asm__("smmla %0, %0, %1, %2" : "+r"(m3) : "r"(size), "r"(half));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*odd) : "r"(m3), "r"(m1));
}

/* The last steps of a word of noise; its upper byte is the noise. */
static inline TT_ALWAYS uint32_t tt_noise_of(uint32_t word)
{
    return (word ^ word >> 15) * 1664525u + 1013904223u;
}

/* halves less moves, which saturate: both are beyond the limit then. */
static inline TT_ALWAYS uint32_t tt_less(uint32_t halves, uint32_t moves)
{
    uint32_t less;
    __asm__("qsub16 %0, %1, %2" : "=r"(less) : "r"(halves), "r"(moves));
    return less;
}

/* The upper bytes of the halves of both words, in turn. */
static inline TT_ALWAYS uint32_t tt_upper_bytes(uint32_t even, uint32_t odd)
{
    uint32_t bytes;
    __asm__("uxtb16 %0, %1, ror #8" : "=r"(bytes) : "r"(even));
    return bytes | (odd & TT_ODD_BYTES);
}

/* The nearest of four int8 within +-limit. */
static inline TT_ALWAYS uint32_t tt_within4(uint32_t bytes, int32_t limit)
{
    uint32_t rest;
    const uint32_t high = (uint32_t)limit * TT_EACH_BYTE, low = (uint32_t)(256 - limit) * TT_EACH_BYTE;
    __asm__("ssub8 %1, %0, %2\n\tsel %0, %0, %2" : "+&r"(bytes), "=&r"(rest) : "r"(low));
    if (limit < 127) {
        __asm__("ssub8 %1, %2, %0\n\tsel %0, %0, %2" : "+&r"(bytes), "=&r"(rest) : "r"(high));
    }
    return bytes;
}

/* The same of halves. */
static inline TT_ALWAYS uint32_t tt_within2(uint32_t halves, int32_t limit)
{
    uint32_t rest;
    const uint32_t high = (uint32_t)(limit << 8) * TT_EACH_HALF, low = (uint32_t)(65536 - (limit << 8)) * TT_EACH_HALF;
    __asm__("ssub16 %1, %0, %2\n\tsel %0, %0, %2" : "+&r"(halves), "=&r"(rest) : "r"(low));
    __asm__("ssub16 %1, %2, %0\n\tsel %0, %0, %2" : "+&r"(halves), "=&r"(rest) : "r"(high));
    return halves;
}
#endif

/* Holds weights within their limit; how many, a multiple of four. */
static inline int32_t tt_hold_many(const tt_dense_row *row)
{
    int32_t i = 0;
#if TT_HAS_DSP && !TT_HAS_MVE
    for (; i + 4 <= row->count; i += 4) {
        uint32_t four;
        memcpy(&four, row->w + i, sizeof four);
        four = tt_within4(four, row->limit);
        memcpy(row->w + i, &four, sizeof four);
    }
#elif TT_HAS_MVE
    for (; i + 16 <= row->count; i += 16) {
        const int8x16_t most = vdupq_n_s8((int8_t)row->limit);
        vstrbq_s8(row->w + i, vmaxq_s8(vminq_s8(vldrbq_s8(row->w + i), most), vnegq_s8(most)));
    }
#else
    (void)row;
#endif
    return i;
}

/* How many weights from place i on, a multiple of four or more, are below the limit: a fraction leaves these as they are. */
static inline int32_t tt_below_limit(const tt_dense_row *row, int32_t i)
{
    const int32_t first = i;
#if TT_HAS_DSP && !TT_HAS_MVE
    for (; i + 4 <= row->count; i += 4) {
        uint32_t four;
        memcpy(&four, row->w + i, sizeof four);
        if (tt_within4(four, row->limit - 1) != four) {
            break;
        }
    }
#elif TT_HAS_MVE
    for (; i + 16 <= row->count; i += 16) {
        if ((int32_t)vmaxavq_s8(0u, vldrbq_s8(row->w + i)) >= row->limit) {
            break;
        }
    }
#else
    for (; i < row->count; i++) {
        if (row->w[i] >= row->limit || row->w[i] <= -row->limit) {
            break;
        }
    }
#endif
    return i - first;
}

/* Moves weights with noise; how many, a multiple of four: there are no instructions for the others. */
static inline int32_t tt_move_many(const tt_dense_row *row, int32_t lift)
{
    int32_t i = 0;
#if TT_HAS_MVE
    const int32x4_t size = vdupq_n_s32(row->size);
    uint32x4_t word = vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(0u, 1), TT_GOLDEN), row->word);
    const uint32x4_t factor = vdupq_n_u32(1664525u);
    for (; i + 4 <= row->count; i += 4) {
        const int32x4_t gradient = vmulq_n_s32(vldrhq_s32(row->x + i), row->g);
        const int32x4_t move = vrshrq_n_s32(vmulhq_s32(vshlq_r_s32(gradient, lift - TT_LIFT), size), 16);
        const uint32x4_t mixed = veorq_u32(word, vshrq_n_u32(word, 15));
        const int32x4_t noise = (int32x4_t)vshrq_n_u32(vmlasq_n_u32(mixed, factor, 1013904223u), 24);
        const int32x4_t moved = vshrq_n_s32(vsubq_s32(vsliq_n_s32(noise, vldrbq_s32(row->w + i), 8), move), 8);
        vstrbq_s32(row->w + i, vmaxq_s32(vminq_s32(moved, vdupq_n_s32(row->limit)), vdupq_n_s32(-row->limit)));
        word = vaddq_n_u32(word, 4u * TT_GOLDEN);
    }
#elif TT_HAS_DSP
    const int32_t g = (int32_t)((uint32_t)row->g << (uint32_t)(16 - TT_LIFT + lift)), size = row->size;
    const int16_t *x = row->x;
    int8_t *w = row->w;
    uint32_t word = row->word, golden = TT_GOLDEN;
    __asm__("" : "+r"(golden)); /* added from a register: as a constant it takes three instructions */
    for (; i + 4 <= row->count; i += 4, w += 4, x += 4) {
        uint32_t four, even, odd, noise;
        memcpy(&four, w, sizeof four);
        tt_moves4(&even, &odd, x, g, size);
        const uint32_t n0 = tt_noise_of(word), n1 = tt_noise_of(word += golden), n2 = tt_noise_of(word += golden);
        const uint32_t n3 = tt_noise_of(word += golden);
        word += golden;
        __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(noise) : "r"(n2), "r"(n0));
        __asm__("uxtab16 %0, %1, %2, ror #8" : "=r"(noise) : "r"(four << 8 & TT_ODD_BYTES), "r"(noise));
        even = tt_less(noise, even);
        __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(noise) : "r"(n3), "r"(n1));
        __asm__("uxtab16 %0, %1, %2, ror #8" : "=r"(noise) : "r"(four & TT_ODD_BYTES), "r"(noise));
        odd = tt_less(noise, odd);
        four = tt_within4(tt_upper_bytes(even, odd), row->limit);
        memcpy(w, &four, sizeof four);
    }
#else
    (void)row;
    (void)lift;
#endif
    return i;
}

/* The same of weights with fractions. */
static inline int32_t tt_move_many_fine(const tt_dense_row *row, int8_t *fraction, int32_t lift)
{
    int32_t i = 0;
#if TT_HAS_MVE
    const int32x4_t size = vdupq_n_s32(row->size);
    for (; i + 4 <= row->count; i += 4) {
        const int32x4_t gradient = vmulq_n_s32(vldrhq_s32(row->x + i), row->g);
        const int32x4_t move = vrshrq_n_s32(vmulhq_s32(vshlq_r_s32(gradient, lift - TT_LIFT), size), 16);
        const int32x4_t old = vaddq_s32(vshlq_n_s32(vldrbq_s32(row->w + i), 8), vldrbq_s32(fraction + i));
        int32x4_t moved = vminq_s32(vsubq_s32(old, move), vdupq_n_s32(row->limit * 256));
        moved = vmaxq_s32(moved, vdupq_n_s32(row->limit * -256));
        vstrbq_s32(row->w + i, vrshrq_n_s32(moved, 8));
        vstrbq_s32(fraction + i, moved);
    }
#elif TT_HAS_DSP
    const int32_t g = (int32_t)((uint32_t)row->g << (uint32_t)(16 - TT_LIFT + lift)), size = row->size;
    for (; i + 4 <= row->count; i += 4) {
        uint32_t four, fractions, even, odd, low, high;
        memcpy(&four, row->w + i, sizeof four);
        memcpy(&fractions, fraction + i, sizeof fractions);
        tt_moves4(&even, &odd, row->x + i, g, size);
        __asm__("sxtb16 %0, %1" : "=r"(low) : "r"(fractions));
        __asm__("sxtb16 %0, %1, ror #8" : "=r"(high) : "r"(fractions));
        __asm__("ssub16 %0, %0, %1" : "+r"(even) : "r"(low));
        __asm__("ssub16 %0, %0, %1" : "+r"(odd) : "r"(high));
        even = tt_within2(tt_less(four << 8 & TT_ODD_BYTES, even), row->limit);
        odd = tt_within2(tt_less(four & TT_ODD_BYTES, odd), row->limit);
        __asm__("uxtb16 %0, %1" : "=r"(low) : "r"(even));
        __asm__("uxtb16 %0, %1" : "=r"(high) : "r"(odd));
        fractions = low | high << 8;
        __asm__("sadd16 %0, %0, %1" : "+r"(even) : "r"(128u * TT_EACH_HALF));
        __asm__("sadd16 %0, %0, %1" : "+r"(odd) : "r"(128u * TT_EACH_HALF));
        four = tt_upper_bytes(even, odd);
        memcpy(fraction + i, &fractions, sizeof fractions);
        memcpy(row->w + i, &four, sizeof four);
    }
#else
    (void)row;
    (void)fraction;
    (void)lift;
#endif
    return i;
}

/* The gradient of a weight of a row. */
static inline int32_t tt_row_gradient(const tt_dense_row *row, int32_t i)
{
    return row->g * (row->x[i] >> TT_LIFT);
}

static inline tt_dense_row tt_row_of(int8_t *w, const int16_t *x, int32_t count, int32_t limit, int32_t g,
    int32_t multiplier, int32_t shift, const int32_t *rate, int32_t p)
{
    const int32_t size = tt_high_multiply(multiplier, rate[0]);
    const tt_dense_row row = {w, x, count, limit, g, size, shift + rate[1] + p - 23, 0u};
    return row;
}

/* tt_moved_weight of all weights (outputs, inputs); x: inputs less their zero point, times 2^TT_LIFT; multiplier, shift: of
 * every output; rate, p: see step_size in the twin. Returns weight 0. */
TT_SHARED int8_t tt_dense_update(int8_t *w, const int16_t *x, const int8_t *g, const int32_t *multiplier,
    const int8_t *shift, const int32_t *rate, int32_t p, int32_t seed, int32_t outputs, int32_t inputs, int32_t limit)
{
    const int32_t largest = tt_largest_input(x, inputs);
    uint32_t word = (uint32_t)seed;
    for (int32_t o = 0; o < outputs; o++, word += (uint32_t)inputs * TT_GOLDEN) {
        tt_dense_row row = tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p);
        row.word = word;
        const bool rests = tt_rests(&row, largest);
        const int32_t lift = tt_move_lift(&row);
        int32_t i = rests ? tt_hold_many(&row) : lift >= 0 ? tt_move_many(&row, lift) : 0;
        for (; i < inputs; i++) {
            const int32_t noise = tt_noise((int32_t)word, 0, i);
            row.w[i] = tt_moved_weight(row.w[i], tt_row_gradient(&row, i), row.size, row.exponent, noise, limit);
        }
    }
    return w[0];
}

/* tt_moved_fine of all weights, likewise. */
TT_SHARED int8_t tt_dense_update_fine(int8_t *w, int8_t *fraction, const int16_t *x, const int8_t *g,
    const int32_t *multiplier, const int8_t *shift, const int32_t *rate, int32_t p, int32_t outputs, int32_t inputs,
    int32_t limit)
{
    const int32_t largest = tt_largest_input(x, inputs);
    for (int32_t o = 0; o < outputs; o++, fraction += inputs) {
        const tt_dense_row row = tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p);
        const bool rests = tt_rests(&row, largest);
        const int32_t lift = tt_move_lift(&row);
        int32_t i = rests ? tt_below_limit(&row, 0) : lift >= 0 ? tt_move_many_fine(&row, fraction, lift) : 0;
        for (; i < inputs; i += 1 + (rests ? tt_below_limit(&row, i + 1) : 0)) {
            row.w[i] = tt_moved_fine(
                &fraction[i], row.w[i], tt_row_gradient(&row, i), row.size, row.exponent, limit);
        }
    }
    return w[0];
}

#endif
