/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Convolutions over all channels by the windows of two pixels: odd maps, odd output channels, dilation, strides. Two output
 * channels are computed at a time. An odd pixel at the end is computed twice, an odd channel alone or (from weights as they
 * lie) twice. The same bits on every core. */
#ifndef TT_CONV_H
#define TT_CONV_H

#include "tt_dense.h"
#include "tt_dsp_tiles.h"

/* Sizes of a convolution. top, left: padding; rows, columns: of the window; down, right: its strides; dilation: of rows
 * and columns; high, wide: of the output. strip: output rows whose input rows are copied together, 0: none are copied;
 * across: pixels whose windows are copied together; zero: of the image. */
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

/* The taps along an axis that reach every stride-th element of the image from `phase` on: the first one, the distance
 * between two, and how many. Element `phase` reads the error from `from` on, every step-th element, with the last tap first. */
typedef struct tt_reach {
    int32_t tap, apart, taps, step, from;
} tt_reach;

static inline TT_ALWAYS tt_reach tt_reach_of(
    int32_t phase, int32_t pad, int32_t kernel, int32_t stride, int32_t dilation)
{
    int32_t apart = 1, tap = 0;
    while (apart * dilation % stride != 0) {
        apart++;
    }
    while (tap < apart && (phase + pad - tap * dilation) % stride != 0) {
        tap++;
    }
    const int32_t step = apart * dilation / stride, taps = tap < apart && tap < kernel ? (kernel - 1 - tap) / apart + 1 : 0;
    return (tt_reach){tap, apart, taps, step, (phase + pad - tap * dilation) / stride - (taps - 1) * step};
}

/* The row of the image that begins at column -left, n elements of it, with its border. x: the row, NULL: there is none. */
static inline TT_ALWAYS void tt_row8(int8_t *to, const int8_t *x, int32_t n, tt_conv_shape of)
{
    const int32_t left = of.left * of.channels, row = of.width * of.channels, inside = n - left < row ? n - left : row;
    if (x == NULL) {
        memset(to, of.zero, (size_t)n);
        return;
    }
    memset(to, of.zero, (size_t)left);
    memcpy(to + left, x, (size_t)inside);
    memset(to + left + inside, of.zero, (size_t)(n - left - inside));
}

/* Where a pixel's window begins: its first tap, and row and column of that. */
typedef struct tt_corner {
    const int8_t *at;
    int32_t row, column;
} tt_corner;

/* How far it is to another one. */
typedef struct tt_way {
    int32_t on, down, right;
} tt_way;

static inline TT_ALWAYS tt_corner tt_behind(tt_corner p, tt_way by)
{
    return (tt_corner){p.at + by.on, p.row + by.down, p.column + by.right};
}

static inline TT_ALWAYS bool tt_is_inside(int32_t column, tt_conv_shape of)
{
    return column >= 0 && column + (of.columns - 1) * of.dilation_columns < of.width;
}

/* The window of a pixel, tap by tap. */
static inline TT_ALWAYS void tt_window8(int8_t *to, tt_corner p, tt_conv_shape of)
{
    const int32_t step = of.dilation_columns * of.channels, run = of.columns * of.channels;
    const bool inside = tt_is_inside(p.column, of);
    for (int32_t i = 0; i < of.rows; i++, p.row += of.dilation_rows, to += run) {
        const int8_t *const from = p.at + i * of.dilation_rows * of.width * of.channels;
        if (p.row < 0 || p.row >= of.height) {
            memset(to, of.zero, (size_t)run);
            continue;
        }
        for (int32_t j = 0, at = p.column; j < of.columns; j++, at += of.dilation_columns) {
            if (inside || (at >= 0 && at < of.width)) {
                memcpy(to + j * of.channels, from + j * step, (size_t)of.channels);
            } else {
                memset(to + j * of.channels, of.zero, (size_t)of.channels);
            }
        }
    }
}

/* Tell whether some window reaches beyond the image. */
static inline TT_ALWAYS bool tt_is_padded(tt_conv_shape of)
{
    const int32_t below = (of.high - 1) * of.down - of.top + (of.rows - 1) * of.dilation_rows;
    const int32_t behind = (of.wide - 1) * of.right - of.left + (of.columns - 1) * of.dilation_columns;
    return of.top > 0 || of.left > 0 || below >= of.height || behind >= of.width;
}

/* Two windows tap by tap, as tt_widen_two lays them; channels: a multiple of four. border: as many elements at zero. */
static inline TT_ALWAYS void tt_two_windows(
    int16_t *to, tt_corner p, tt_corner q, const int8_t *border, tt_conv_shape of)
{
    const int32_t blocks = of.channels / 4, on = of.dilation_columns * of.channels;
    const bool inside = tt_is_inside(p.column, of) && tt_is_inside(q.column, of);
    for (int32_t i = 0; i < of.rows; i++, p.row += of.dilation_rows, q.row += of.dilation_rows) {
        const bool there_p = p.row >= 0 && p.row < of.height, there_q = q.row >= 0 && q.row < of.height;
        const int8_t *from_p = p.at + i * of.dilation_rows * of.width * of.channels;
        const int8_t *from_q = q.at + i * of.dilation_rows * of.width * of.channels;
        if (of.dilation_columns == 1 && inside && there_p && there_q) {
            to = tt_widen_both(to, from_p, from_q, -of.zero, of.columns * blocks).to;
            continue;
        }
        for (int32_t j = 0; j < of.columns; j++, from_p += on, from_q += on) {
            const int32_t at_p = p.column + j * of.dilation_columns, at_q = q.column + j * of.dilation_columns;
            const int8_t *const own_p = there_p && at_p >= 0 && at_p < of.width ? from_p : border;
            const int8_t *const own_q = there_q && at_q >= 0 && at_q < of.width ? from_q : border;
            to = tt_widen_both(to, own_p, own_q, -of.zero, blocks).to;
        }
    }
}

/* Where tt_widen4 puts element k of four. */
static inline TT_ALWAYS int32_t tt_place(int32_t k)
{
    return (k & 1) * 2 + (k >> 1);
}

/* How rows of `run` elements of a window are widened: whole blocks of four row by row, then what is left of all rows. A row is
 * `pitch` behind the last; taps: rows that are `apart` instead, as dilated taps of a row of the image are, else 1. overlaps:
 * the last block of a row ends with it instead, if that takes no more blocks. */
typedef struct tt_window_rows {
    int32_t rows, run, pitch, left;
    bool overlaps;
    int32_t taps, apart;
} tt_window_rows;

static inline TT_ALWAYS tt_window_rows tt_window_rows_of(int32_t rows, int32_t run, int32_t pitch, bool may_overlap)
{
    const int32_t left = rows * (run % 4);
    const bool overlaps = may_overlap && run > 4 && left > 0 && (left + 3) / 4 == rows;
    return (tt_window_rows){rows, run, pitch, left, overlaps, 1, pitch};
}

/* Two windows as tt_widen_two lays them. Places in the last blocks that no element has hold anything, or an element that
 * another block has too. bytes: for what is left of both, if that is much, or moved as words. */
static inline TT_ALWAYS void tt_widen_windows(
    int16_t *to, const int8_t *p, const int8_t *q, int8_t *bytes, int32_t zero, tt_window_rows of)
{
    const int32_t blocks = of.run / 4, rest = of.run % 4, more = of.overlaps ? 0 : (of.left + 3) / 4;
    const bool copied = of.left > 9 || (TT_HAS_DSP && rest < 3 && of.left > 1);
    tt_two_rows on = {to, p, q};
    for (int32_t r = 0, tap = 1; r < of.rows; r++, tap++) {
        int32_t way = of.apart - (of.overlaps ? of.run : 4 * blocks);
        on = tt_widen_both(on.to, on.from, on.next, -zero, blocks);
        if (of.overlaps) {
            on = tt_widen_both(on.to, on.from + rest - 4, on.next + rest - 4, -zero, 1);
        } else if (copied) {
            memcpy(bytes + r * rest, on.from, (size_t)rest);
            memcpy(bytes + 4 * more + r * rest, on.next, (size_t)rest);
        }
        if (of.taps > 1 && tap == of.taps) {
            way += of.pitch - of.taps * of.apart;
            tap = 0;
        }
        on.from += way;
        on.next += way;
    }
    if (copied) {
        (void)tt_widen_both(on.to, bytes, bytes + 4 * more, -zero, more);
        return;
    }
    const int32_t alone = of.overlaps ? 0 : of.left;
    to += 8 * blocks * of.rows;
    TT_UNROLL
    for (int32_t k = 0; k < alone; k++) {
        const int32_t r = k / rest, i = r / of.taps * of.pitch + r % of.taps * of.apart + 4 * blocks + k % rest;
        to[k / 4 * 8 + tt_place(k % 4)] = (int16_t)(p[i] - zero);
        to[k / 4 * 8 + 4 + tt_place(k % 4)] = (int16_t)(q[i] - zero);
    }
}

/* The weights of two channels for windows that lie so: zeros where tt_widen_windows leaves what does not count. */
static inline TT_ALWAYS void tt_widen_weights(
    int16_t *to, const int8_t *w, const int8_t *next, int8_t *bytes, tt_window_rows of)
{
    const int32_t blocks = (of.run * of.rows + 3) / 4, rest = of.run % 4;
    if (of.left == 0) {
        (void)tt_widen_both(to, w, next, 0, blocks);
        return;
    }
    const int32_t each = of.overlaps ? of.run / 4 + 1 : blocks, first = of.overlaps ? 0 : of.left % 4;
    const int32_t end = of.overlaps ? 4 - rest : first == 0 ? 0 : 4;
    of.pitch = of.apart = of.run;
    of.taps = 1;
    tt_widen_windows(to, w, next, bytes, 0, of);
    for (int32_t block = each; block <= blocks; block += each) {
        TT_UNROLL
        for (int32_t k = first; k < end; k++) {
            to[8 * block - 8 + tt_place(k)] = 0;
            to[8 * block - 4 + tt_place(k)] = 0;
        }
    }
}

/* Those of one channel, each of its blocks behind the last. two: place for those of two. */
static inline TT_ALWAYS void tt_widen_last(int16_t *to, const int8_t *w, int16_t *two, int8_t *bytes, tt_window_rows of)
{
    const int32_t blocks = (of.run * of.rows + 3) / 4;
    if (of.left > 0) {
        tt_widen_weights(two, w, w, bytes, of);
    }
    for (int32_t i = 0; i < blocks; i++) {
        if (of.left > 0) {
            memcpy(to + 4 * i, two + 8 * i, 4 * sizeof *to);
        } else {
            tt_widen4(to + 4 * i, w + 4 * i, 0);
        }
    }
}

/* y[0] and y[next] of two pixels, `on` elements apart, from their sums. */
static inline TT_ALWAYS void tt_four_ends(
    int8_t *y, int32_t on, int32_t next, const int32_t sums[4], int32_t o, tt_dense_ends by)
{
    const int8_t y_00 = tt_dense_end(sums[0], o, by), y_10 = tt_dense_end(sums[2], o, by);
    const int8_t y_01 = tt_dense_end(sums[1], o + next, by), y_11 = tt_dense_end(sums[3], o + next, by);
    y[0] = y_00;
    y[next] = y_01;
    y[on] = y_10;
    y[on + next] = y_11;
}

/* y of two pixels in the output channels from `first` to `last`, from their windows of n elements and the widened weights of
 * these channels: pairs of rows, and a row alone if their number is odd. ends: what tt_keep_ends keeps of them, or NULL. */
static inline TT_ALWAYS void tt_two_pixels16(int8_t *y, const int16_t *windows, const int16_t *weights, const int32_t *ends,
    int32_t outputs, int32_t first, int32_t last, int32_t n, tt_dense_ends by)
{
    const int32_t blocks = (n + 3) / 4;
    if (ends != NULL) {
        tt_product_row(y + first, ends, windows, weights, last - first, blocks, outputs, by.zero);
        return;
    }
    int32_t o = first;
    for (; o + 2 <= last; o += 2, weights += 8 * blocks) {
        int32_t sums[4] = {0, 0, 0, 0};
        tt_dot_2x2(&sums[0], &sums[1], &sums[2], &sums[3], windows, weights, blocks);
        tt_four_ends(y + o, outputs, 1, sums, o, by);
    }
    if (o < last) {
        int32_t sum_0 = 0, sum_1 = 0;
        tt_dot_2x1(&sum_0, &sum_1, windows, weights, blocks);
        const int8_t y_0 = tt_dense_end(sum_0, o, by), y_1 = tt_dense_end(sum_1, o, by);
        y[o] = y_0;
        y[o + outputs] = y_1;
    }
}

/* The same in all channels, from weights as they lie; no row overlaps. */
static inline TT_ALWAYS void tt_two_pixels8(
    int8_t *y, const int16_t *windows, const int8_t *w, int32_t outputs, tt_window_rows of, tt_dense_ends by)
{
    const int32_t n = of.rows * of.run, rest = of.run % 4, rows = rest == 0 ? 1 : of.rows;
    const int32_t run = n / rows, blocks = run / 4;
    const int16_t *const last = windows + 8 * blocks * rows;
    for (int32_t o = 0; o < outputs; o += 2) {
        const int32_t next = o + 1 < outputs ? 1 : 0;
        const int8_t *const row = w + o * n;
        int32_t sums[4] = {0, 0, 0, 0};
        for (int32_t r = 0; r < rows; r++) {
            tt_dot_direct_2x2(
                &sums[0], &sums[1], &sums[2], &sums[3], windows + 8 * blocks * r, row + run * r, next * n, blocks);
        }
        TT_UNROLL
        for (int32_t k = 0; k < of.left; k++) {
            const int8_t *const own = row + k / rest * run + 4 * blocks + k % rest;
            const int32_t place = k / 4 * 8 + tt_place(k % 4);
            sums[0] += last[place] * own[0];
            sums[1] += last[place] * own[next * n];
            sums[2] += last[place + 4] * own[0];
            sums[3] += last[place + 4] * own[next * n];
        }
        tt_four_ends(y + o, outputs, next, sums, o, by);
    }
}

/* Pixels of a turn of tt_conv16 that reads the image in place, an even number. */
#define TT_TURN 32

/* A turn of a QConv over all channels: some pixels in a strip of output channels, or (if rows are copied) the pixels of
 * these rows in all channels, or of all rows in a strip of channels. Turns go through the pixels of all images, then to the
 * next strip; if all rows are copied, through the strips of an image, then to the next one.
 * kept: output channels whose weights are widened together, an even number or all; 0: none are. keeps: 1 if also what
 * their ends read is kept. scratch, from turn to turn: two windows and these weights as int16 in whole blocks of four;
 * three words for each of these ends; what is left of the rows of two windows, as int8 in whole blocks; if the image is read
 * in place: two windows as int8, unless one is a run of elements, or (in whole words, with padding) a border of `channels`
 * elements; the output of two pixels, if some turn has an odd number; the rows of a strip. */
static inline TT_ALWAYS void tt_conv16(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_conv_shape of, int32_t kept, int32_t keeps, tt_dense_ends by)
{
    const int32_t run = of.columns * of.channels, n = of.rows * run, blocks = (n + 3) / 4;
    const int32_t pitch = ((of.wide - 1) * of.right + (of.columns - 1) * of.dilation_columns + 1) * of.channels;
    const int32_t deep = of.strip == 0 ? 0 : (of.strip - 1) * of.down + of.rows;
    const int32_t all = of.high * of.wide, most = of.strip == 0 ? TT_TURN : of.strip * of.wide;
    const int32_t strip = kept == 0 ? of.outputs : kept, parts = (all + most - 1) / most;
    const bool in_place = of.strip == 0, words = of.channels % 4 == 0, padded = tt_is_padded(of);
    const bool runs = !in_place || (of.rows * of.columns == 1 && !padded);
    const bool lone = (in_place ? all : most) % 2 != 0;
    const bool spread = !in_place && of.dilation_columns > 1;
    tt_window_rows under = tt_window_rows_of(
        in_place ? 1 : spread ? of.rows * of.columns : of.rows, in_place ? n : spread ? of.channels : run, pitch, kept > 0);
    if (spread) {
        under.taps = of.columns;
        under.apart = of.dilation_columns * of.channels;
    }
    int16_t *const weights = scratch + 8 * blocks;
    int32_t *const ends = keeps == 0 ? NULL : (int32_t *)(void *)(weights + 4 * kept * blocks);
    int8_t *const bytes = (int8_t *)(weights + 4 * kept * blocks) + 12 * keeps * kept;
    int8_t *const copies = bytes + (under.left + 3) / 4 * 8, *const border = copies;
    const bool bordered = in_place && words && padded;
    int8_t *const last_two = copies + (!runs && !words ? 2 * n : bordered ? of.channels : 0);
    int8_t *const rows = last_two + (lone ? 2 * of.outputs : 0);
    if (bordered && turn == 0) {
        memset(border, of.zero, (size_t)of.channels);
    }
    const int32_t cuts = !in_place && of.strip == of.high ? (of.outputs + strip - 1) / strip : 1;
    const int32_t place = in_place ? turn % (of.count * parts) : turn / cuts;
    const int32_t begin = place % parts * most, pixels = all - begin < most ? all - begin : most;
    const int32_t line = begin / of.wide, top = line * of.down - of.top;
    const int8_t *const image = x + place / parts * of.height * of.width * of.channels;
    int8_t *const out = y + (place / parts * all + begin) * of.outputs;
    for (int32_t r = 0; turn % cuts == 0 && r < deep; r++) {
        const int32_t from = top + r * of.dilation_rows;
        const bool there = from >= 0 && from < of.height;
        tt_row8(rows + r * pitch, there ? image + from * of.width * of.channels : NULL, pitch, of);
    }
    const int32_t row = in_place ? of.width * of.channels : pitch, left = in_place ? -of.left : 0;
    const bool one = in_place ? of.high == 1 : of.strip == 1;
    const tt_way stay = {0, 0, 0}, next = {of.right * of.channels, 0, of.right}, pair = {2 * next.on, 0, 2 * of.right};
    const tt_way wrap = {of.down * row - of.wide * next.on, of.down, -of.wide * of.right};
    const tt_way across = {next.on + wrap.on, of.down, next.right + wrap.right}; /* from the last pixel of a row to the next */
    const int32_t start = (in_place ? turn / (of.count * parts) : turn % cuts) * strip;
    const int32_t behind = (in_place || cuts > 1) && start + strip < of.outputs ? start + strip : of.outputs;
    for (int32_t first = start; first < behind; first += strip) {
        const int32_t last = first + strip < of.outputs ? first + strip : of.outputs;
        if (kept > 0 && (in_place ? place == 0 : turn == 0 || kept < of.outputs)) {
            int32_t o = first;
            for (; o + 2 <= last; o += 2) {
                tt_widen_weights(weights + (o - first) * 4 * blocks, w + o * n, w + (o + 1) * n, bytes, under);
            }
            if (o < last) {
                tt_widen_last(weights + (o - first) * 4 * blocks, w + o * n, scratch, bytes, under);
            }
            if (keeps != 0) {
                tt_keep_ends(ends, by.bias + first, by.multiplier + first, by.shift + first, last - first);
            }
        }
        const int32_t from = begin - line * of.wide, column = from * of.right + left;
        tt_corner p = {in_place ? image + top * row + column * of.channels : rows, top, column};
        int8_t *to = out;
        int32_t to_do = pixels, in_row = one ? pixels : of.wide - from;
        while (to_do > 0) {
            const bool single = lone && to_do == 1, apart = of.wide % 2 != 0 && !one && !single && in_row == 1;
            const tt_way on = single ? stay : apart ? across : next;
            int32_t pairs = single || apart ? 1 : (one || to_do < in_row ? to_do : in_row) / 2;
            to = single ? last_two : to;
            to_do -= 2 * pairs;
            in_row -= 2 * pairs;
            do {
                const tt_corner q = tt_behind(p, on);
                if (runs) {
                    tt_widen_windows(scratch, p.at, q.at, bytes, of.zero, under);
                } else if (words) {
                    tt_two_windows(scratch, p, q, border, of);
                } else {
                    tt_window8(copies, p, of);
                    tt_window8(copies + n, q, of);
                    tt_widen_windows(scratch, copies, copies + n, bytes, of.zero, under);
                }
                if (kept > 0) {
                    tt_two_pixels16(to, scratch, weights, ends, of.outputs, first, last, n, by);
                } else {
                    tt_two_pixels8(to, scratch, w, of.outputs, under, by);
                }
                p = tt_behind(p, pair);
                to += 2 * of.outputs;
            } while (--pairs > 0);
            for (; !one && to_do > 0 && in_row <= 0; in_row += of.wide) {
                p = tt_behind(p, wrap);
            }
        }
        if (lone && to_do < 0) {
            memcpy(out + (pixels - 1) * of.outputs + first, last_two + first, (size_t)(last - first));
        }
    }
}

#endif
