/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Sums of products in tiles of four by four, for cores that have registers for them and no products in pairs. The same bits
 * on every core: a float32 is as exact as an integer up to 2^24, so sums that stay below are float32 where a product and an
 * addition of these are one instruction.
 */
#ifndef TT_LARGE_TILES_H
#define TT_LARGE_TILES_H

#include "tt_errors.h"

/* Most products of an int8 and an int8 less its zero point whose sum is below 2^24: one is at most 255 * 128. */
#define TT_EXACT_TERMS 514

/* What the sums of a tile run over: rows of taps of `run` elements. Row, tap and number i of operand a are behind each other
 * by a_row, a_tap and a_next, its elements are neighbours; likewise b, whose elements are b_step behind each other. */
typedef struct tt_tile {
    int32_t rows, taps, run, a_row, a_tap, a_next, b_row, b_tap, b_next, b_step;
} tt_tile;

#define TT_ADD_FOUR(k, added, s0, s1, s2, s3)                                                                          \
    x = a[k];                                                                                                          \
    s0 = added(x, b_0, s0), s1 = added(x, b_1, s1), s2 = added(x, b_2, s2), s3 = added(x, b_3, s3)
#define TT_ADD_SIXTEEN(k, type, added)                                                                                 \
    do {                                                                                                               \
        const int8_t *const four = b + (k) * of.b_step;                                                                \
        const type b_0 = four[0], b_1 = four[of.b_next], b_2 = four[2 * of.b_next], b_3 = four[3 * of.b_next];         \
        type x;                                                                                                        \
        TT_ADD_FOUR(k, added, s00, s01, s02, s03);                                                                     \
        TT_ADD_FOUR((k) + of.a_next, added, s10, s11, s12, s13);                                                       \
        TT_ADD_FOUR((k) + 2 * of.a_next, added, s20, s21, s22, s23);                                                   \
        TT_ADD_FOUR((k) + 3 * of.a_next, added, s30, s31, s32, s33);                                                   \
    } while (0)
#define TT_KEEP_FOUR(i, s0, s1, s2, s3)                                                                                \
    sums[4 * (i)] += (int32_t)(s0), sums[4 * (i) + 1] += (int32_t)(s1), sums[4 * (i) + 2] += (int32_t)(s2),            \
        sums[4 * (i) + 3] += (int32_t)(s3)
#define TT_DOT_4X4(name, type, added)                                                                                  \
    static inline TT_ALWAYS void name(int32_t *sums, const int16_t *a, const int8_t *b, tt_tile of)                    \
    {                                                                                                                  \
        type s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;                                   \
        type s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;                                   \
        for (int32_t row = of.rows; row > 0; row--, a += of.a_row - of.taps * of.a_tap, b += of.b_row - of.taps * of.b_tap) { \
            for (int32_t tap = 0; tap < of.taps; tap++, a += of.a_tap - of.run, b += of.b_tap - of.run * of.b_step) {  \
                for (int32_t turns = of.run / 2; turns > 0; turns--, a += 2, b += 2 * of.b_step) {                     \
                    TT_ADD_SIXTEEN(0, type, added);                                                                    \
                    TT_ADD_SIXTEEN(1, type, added);                                                                    \
                }                                                                                                      \
                for (int32_t turns = of.run % 2; turns > 0; turns--, a++, b += of.b_step) {                            \
                    TT_ADD_SIXTEEN(0, type, added);                                                                    \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        TT_KEEP_FOUR(0, s00, s01, s02, s03);                                                                           \
        TT_KEEP_FOUR(1, s10, s11, s12, s13);                                                                           \
        TT_KEEP_FOUR(2, s20, s21, s22, s23);                                                                           \
        TT_KEEP_FOUR(3, s30, s31, s32, s33);                                                                           \
    }
#define TT_INTEGER_ADDED(x, b, sum) ((sum) + (x) * (b))
TT_DOT_4X4(tt_integer_4x4, int32_t, TT_INTEGER_ADDED)
#if TT_HAS_EXACT_FMA
TT_DOT_4X4(tt_float_4x4, float, __builtin_fmaf)
#endif

/* sums[4 i + j] += a_i . b_j. terms: the most products of a sum, and of its row, both constants. */
static inline TT_ALWAYS void tt_tile_sums(
    int32_t *sums, const int16_t *a, const int8_t *b, tt_tile of, int32_t terms, int32_t row_terms)
{
#if TT_HAS_EXACT_FMA
    if (terms <= TT_EXACT_TERMS) {
        tt_float_4x4(sums, a, b, of);
        return;
    }
    if (row_terms <= TT_EXACT_TERMS) {
        const int32_t rows = of.rows;
        of.rows = 1;
        for (int32_t row = 0; row < rows; row++) {
            tt_float_4x4(sums, a + row * of.a_row, b + row * of.b_row, of);
        }
        return;
    }
#endif
    (void)terms;
    (void)row_terms;
    tt_integer_4x4(sums, a, b, of);
}

/* The same of what is in row `row` of an image; rows before `low` and from `high` on are 0, and are not read. All other
 * numbers are constants. */
static inline TT_ALWAYS void tt_dot_4x4(int32_t *sums, const int16_t *a, const int8_t *b, int32_t row, int32_t low,
    int32_t high, int32_t rows, int32_t taps, int32_t run, int32_t a_row, int32_t a_tap, int32_t a_next, int32_t b_row,
    int32_t b_tap, int32_t b_next, int32_t b_step)
{
    const int32_t first = row < low ? low - row : 0, last = row + rows > high ? high - row : rows;
    const tt_tile of = {last - first, taps, run, a_row, a_tap, a_next, b_row, b_tap, b_next, b_step};
    tt_tile_sums(sums, a + first * a_row, b + first * b_row, of, rows * taps * run, taps * run);
}

/* tt_windows_error of whole fours of channels: four pixels that the same taps reach, and four channels, are computed together.
 * scratch: the rows of the error that a row of pixels reads, with `before` columns of zeros before each, and `pitch` elements
 * from one to the next. */
static inline TT_ALWAYS void tt_windows_error4(int8_t *y, int16_t *scratch, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep,
    int32_t before, int32_t pitch)
{
    const int32_t line = of.width * of.channels, n = of.outputs, taps = of.columns * of.channels;
    if (of.down > 1 || of.right > 1) {
        memset(y, 0, (size_t)(of.count * of.height * line));
    }
    for (int32_t row = 0; row < of.count * of.height; row++) {
        const tt_reach rows = tt_reach_of(row % of.height, of.top, of.rows, of.down, of.dilation_rows);
        const tt_inside inside = tt_inside_of(rows, 0, of.high);
        for (int32_t i = 0; i < inside.taps; i++) {
            const int32_t at = row / of.height * of.high + rows.from + (inside.first + i) * rows.step;
            int16_t *const to = scratch + i * pitch;
            memset(to, 0, (size_t)pitch * sizeof *to);
            TT_UNROLL
            for (int32_t k = 0; k < of.wide * n; k++) {
                to[before * n + k] = g[at * of.wide * n + k];
            }
        }
        for (int32_t phase = 0; phase < of.right && phase < of.width && rows.taps > 0; phase++) {
            const tt_reach columns = tt_reach_of(phase, of.left, of.columns, of.right, of.dilation_columns);
            const int32_t last = columns.tap + (columns.taps - 1) * columns.apart;
            const int8_t *from = w + (rows.tap + (rows.taps - 1 - inside.first) * rows.apart) * taps + last * of.channels;
            const tt_tile by = {inside.taps, columns.taps, n, pitch, columns.step * n, n, -rows.apart * taps,
                -columns.apart * of.channels, 1, of.rows * taps};
            for (int32_t c = 0; c < of.channels && columns.taps > 0; c += 4, from += 4) {
                for (int32_t x = phase, at = before + columns.from; x < of.width; x += 4 * of.right, at += 4) {
                    int32_t sums[16] = {0};
                    tt_tile_sums(sums, scratch + at * n, from, by, of.rows * of.columns * n, of.columns * n);
                    for (int32_t j = 0; j < 4; j++) {
                        const int32_t factor = tt_factor(multiplier[c + j]);
                        const int32_t down = tt_down(multiplier[c + j], shift[c + j] + exponent);
                        for (int32_t i = 0, to = row * line + x * of.channels + c + j; i < 4; i++) {
                            if (of.width % (4 * of.right) == 0 || x + i * of.right < of.width) {
                                const bool kept = tt_is_kept(mask, to, keep);
                                y[to] = tt_rescaled_error(kept, sums[4 * i + j], factor, down, peak);
                            }
                            to += of.right * of.channels;
                        }
                    }
                }
            }
        }
    }
}

#endif
