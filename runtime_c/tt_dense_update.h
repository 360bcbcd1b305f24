/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Updates of the int8 weights of a dense layer whose input is one sample: the gradient of weight (o, i) is g[o] x[i], less
 * x's zero point. Row by row: the row's step is a number of 16 bits (for weights with fractions of 32), of which each weight
 * takes a multiple; where it has more, moves are tt_moved_weight's. A row that no gradient moves is only held within its
 * limit. Each gives the same bits on every core and on a host. Twins: compiler/tinytrain_compile/ops/int8/steps.py.
 */
#ifndef TT_DENSE_UPDATE_H
#define TT_DENSE_UPDATE_H

#include "tt_dsp.h"

#if TT_HAS_MVE
#include <arm_mve.h>
#endif

#define TT_LIFT 7 /* bits to the left of inputs in scratch: they have nine with their sign, so sixteen in all */
#define TT_ROW_BITS (16 - TT_LIFT) /* bits of fraction of a row's step of 16 bits; a move is the upper word of a product */
#define TT_FINE_BITS (16 + TT_ROW_BITS) /* the same of 32 bits */
#define TT_GOLDEN 0x9e3779b1u /* by how much the word that makes noise differs from four weights to the next; mixes it too */

/* A row: weights, their number and magnitude at most; inputs in scratch; step, in 1/256 of a weight with TT_FINE_BITS
 * bits of fraction (the lower ones 0, where it has 16 bits), for every unit of an input; whether it has more, and what it is
 * made of; the word that makes the noise of its first weights. */
typedef struct {
    int8_t *w;
    const int16_t *x;
    int32_t count, limit, step;
    bool large;
    int32_t g, size, exponent;
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
static inline bool tt_moves_nothing(const tt_dense_row *row, int32_t largest)
{
    const int32_t upper = ((row->step < 0 ? -row->step : row->step) >> 16) + ((row->step & 65535) != 0 ? 1 : 0);
    return !row->large && upper * largest < 1 << (TT_ROW_BITS - 1);
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
    if (row->large) {
        return tt_clamp(tt_scaled(row->g * (row->x[i] >> TT_LIFT), row->size, row->exponent), -(1 << 24), 1 << 24);
    }
    return ((int32_t)((int64_t)row->step * row->x[i] >> 16) + (1 << 15)) >> 16;
}

#if TT_HAS_DSP
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
    __asm__("smlawb %0, %1, %2, %3" : "=r"(m0) : "r"(step), "r"(x01), "r"(half));
    __asm__("smlawb %0, %1, %2, %3" : "=r"(m2) : "r"(step), "r"(x23), "r"(half));
    __asm__("smlawt %0, %1, %2, %3" : "=r"(m1) : "r"(step), "r"(x01), "r"(half));
    __asm__("smlawt %0, %1, %2, %3" : "=r"(m3) : "r"(step), "r"(x23), "r"(half));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*even) : "r"(m2), "r"(m0));
    __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(*odd) : "r"(m3), "r"(m1));
}

/* halves minus moves; differences saturate: both are beyond the limit then. */
static inline TT_ALWAYS uint32_t tt_sub_saturated(uint32_t halves, uint32_t moves)
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
static inline TT_ALWAYS int32_t tt_move_by_four(const tt_dense_row *row, int32_t limit)
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
        even = tt_sub_saturated(tt_with_bytes(four << 8 & bytes, noise), even);
        odd = tt_sub_saturated(tt_with_upper_bytes(four & bytes, noise), odd);
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

#if TT_HAS_MVE
/* Moves weights with noise; how many, a multiple of sixteen. */
static inline TT_ALWAYS int32_t tt_move_by_sixteen(const tt_dense_row *row, int32_t limit)
{
    const int32_t count = row->count & ~15;
    uint32_t none = 0;
    TT_UNSEEN(none); /* as in tt_count_x4 */
    uint32x4_t word = vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(none, 1), TT_GOLDEN), row->word);
    const int8x16_t most = vdupq_n_s8((int8_t)limit), least = vnegq_s8(most);
    const int16x8_t step = vdupq_n_s16((int16_t)(row->step >> 16));
    for (int32_t i = 0; i < count; i += 16) {
        const uint32x4_t mixed = vmulq_n_u32(veorq_u32(word, vshrq_n_u32(word, 15)), TT_GOLDEN);
        uint32x4_t noise = veorq_u32(mixed, vshrq_n_u32(mixed, 16));
        word = vaddq_n_u32(word, 4u * TT_GOLDEN);
        __asm__ volatile("" : "+w"(noise) : : "memory"); /* one after the other: there are eight registers */
        const int16x8x2_t x = vld2q_s16(row->x + i); /* of weights 0, 2, 4.. and 1, 3, 5.. */
        int16x8_t even = vrmulhq_s16(x.val[0], step), odd = vrmulhq_s16(x.val[1], step);
        __asm__ volatile("" : "+w"(even), "+w"(odd) : : "memory");
        const int16x8_t w = (int16x8_t)vldrbq_s8(row->w + i);
        even = vqsubq_s16(vsliq_n_s16((int16x8_t)noise, w, 8), even);
        odd = vqsubq_s16(vsriq_n_s16(w, (int16x8_t)noise, 8), odd);
        const int8x16_t moved = (int8x16_t)vsriq_n_s16(odd, even, 8);
        vstrbq_s8(row->w + i, vmaxq_s8(limit == 127 ? moved : vminq_s8(moved, most), least));
    }
    return count;
}
#endif

/* The same on any core; how many, a multiple of four: there are no instructions for the others. */
static inline int32_t tt_move_many(const tt_dense_row *row)
{
#if TT_HAS_MVE
    return row->limit == 127 ? tt_move_by_sixteen(row, 127) : tt_move_by_sixteen(row, row->limit);
#elif TT_HAS_DSP
    return row->limit == 127 ? tt_move_by_four(row, 127) : tt_move_by_four(row, row->limit);
#else
    (void)row;
    return 0;
#endif
}

#if TT_HAS_MVE
/* x times the step, upper * 2^16 + lower, of which the upper word, rounded: the products of both halves, of the first one
 * with what it is rounded by. */
static inline TT_ALWAYS int16x8_t tt_moves_x8(int16x8_t x, int16_t upper, int16_t lower)
{
    const int16x8_t rest = vhaddq_s16(vmulq_n_s16(x, upper), vmulhq_s16(x, vdupq_n_s16(lower)));
    return vaddq_s16(vrmulhq_s16(x, vdupq_n_s16(upper)), vrshrq_n_s16(rest, 15));
}

/* Numbers within +-(32767 - above), less above + 1; above is below 16384. */
static inline TT_ALWAYS int16x8_t tt_limited_x8(int16x8_t v, int16_t above)
{
    return vqsubq_n_s16(vqaddq_n_s16(v, above), (int16_t)(2 * above + 1));
}
#endif

/* The same of weights with fractions. held: only those at the limit change, whose fractions it holds. */
static inline TT_ALWAYS int32_t tt_move_many_fine(const tt_dense_row *row, int8_t *fraction, bool held)
{
    int32_t i = 0;
#if TT_HAS_MVE
    const int16_t upper = (int16_t)((row->step + (1 << 15)) >> 16), lower = (int16_t)row->step;
    const int16_t above = (int16_t)(32767 - row->limit * 256); /* beyond the limit, where numbers saturate */
    for (; i + 16 <= row->count; i += 16) {
        const int16x8_t w = (int16x8_t)vldrbq_s8(row->w + i);
        if (held && (int32_t)vmaxavq_s8(0u, (int8x16_t)w) < row->limit) {
            continue;
        }
        const int16x8x2_t x = vld2q_s16(row->x + i);
        int16x8_t even = vsubq_s16(tt_moves_x8(x.val[0], upper, lower), vmovlbq_s8(vldrbq_s8(fraction + i)));
        __asm__ volatile("" : "+w"(even) : : "memory"); /* before the others: there are eight registers */
        int16x8_t odd = vsubq_s16(tt_moves_x8(x.val[1], upper, lower), vmovltq_s8(vldrbq_s8(fraction + i)));
        even = tt_limited_x8(vqsubq_s16(vshlq_n_s16(w, 8), even), above);
        odd = tt_limited_x8(vqsubq_s16(vbicq_n_s16(w, 0xff), odd), above);
        const int16x8_t upper_even = vaddq_n_s16(even, (int16_t)(above + 129));
        const int16x8_t upper_odd = vaddq_n_s16(odd, (int16_t)(above + 129));
        even = vaddq_n_s16(even, (int16_t)(above + 1));
        odd = vaddq_n_s16(odd, (int16_t)(above + 1));
        vstrbq_s8(fraction + i, (int8x16_t)vsliq_n_s16(even, odd, 8));
        vstrbq_s8(row->w + i, (int8x16_t)vsriq_n_s16(upper_odd, upper_even, 8));
    }
#elif TT_HAS_DSP
    const int32_t limit = row->limit, step = row->step;
    int32_t half = 1 << 15;
    __asm__("" : "+r"(half));
    for (; i + 4 <= row->count; i += 4) {
        uint32_t four, fractions, even, odd, low, high;
        memcpy(&four, row->w + i, sizeof four);
        if (held && tt_within4(four, limit - 1) == four) {
            continue;
        }
        memcpy(&fractions, fraction + i, sizeof fractions);
        tt_moves4(&even, &odd, row->x + i, step, half);
        __asm__("sxtb16 %0, %1" : "=r"(low) : "r"(fractions));
        __asm__("sxtb16 %0, %1, ror #8" : "=r"(high) : "r"(fractions));
        __asm__("ssub16 %0, %0, %1" : "+r"(even) : "r"(low));
        __asm__("ssub16 %0, %0, %1" : "+r"(odd) : "r"(high));
        even = tt_within2(tt_sub_saturated(four << 8 & TT_ODD_BYTES, even), limit);
        odd = tt_within2(tt_sub_saturated(four & TT_ODD_BYTES, odd), limit);
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
    (void)held;
#endif
    return i;
}

/* bits: of fraction of its step. */
static inline tt_dense_row tt_row_of(int8_t *w, const int16_t *x, int32_t count, int32_t limit, int32_t g,
    int32_t multiplier, int32_t shift, const int32_t *rate, int32_t p, int32_t bits)
{
    const int32_t size = tt_high_multiply(multiplier, rate[0]), exponent = shift + rate[1] + p + 8 - 31;
    /* lifted, so that most products need their upper word alone */
    const int32_t step = tt_scaled(g * (1 << 22), size, exponent + bits - 22), most = 32767 << (bits - TT_ROW_BITS);
    const bool large = step < -most || step > most;
    const tt_dense_row row = {
        w, x, count, limit, large ? 0 : step * (1 << (TT_FINE_BITS - bits)), large, g, size, exponent, 0u};
    return row;
}

/* Moves a row, rounded by noise. rests: its step moves no weight. */
static inline void tt_move_row(const tt_dense_row *row, bool rests)
{
    uint32_t noise = 0;
    int32_t i = 0;
    if (rests) {
        i = tt_hold_many(row);
    } else if (!row->large) {
        i = tt_move_many(row);
    }
    for (; i < row->count; i++) {
        noise = i % 4 == 0 ? tt_noise_of(row->word + (uint32_t)(i / 4) * TT_GOLDEN, TT_GOLDEN) : noise >> 8;
        const int32_t moved = row->w[i] * 256 + (int32_t)(noise & 255u) - tt_row_move(row, i);
        row->w[i] = (int8_t)tt_clamp(moved >> 8, -row->limit, row->limit);
    }
}

/* The same of weights with fractions. */
static inline void tt_move_row_fine(const tt_dense_row *row, int8_t *fraction, bool rests)
{
    int32_t i = 0;
    if (!row->large) {
        i = rests ? tt_move_many_fine(row, fraction, true) : tt_move_many_fine(row, fraction, false);
    }
    for (; i < row->count; i++) {
        if (rests && row->w[i] < row->limit && row->w[i] > -row->limit) {
            continue;
        }
        const int32_t whole = row->w[i] * 256 + fraction[i] - tt_row_move(row, i);
        const int32_t value = tt_clamp(whole, -row->limit * 256, row->limit * 256), rounded = (value + 128) >> 8;
        row->w[i] = (int8_t)rounded;
        fraction[i] = (int8_t)(value - rounded * 256);
    }
}

/* The step of all weights (outputs, inputs), rounded by noise; x: inputs less their zero point, times 2^TT_LIFT; multiplier,
 * shift: of every output; rate, p: see step_size in the twin. Returns weight 0. */
TT_SHARED int8_t tt_dense_update(int8_t *w, const int16_t *x, const int8_t *g, const int32_t *multiplier,
    const int8_t *shift, const int32_t *rate, int32_t p, int32_t seed, int32_t outputs, int32_t inputs, int32_t limit)
{
    const int32_t largest = tt_largest_input(x, inputs), words = (inputs + 3) / 4;
    uint32_t word = (uint32_t)seed;
    for (int32_t o = 0; o < outputs; o++, word += (uint32_t)words * TT_GOLDEN) {
        tt_dense_row row =
            tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p, TT_ROW_BITS);
        row.word = word;
        tt_move_row(&row, tt_moves_nothing(&row, largest));
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
        const tt_dense_row row =
            tt_row_of(w + o * inputs, x, inputs, limit, g[o], multiplier[o], shift[o], rate, p, TT_FINE_BITS);
        tt_move_row_fine(&row, fraction, tt_moves_nothing(&row, largest));
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
