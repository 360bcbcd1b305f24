/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Convolutions over all channels on vectors (Helium) whose shapes no schedule takes: output channels that are no whole
 * vectors, and dilated windows. Where there are no vectors, plain C gives the same bits.
 *
 * Four output channels are computed at a time, and in those that are left over four pixels. If these are few, the last four
 * channels end with the last one instead, and some are computed twice.
 */
#ifndef TT_MVE_CONV_H
#define TT_MVE_CONV_H

#include "tt_conv.h"
#include "tt_mve.h"

/* What the ends of the sums read of every output channel. */
typedef struct tt_conv_tables {
    const int8_t *w;
    const int32_t *bias, *multiplier;
    const int8_t *shift;
} tt_conv_tables;

static inline TT_ALWAYS tt_conv_tables tt_conv_tables_of(
    const int8_t *w, const int32_t *bias, const int32_t *multiplier, const int8_t *shift)
{
    return (tt_conv_tables){w, bias, multiplier, shift};
}

/* -zero times the sum of a channel's n weights, for four channels. */
static inline TT_ALWAYS tt_i32x4 tt_corrections_x4(const int8_t *w, int32_t n, int32_t zero)
{
    return tt_lanes(-zero * tt_sum8(0, w, n), -zero * tt_sum8(0, w + n, n), -zero * tt_sum8(0, w + 2 * n, n),
        -zero * tt_sum8(0, w + 3 * n, n));
}

#if TT_HAS_MVE
/* y of tt_pixels8 in four channels, from windows of at most TT_FEW elements: weights stay in registers. A zero point is taken
 * from eight elements, which are 16 bits wide; with more, corrections take the registers of two channels' weights. */
#define TT_FEW 16
#define TT_FEW_PIXELS(type, there, load, less, dot, taken)                                                             \
    do {                                                                                                               \
        const type w_0 = load(w, there), w_1 = load(w + n, there);                                                     \
        const type w_2 = load(w + 2 * n, there), w_3 = load(w + 3 * n, there);                                         \
        for (int32_t i = 0; i < pixels; i++, to += outputs, windows += n) {                                            \
            const type a = less(load(windows, there));                                                                 \
            const type v_2 = taken ? load(w + 2 * n, there) : w_2, v_3 = taken ? load(w + 3 * n, there) : w_3;         \
            tt_i32x4 sums = tt_lanes(dot(a, w_0), dot(a, w_1), dot(a, v_2), dot(a, v_3));                              \
            sums = taken ? sums + correction : sums;                                                                   \
            tt_store8_x4(to, tt_ended8_x4(sums, bias, multiplier, shift, end));                                        \
        }                                                                                                              \
    } while (0)
#define TT_LOAD_8(from, there) (n == 8 ? vldrbq_s16(from) : vldrbq_z_s16(from, there))
#define TT_LOAD_16(from, there) (n == 16 ? vldrbq_s8(from) : vldrbq_z_s8(from, there))
#define TT_LESS_ZERO(a) (zero == 0 ? (a) : vsubq_n_s16(a, (int16_t)zero))
#define TT_NO_LESS(a) (a)
static inline TT_ALWAYS void tt_few_pixels8(int8_t *to, const int8_t *windows, const int8_t *w, tt_i32x4 correction,
    int32_t pixels, int32_t outputs, int32_t n, int32_t zero, tt_i32x4 bias, tt_i32x4 multiplier, tt_i32x4 shift,
    tt_end8 end)
{
    const mve_pred16_t few = vctp8q((uint32_t)n), fewer = vctp16q((uint32_t)n);
    if (n <= 8) {
        TT_FEW_PIXELS(int16x8_t, fewer, TT_LOAD_8, TT_LESS_ZERO, vmladavq_s16, false);
    } else {
        TT_FEW_PIXELS(int8x16_t, few, TT_LOAD_16, TT_NO_LESS, vmladavq_s8, zero != 0);
    }
}
#endif

/* tt_pixels8 in the channels from `first` on: four pixels at a time, of which the last ones end with the last pixel. */
static inline TT_ALWAYS void tt_few_channels8(int8_t *y, const int8_t *windows, const int32_t *corrections, int32_t pixels,
    int32_t first, int32_t outputs, int32_t n, int32_t zero, tt_conv_tables by, tt_end8 end)
{
    for (int32_t o = first; o < outputs; o++) {
        const int8_t *const w = by.w + o * n;
        const tt_i32x4 bias = tt_all(by.bias[o]), multiplier = tt_all(by.multiplier[o]);
        const tt_i32x4 shift = tt_clamp_x4(tt_all(by.shift[o]), -31, 31);
        int32_t correction = 0;
        if (zero != 0) {
            correction = corrections == NULL ? -zero * tt_sum8(0, w, n) : corrections[o];
        }
        for (int32_t i = 0; i < pixels; i += 4) {
            const int32_t at = i + 4 <= pixels ? i : pixels - 4;
            int32_t sum_0 = correction, sum_1 = correction, sum_2 = correction, sum_3 = correction;
            tt_dot8_x4(&sum_0, &sum_1, &sum_2, &sum_3, w, windows + at * n, n);
            const tt_i32x4 sums = tt_lanes(sum_0, sum_1, sum_2, sum_3);
            tt_scatter8_x4(y + at * outputs + o, outputs, tt_ended8_x4(sums, bias, multiplier, shift, end));
        }
    }
}

/* Channels behind whole fours that are computed in fours of pixels: all, if they are less than four; one, or two with long
 * windows, if that saves four fours or more. 1x1, 8x8x32 to 33 takes 19,603 instead of 21,242 instructions on a
 * Cortex-M55. */
static inline TT_ALWAYS int32_t tt_last_channels(int32_t outputs, int32_t pixels, int32_t n)
{
    const int32_t rest = outputs % 4, most = n > 16 ? 2 : 1;
    return outputs < 4 || (rest <= most && rest * ((pixels + 3) / 4) + 4 <= pixels) ? rest : 0;
}

/* y of `pixels` pixels, whose windows of n elements lie one after the other, at least four if there are less than four
 * channels. corrections: those of all channels, or NULL. */
static inline TT_ALWAYS void tt_pixels8(int8_t *y, const int8_t *windows, const int32_t *corrections, int32_t pixels,
    int32_t outputs, int32_t n, int32_t zero, tt_conv_tables by, tt_end8 end)
{
    const int32_t apart = tt_last_channels(outputs, pixels, n);
    if (apart > 0) {
        tt_few_channels8(y, windows, corrections, pixels, outputs - apart, outputs, n, zero, by, end);
    }
    for (int32_t j = 0; j < outputs - apart; j += 4) {
        const int32_t o = j + 4 <= outputs ? j : outputs - 4;
        const int8_t *const w = by.w + o * n;
        const tt_i32x4 bias = tt_load32_x4(by.bias + o), multiplier = tt_load32_x4(by.multiplier + o);
        const tt_i32x4 shift = tt_clamp_x4(tt_load8_x4(by.shift + o), -31, 31);
        tt_i32x4 correction = tt_all(0);
        if (zero != 0) {
            correction = corrections == NULL ? tt_corrections_x4(w, n, zero) : tt_load32_x4(corrections + o);
        }
        int8_t *to = y + o;
#if TT_HAS_MVE
        if (n <= TT_FEW) {
            tt_few_pixels8(to, windows, w, correction, pixels, outputs, n, zero, bias, multiplier, shift, end);
            continue;
        }
#endif
        for (int32_t i = 0; i < pixels; i++, to += outputs) {
            int32_t sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
            tt_dot8_x4(&sum_0, &sum_1, &sum_2, &sum_3, windows + i * n, w, n);
            tt_i32x4 sums = tt_lanes(sum_0, sum_1, sum_2, sum_3);
            sums = zero == 0 ? sums : sums + correction;
            tt_store8_x4(to, tt_ended8_x4(sums, bias, multiplier, shift, end));
        }
    }
}

/* A turn of a QConv of 1x1: `strip` pixels, which are copied to scratch together. */
static inline TT_ALWAYS void tt_product8(int8_t *y, int8_t *scratch, const int8_t *x, int32_t turn, tt_conv_tables by,
    int32_t outputs, int32_t inputs, int32_t zero, int32_t strip, tt_end8 end)
{
    tt_copy8(scratch, x + turn * strip * inputs, strip * inputs);
    tt_pixels8(y + turn * strip * outputs, scratch, NULL, strip, outputs, inputs, zero, by, end);
}

/* The row of the image that begins at column -left, `n` elements of it, with its border. x: the row, NULL: there is none. */
static inline TT_ALWAYS void tt_bordered8(int8_t *to, const int8_t *x, int32_t n, tt_conv_shape of)
{
    const int32_t left = of.left * of.channels, row = of.width * of.channels, inside = n - left < row ? n - left : row;
    if (x == NULL) {
        memset(to, of.zero, (size_t)n);
        return;
    }
    if (left > 0) {
        memset(to, of.zero, (size_t)left);
    }
    tt_copy8(to + left, x, inside);
    if (left + inside < n) {
        memset(to + left + inside, of.zero, (size_t)(n - left - inside));
    }
}

/* tt_copy8, short for one vector; n is a constant. */
static inline TT_ALWAYS void tt_copy_few8(int8_t *to, const int8_t *from, int32_t n)
{
#if TT_HAS_MVE
    if (n <= 16) {
        const mve_pred16_t few = vctp8q((uint32_t)n);
        __asm__ volatile("vpstt\n\tvldrbt.8 q0, [%[from]]\n\tvstrbt.8 q0, [%[to]]"
            :
            : [to] "r"(to), [from] "r"(from), [few] "Up"(few)
            : "q0", "memory");
        return;
    }
#endif
    tt_copy8(to, from, n);
}

/* tt_fill8, short for one vector; n is a constant. */
static inline TT_ALWAYS void tt_fill_few8(int8_t *to, int32_t value, int32_t n)
{
#if TT_HAS_MVE
    if (n <= 16) {
        const mve_pred16_t few = vctp8q((uint32_t)n);
        const int8x16_t all = vdupq_n_s8((int8_t)value);
        __asm__ volatile("vpst\n\tvstrbt.8 %q[all], [%[to]]" : : [to] "r"(to), [all] "w"(all), [few] "Up"(few) : "memory");
        return;
    }
#endif
    tt_fill8(to, value, n);
}

/* Columns of taps up to which each is tested at a border: a run of border costs more to fill. */
#define TT_TESTED_COLUMNS 3

/* A row of taps that is partly outside of the image. from, column: where the first tap would be. */
static inline TT_ALWAYS void tt_dilated_edge8(int8_t *to, const int8_t *from, int32_t column, tt_conv_shape of)
{
    const int32_t apart = of.dilation_columns, n = of.channels;
    if (of.columns <= TT_TESTED_COLUMNS) {
        for (int32_t j = 0; j < of.columns; j++) {
            const int32_t at = column + j * apart;
            if (at >= 0 && at < of.width) {
                tt_copy_few8(to + j * n, from + j * apart * n, n);
            } else {
                tt_fill_few8(to + j * n, of.zero, n);
            }
        }
        return;
    }
    /* taps in front of the row, and from which one on they are behind it */
    const int32_t first = tt_clamp((apart - 1 - column) / apart, 0, of.columns);
    const int32_t end = tt_clamp((of.width - column + apart - 1) / apart, first, of.columns);
    if (first > 0) {
        tt_fill8(to, of.zero, first * n);
    }
    for (int32_t j = first; j < end; j++) {
        tt_copy_few8(to + j * n, from + j * apart * n, n);
    }
    if (end < of.columns) {
        tt_fill8(to + end * n, of.zero, (of.columns - end) * n);
    }
}

/* The window of a pixel, its columns one by one. x: the image; row, column: of its first tap. */
static inline TT_ALWAYS void tt_dilated8(int8_t *to, const int8_t *x, int32_t row, int32_t column, tt_conv_shape of)
{
    const int32_t apart = of.dilation_columns, n = of.channels;
    const bool inside = column >= 0 && column + (of.columns - 1) * apart < of.width;
    for (int32_t i = 0; i < of.rows; i++, row += of.dilation_rows, to += of.columns * n) {
        const int8_t *const from = x + (row * of.width + column) * n;
        if (row < 0 || row >= of.height) {
            tt_fill8(to, of.zero, of.columns * n);
        } else if (inside) {
#pragma GCC unroll 5
            for (int32_t j = 0; j < of.columns; j++) {
                tt_copy_few8(to + j * n, from + j * apart * n, n);
            }
        } else {
            tt_dilated_edge8(to, from, column, of);
        }
    }
}

/* A row of a QConv over all channels, of.across pixels at a time, of which the last ones end with the row. scratch: a correction for each output channel if zero is not 0, the copied rows, and
 * the windows. */
static inline TT_ALWAYS void tt_conv8(int8_t *y, int8_t *scratch, const int8_t *x, int32_t line, tt_conv_tables by,
    tt_conv_shape of, tt_end8 end)
{
    const int32_t run = of.columns * of.channels, n = of.rows * run;
    const int32_t pitch = (of.wide - 1) * of.right * of.channels + run;
    int32_t *const corrections = (int32_t *)(void *)scratch;
    if (of.zero != 0) {
        for (int32_t o = 0; line == 0 && o < of.outputs; o++) {
            corrections[o] = -of.zero * tt_sum8(0, by.w + o * n, n);
        }
        scratch += 4 * of.outputs;
    }
    int8_t *const rows = scratch;
    int8_t *const windows = rows + (of.strip == 0 ? 0 : ((of.strip - 1) * of.down + of.rows) * pitch);
    const int32_t first = line % of.high, step = of.strip == 0 ? 0 : first % of.strip;
    const int8_t *const image = x + line / of.high * of.height * of.width * of.channels;
    if (of.strip > 0 && step == 0) {
        for (int32_t r = 0; r < (of.strip - 1) * of.down + of.rows; r++) {
            const int32_t row = first * of.down - of.top + r;
            const bool there = row >= 0 && row < of.height;
            tt_bordered8(rows + r * pitch, there ? image + row * of.width * of.channels : NULL, pitch, of);
        }
    }
    y += line * of.wide * of.outputs;
    for (int32_t column = 0; column < of.wide; column += of.across) {
        const int32_t from = column + of.across <= of.wide ? column : of.wide - of.across;
        int8_t *to = windows;
        for (int32_t i = from; i < from + of.across; i++, to += n) {
            if (of.strip == 0) {
                tt_dilated8(to, image, first * of.down - of.top, i * of.right - of.left, of);
                continue;
            }
            for (int32_t r = 0; r < of.rows; r++) {
                tt_copy8(to + r * run, rows + (step * of.down + r) * pitch + i * of.right * of.channels, run);
            }
        }
        tt_pixels8(y + from * of.outputs, windows, corrections, of.across, of.outputs, n, of.zero, by, end);
    }
}

#endif
