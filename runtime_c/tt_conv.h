/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Convolutions over all channels whose shapes no schedule takes: odd maps, odd output channels, dilated windows. Two pixels
 * and two output channels are computed at a time, the last ones twice if their number is odd. The same bits on every core. */
#ifndef TT_CONV_H
#define TT_CONV_H

#include "tt_dense.h"

/* Sizes of a convolution. top, left: padding; rows, columns: of the window; down, right: its strides; dilation: of rows
 * and columns; high, wide: of the output. strip: output rows whose input rows are copied together, 0: none are copied;
 * across: pixels whose windows are copied together, a divisor of `wide`; zero: of the image. */
typedef struct tt_conv_shape {
    int32_t count, height, width, channels, outputs, top, left, rows, columns, down, right, dilation_rows,
        dilation_columns, high, wide, strip, across, zero;
} tt_conv_shape;

static inline TT_ALWAYS tt_conv_shape tt_conv_shape_of(int32_t count, int32_t height, int32_t width, int32_t channels,
    int32_t outputs, int32_t top, int32_t left, int32_t rows, int32_t columns, int32_t down, int32_t right,
    int32_t dilation_rows, int32_t dilation_columns, int32_t high, int32_t wide, int32_t strip, int32_t across,
    int32_t zero)
{
    return (tt_conv_shape){count, height, width, channels, outputs, top, left, rows, columns, down, right, dilation_rows,
        dilation_columns, high, wide, strip, across, zero};
}

/* The window of a pixel, tap by tap. x: the image; row, column: of its first tap. */
static inline TT_ALWAYS void tt_window8(int8_t *to, const int8_t *x, int32_t row, int32_t column, tt_conv_shape of)
{
    const int32_t step = of.dilation_columns * of.channels, run = of.columns * of.channels;
    const bool inside = column >= 0 && column + (of.columns - 1) * of.dilation_columns < of.width;
    for (int32_t i = 0; i < of.rows; i++, row += of.dilation_rows, to += run) {
        if (row < 0 || row >= of.height) {
            memset(to, of.zero, (size_t)run);
        } else if (inside) {
            const int8_t *const from = x + (row * of.width + column) * of.channels;
            for (int32_t j = 0; j < of.columns; j++) {
                memcpy(to + j * of.channels, from + j * step, (size_t)of.channels);
            }
        } else {
            for (int32_t j = 0, at = column; j < of.columns; j++, at += of.dilation_columns) {
                if (at >= 0 && at < of.width) {
                    memcpy(to + j * of.channels, x + (row * of.width + at) * of.channels, (size_t)of.channels);
                } else {
                    memset(to + j * of.channels, of.zero, (size_t)of.channels);
                }
            }
        }
    }
}

/* The row of the image that begins at column -left, n elements of it, with its border. x: the row, NULL: there is none. */
static inline TT_ALWAYS void tt_row8(int8_t *to, const int8_t *x, int32_t n, tt_conv_shape of)
{
    const int32_t left = of.left * of.channels, row = of.width * of.channels, inside = n - left < row ? n - left : row;
    memset(to, of.zero, (size_t)n);
    if (x != NULL) {
        memcpy(to + left, x, (size_t)inside);
    }
}

/* Elements of one of two windows as tt_widen_two lays them: four of either in turn. from: NULL for elements at zero. */
static inline TT_ALWAYS void tt_widen_one(int16_t *to, const int8_t *from, int32_t zero, int32_t blocks)
{
    for (int32_t i = 0; i < blocks; i++, to += 8) {
        if (from == NULL) {
            memset(to, 0, 4 * sizeof *to);
        } else {
            tt_widen4(to, from + 4 * i, -zero);
        }
    }
}

/* Two windows tap by tap, as tt_widen_two lays them; channels: a multiple of four. on: columns from one to the other. */
static inline TT_ALWAYS void tt_two_windows(
    int16_t *to, const int8_t *x, int32_t row, int32_t column, int32_t on, tt_conv_shape of)
{
    const int32_t blocks = of.channels / 4;
    for (int32_t i = 0; i < of.rows; i++, row += of.dilation_rows) {
        const bool there = row >= 0 && row < of.height;
        for (int32_t j = 0, at = column; j < of.columns; j++, at += of.dilation_columns, to += 2 * of.channels) {
            const bool first = there && at >= 0 && at < of.width, second = there && at + on >= 0 && at + on < of.width;
            if (first && second) {
                tt_widen_two(to, x + (row * of.width + at) * of.channels, on * of.channels, -of.zero, blocks);
                continue;
            }
            tt_widen_one(to, first ? x + (row * of.width + at) * of.channels : NULL, of.zero, blocks);
            tt_widen_one(to + 4, second ? x + (row * of.width + at + on) * of.channels : NULL, of.zero, blocks);
        }
    }
}

/* Two windows of n elements, one after the other, as tt_widen_two lays them; what is no whole block is behind it. */
static inline TT_ALWAYS void tt_widen_windows(int16_t *to, const int8_t *windows, int32_t n, int32_t zero)
{
    const int32_t blocks = n / 4, rest = n % 4;
    tt_widen_two(to, windows, n, -zero, blocks);
    for (int32_t k = 0; k < rest; k++) {
        to[8 * blocks + k] = (int16_t)(windows[4 * blocks + k] - zero);
        to[8 * blocks + rest + k] = (int16_t)(windows[n + 4 * blocks + k] - zero);
    }
}

/* y of two pixels, `on` elements apart (0: of one), from their windows of n elements. */
static inline TT_ALWAYS void tt_two_pixels8(
    int8_t *y, int32_t on, const int16_t *wide, const int8_t *w, int32_t outputs, int32_t n, tt_dense_ends by)
{
    const int32_t blocks = n / 4, rest = n % 4;
    const int16_t *const last = wide + 8 * blocks;
    for (int32_t o = 0; o < outputs; o += 2) {
        const int32_t next = outputs % 2 == 0 || o + 1 < outputs ? 1 : 0;
        const int8_t *const row = w + o * n, *const tail = row + 4 * blocks;
        int32_t sum_00 = 0, sum_01 = 0, sum_10 = 0, sum_11 = 0;
        tt_dot_direct_2x2(&sum_00, &sum_01, &sum_10, &sum_11, wide, row, next * n, blocks);
        TT_UNROLL
        for (int32_t k = 0; k < rest; k++) {
            sum_00 += last[k] * tail[k];
            sum_01 += last[k] * tail[next * n + k];
            sum_10 += last[rest + k] * tail[k];
            sum_11 += last[rest + k] * tail[next * n + k];
        }
        const int8_t y_00 = tt_dense_end(sum_00, o, by), y_10 = tt_dense_end(sum_10, o, by);
        const int8_t y_01 = tt_dense_end(sum_01, o + next, by), y_11 = tt_dense_end(sum_11, o + next, by);
        y[o] = y_00;
        y[o + next] = y_01;
        y[o + on] = y_10;
        y[o + on + next] = y_11;
    }
}

/* A QConv over all channels. scratch: two windows as int16 and as int8, then the rows of a strip. */
static inline TT_ALWAYS void tt_conv16(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, tt_conv_shape of,
    tt_dense_ends by)
{
    const int32_t run = of.columns * of.channels, n = of.rows * run;
    const int32_t pitch = (of.wide - 1) * of.right * of.channels + run;
    const int32_t deep = of.strip == 0 ? 0 : (of.strip - 1) * of.down + of.rows;
    int8_t *const windows = (int8_t *)(scratch + 2 * n), *const rows = windows + 2 * n;
    for (int32_t line = 0; line < of.count * of.high; line++) {
        const int32_t first = line % of.high, step = of.strip == 0 ? 0 : first % of.strip;
        const int8_t *const image = x + line / of.high * of.height * of.width * of.channels;
        for (int32_t r = 0; step == 0 && r < deep; r++) {
            const int32_t row = first * of.down - of.top + r;
            const bool there = row >= 0 && row < of.height;
            tt_row8(rows + r * pitch, there ? image + row * of.width * of.channels : NULL, pitch, of);
        }
        const int32_t top = first * of.down - of.top;
        for (int32_t column = 0; column < of.wide; column += 2) {
            const int32_t next = of.wide % 2 == 0 || column + 1 < of.wide ? 1 : 0, on = next * of.right;
            const int8_t *const under = rows + step * of.down * pitch + column * of.right * of.channels;
            if (of.strip == 0 && of.channels % 4 == 0) {
                tt_two_windows(scratch, image, top, column * of.right - of.left, on, of);
            } else if (of.strip == 0) {
                tt_window8(windows, image, top, column * of.right - of.left, of);
                tt_window8(windows + n, image, top, column * of.right - of.left + on, of);
                tt_widen_windows(scratch, windows, n, of.zero);
            } else if (run % 4 == 0) {
                for (int32_t r = 0; r < of.rows; r++) {
                    tt_widen_two(scratch + 2 * r * run, under + r * pitch, on * of.channels, -of.zero, run / 4);
                }
            } else {
                for (int32_t r = 0; r < of.rows; r++) {
                    memcpy(windows + r * run, under + r * pitch, (size_t)run);
                    memcpy(windows + n + r * run, under + r * pitch + on * of.channels, (size_t)run);
                }
                tt_widen_windows(scratch, windows, n, of.zero);
            }
            int8_t *const to = y + (line * of.wide + column) * of.outputs;
            tt_two_pixels8(to, next * of.outputs, scratch, w, of.outputs, n, by);
        }
    }
}

#endif
