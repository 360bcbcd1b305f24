/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Updates of the int8 weights of a dense layer whose input is one sample: the gradient of weight (o, i) is g[o] x[i], less
 * x's zero point. Row by row: the row's step is a number of 16 bits, of which each weight takes a multiple. A row that no
 * gradient moves is only held within its limit. Each gives the same bits on every core and on a host. Twins:
 * compiler/tinytrain_compile/ops/int8/steps.py.
 */
#ifndef TT_DENSE_UPDATE_H
#define TT_DENSE_UPDATE_H

#include "tt_dsp.h"

#if TT_HAS_MVE
#include <arm_mve.h>
#endif

#define TT_LIFT 7 /* bits to the left of inputs in scratch: they have nine with their sign, so sixteen in all */
#define TT_ROW_BITS (16 - TT_LIFT) /* bits of fraction of a row's step: a move is the upper half of a product */
#define TT_GOLDEN 0x9e3779b1u /* by how much the word that makes noise differs from four weights to the next; mixes it too */

/* A row: weights, their number and magnitude at most; inputs in scratch; step, in 1/256 of a weight with TT_ROW_BITS
 * bits of fraction, for every unit of an input; the word that makes the noise of its first weights. */
typedef struct {
    int8_t *w;
    const int16_t *x;
    int32_t count, limit, step;
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

/* Whether the step of a row moves no weight; largest: magnitude of its inputs. */
static inline bool tt_rests(const tt_dense_row *row, int32_t largest)
{
    return (row->step < 0 ? -row->step : row->step) * largest < 1 << (TT_ROW_BITS - 1);
}

/* Noise of four weights, of the first one in the lowest byte. golden: TT_GOLDEN, in a register. */
static inline TT_ALWAYS uint32_t tt_noise_of(uint32_t word, uint32_t golden)
{
    const uint32_t mixed = (word ^ word >> 15) * golden;
    return mixed ^ mixed >> 16;
}

/* By how much a weight moves. */
static inline int32_t tt_row_move(const tt_dense_row *row, int32_t i)
{
    return (row->step * row->x[i] + (1 << 15)) >> 16;
}

#if TT_HAS_DSP && !TT_HAS_MVE
#define TT_ODD_BYTES 0xff00ff00u
#define TT_EACH_HALF 0x00010001u
#define TT_EACH_BYTE 0x01010101u
/* Moves of four weights, as halves of words: of weights 0 and 2, of 1 and 3. */
static inline TT_ALWAYS void tt_moves4(uint32_t *even, uint32_t *odd, const int16_t *x, int32_t step, int32_t half)
{
    uint64_t all;
    int32_t m0, m1, m2, m3;
    memcpy(&all, __builtin_assume_aligned(x, 8), sizeof all);
    const uint32_t x01 = (uint32_t)all, x23 = (uint32_t)(all >> 32);
    __asm__("smlabb %0, %1, %2, %3" : "=r"(m0) : "r"(step), "r"(x01), "r"(half));
    __asm__("smlabb %0, %1, %2, %3" : "=r"(m2) : "r"(step), "r"(x23), "r"(half));
    __asm__("smlabt %0, %1, %2, %3" : "=r"(m1) : "r"(step), "r"(x01), "r"(half));
    __asm__("smlabt %0, %1, %2, %3" : "=r"(m3) : "r"(step), "r"(x23), "r"(half));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*even) : "r"(m2), "r"(m0));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*odd) : "r"(m3), "r"(m1));
}

/* halves less moves, which saturate: both are beyond the limit then. */
static inline TT_ALWAYS uint32_t tt_less(uint32_t halves, uint32_t moves)
{
    uint32_t less;
    __asm__("qsub16 %0, %1, %2" : "=r"(less) : "r"(halves), "r"(moves));
    return less;
}

/* halves, and the bytes 0 and 2 of others where theirs are 0. */
static inline TT_ALWAYS uint32_t tt_with_bytes(uint32_t halves, uint32_t others)
{
    uint32_t sum;
    __asm__("uxtab16 %0, %1, %2" : "=r"(sum) : "r"(halves), "r"(others));
    return sum;
}

/* The same of their bytes 1 and 3. */
static inline TT_ALWAYS uint32_t tt_with_upper_bytes(uint32_t halves, uint32_t others)
{
    uint32_t sum;
    __asm__("uxtab16 %0, %1, %2, ror #8" : "=r"(sum) : "r"(halves), "r"(others));
    return sum;
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

/* Moves weights with noise; how many, a multiple of four. */
static inline TT_ALWAYS int32_t tt_move_fours(const tt_dense_row *row, int32_t limit)
{
    const int32_t step = row->step, count = row->count & ~3;
    const int16_t *x = row->x;
    int32_t half = 1 << 15;
    uint32_t word = row->word, golden = TT_GOLDEN, bytes = TT_ODD_BYTES;
    __asm__("" : "+r"(half), "+r"(golden), "+r"(bytes)); /* stay in registers */
    for (int8_t *w = row->w, *const end = w + count; w < end; w += 4, x += 4, word += golden) {
        uint32_t four, even, odd;
        tt_moves4(&even, &odd, x, step, half);
        memcpy(&four, w, sizeof four);
        const uint32_t noise = tt_noise_of(word, golden);
        even = tt_less(tt_with_bytes(four << 8 & bytes, noise), even);
        odd = tt_less(tt_with_upper_bytes(four & bytes, noise), odd);
        four = tt_within4(tt_with_upper_bytes(odd & bytes, even), limit);
        memcpy(w, &four, sizeof four);
    }
    return count;
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

/* Moves weights with noise; how many, a multiple of four: there are no instructions for the others. */
static inline int32_t tt_move_many(const tt_dense_row *row)
{
    int32_t i = 0;
#if TT_HAS_MVE
    uint32x4_t word = vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(0u, 1), TT_GOLDEN), row->word);
    const int8x16_t most = vdupq_n_s8((int8_t)row->limit), least = vnegq_s8(most);
    const int16x8_t step = vdupq_n_s16((int16_t)row->step);
    for (; i + 16 <= row->count; i += 16) {
        const int16x8x2_t x = vld2q_s16(row->x + i); /* of weights 0, 2, 4.. and 1, 3, 5.. */
        const int16x8_t w = (int16x8_t)vldrbq_s8(row->w + i);
        const uint32x4_t mixed = vmulq_n_u32(veorq_u32(word, vshrq_n_u32(word, 15)), TT_GOLDEN);
        const int16x8_t noise = (int16x8_t)veorq_u32(mixed, vshrq_n_u32(mixed, 16));
        const int16x8_t even = vqsubq_s16(vsliq_n_s16(noise, w, 8), vrmulhq_s16(x.val[0], step));
        const int16x8_t odd = vqsubq_s16(vsriq_n_s16(w, noise, 8), vrmulhq_s16(x.val[1], step));
        const int8x16_t moved = (int8x16_t)vsriq_n_s16(odd, even, 8);
        vstrbq_s8(row->w + i, vmaxq_s8(vminq_s8(moved, most), least));
        word = vaddq_n_u32(word, 4u * TT_GOLDEN);
    }
#elif TT_HAS_DSP
    i = row->limit == 127 ? tt_move_fours(row, 127) : tt_move_fours(row, row->limit);
#else
    (void)row;
#endif
    return i;
}

/* The same of weights with fractions. rests: only those at the limit change, whose fractions it holds. */
static inline int32_t tt_move_many_fine(const tt_dense_row *row, int8_t *fraction, bool rests)
{
    int32_t i = 0;
#if TT_HAS_MVE
    const int16x8_t most = vdupq_n_s16((int16_t)(row->limit * 256)), least = vnegq_s16(most);
    const int16x8_t step = vdupq_n_s16((int16_t)row->step);
    for (; i + 16 <= row->count; i += 16) {
        const int16x8_t w = (int16x8_t)vldrbq_s8(row->w + i);
        if (rests && (int32_t)vmaxavq_s8(0u, (int8x16_t)w) < row->limit) {
            continue;
        }
        const int16x8x2_t x = vld2q_s16(row->x + i);
        const int8x16_t fractions = vldrbq_s8(fraction + i);
        int16x8_t even = vsubq_s16(vrmulhq_s16(x.val[0], step), vmovlbq_s8(fractions));
        int16x8_t odd = vsubq_s16(vrmulhq_s16(x.val[1], step), vmovltq_s8(fractions));
        even = vmaxq_s16(vminq_s16(vqsubq_s16(vshlq_n_s16(w, 8), even), most), least);
        odd = vmaxq_s16(vminq_s16(vqsubq_s16(vbicq_n_s16(w, 0xff), odd), most), least);
        vstrbq_s8(fraction + i, (int8x16_t)vsliq_n_s16(even, odd, 8));
        even = vaddq_n_s16(even, 128);
        vstrbq_s8(row->w + i, (int8x16_t)vsriq_n_s16(vaddq_n_s16(odd, 128), even, 8));
    }
#elif TT_HAS_DSP
    const int32_t limit = row->limit, step = row->step;
    int32_t half = 1 << 15;
    __asm__("" : "+r"(half));
    for (; i + 4 <= row->count; i += 4) {
        uint32_t four, fractions, even, odd, low, high;
        memcpy(&four, row->w + i, sizeof four);
        if (rests && tt_within4(four, limit - 1) == four) {
            continue;
        }
        memcpy(&fractions, fraction + i, sizeof fractions);
        tt_moves4(&even, &odd, row->x + i, step, half);
        __asm__("sxtb16 %0, %1" : "=r"(low) : "r"(fractions));
        __asm__("sxtb16 %0, %1, ror #8" : "=r"(high) : "r"(fractions));
        __asm__("ssub16 %0, %0, %1" : "+r"(even) : "r"(low));
        __asm__("ssub16 %0, %0, %1" : "+r"(odd) : "r"(high));
        even = tt_within2(tt_less(four << 8 & TT_ODD_BYTES, even), limit);
        odd = tt_within2(tt_less(four & TT_ODD_BYTES, odd), limit);
        fractions = tt_with_bytes(odd << 8 & TT_ODD_BYTES, even);
        __asm__("sadd16 %0, %0, %1" : "+r"(even) : "r"(128u * TT_EACH_HALF));
        __asm__("sadd16 %0, %0, %1" : "+r"(odd) : "r"(128u * TT_EACH_HALF));
        four = tt_with_upper_bytes(odd & TT_ODD_BYTES, even);
        memcpy(fraction + i, &fractions, sizeof fractions);
        memcpy(row->w + i, &four, sizeof four);
    }
#else
    (void)row;
    (void)fraction;
    (void)rests;
#endif
    return i;
}

static inline tt_dense_row tt_row_of(int8_t *w, const int16_t *x, int32_t count, int32_t limit, int32_t g,
    int32_t multiplier, int32_t shift, const int32_t *rate, int32_t p)
{
    const int32_t size = tt_high_multiply(multiplier, rate[0]);
    /* lifted, so that most products need their upper word alone */
    const int32_t step = tt_scaled(g * (1 << 16), size, shift + rate[1] + p + 8 + TT_ROW_BITS - 31 - 16);
    const tt_dense_row row = {w, x, count, limit, tt_clamp(step, -32767, 32767), 0u};
    return row;
}

/* The step of all weights (outputs, inputs), rounded by noise; x: inputs less their zero point, times 2^TT_LIFT; multiplier,
 * shift: of every output; rate, p: see step_size in the twin. Returns weight 0. */
TT_SHARED int8_t tt_dense_update(int8_t *w, const int16_t *x, const int8_t *g, const int32_t *multiplier,
    const int8_t *shift, const int32_t *rate, int32_t p, int32_t seed, int32_t outputs, int32_t inputs, int32_t limit)
{
    const int32_t largest = tt_largest_input(x, inputs), words = (inputs + 3) / 4;
    uint32_t word = (uint32_t)seed;
    for (int32_t o = 0; o < outputs; o++, word += (uint32_t)words * TT_GOLDEN) {
        tt_dense_row row = tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p);
        row.word = word;
        uint32_t noise = 0;
        for (int32_t i = tt_rests(&row, largest) ? tt_hold_many(&row) : tt_move_many(&row); i < inputs; i++) {
            noise = i % 4 == 0 ? tt_noise_of(word + (uint32_t)(i / 4) * TT_GOLDEN, TT_GOLDEN) : noise >> 8;
            const int32_t moved = row.w[i] * 256 + (int32_t)(noise & 255u) - tt_row_move(&row, i);
            row.w[i] = (int8_t)tt_clamp(moved >> 8, -limit, limit);
        }
    }
    return w[0];
}

/* The same of weights with fractions. */
TT_SHARED int8_t tt_dense_update_fine(int8_t *w, int8_t *fraction, const int16_t *x, const int8_t *g,
    const int32_t *multiplier, const int8_t *shift, const int32_t *rate, int32_t p, int32_t outputs, int32_t inputs,
    int32_t limit)
{
    const int32_t largest = tt_largest_input(x, inputs);
    for (int32_t o = 0; o < outputs; o++, fraction += inputs) {
        const tt_dense_row row = tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p);
        const bool rests = tt_rests(&row, largest);
        for (int32_t i = tt_move_many_fine(&row, fraction, rests); i < inputs; i++) {
            if (rests && row.w[i] < limit && row.w[i] > -limit) {
                continue;
            }
            const int32_t whole = row.w[i] * 256 + fraction[i] - tt_row_move(&row, i);
            const int32_t value = tt_clamp(whole, -limit * 256, limit * 256), rounded = (value + 128) >> 8;
            row.w[i] = (int8_t)rounded;
            fraction[i] = (int8_t)(value - rounded * 256);
        }
    }
    return w[0];
}

/* Adds the squares of a row's gradients to its sum (64 bits, the low word first), for all rows. Returns `outputs`. */
static inline int32_t tt_dense_squares(
    int32_t *rows, const int16_t *x, const int8_t *g, int32_t outputs, int32_t inputs)
{
    int64_t squares = 0;
    for (int32_t i = 0; i < inputs; i++) {
        squares += (x[i] >> TT_LIFT) * (x[i] >> TT_LIFT);
    }
    for (int32_t o = 0; o < outputs; o++) {
        int64_t sum;
        memcpy(&sum, rows + 2 * o, sizeof sum);
        sum += g[o] * g[o] * squares;
        memcpy(rows + 2 * o, &sum, sizeof sum);
    }
    return outputs;
}

#endif
