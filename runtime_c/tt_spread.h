/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Depthwise convolutions in steps of one with dilated windows of any size, and their data gradients. The same bits on every
 * core and on a host: where the instructions are missing, plain C does the same.
 */
#ifndef TT_SPREAD_H
#define TT_SPREAD_H

#include "tt_depthwise.h"
#include "tt_errors.h"

/* Taps along both axes, and from tap to tap in the weights. */
typedef struct tt_window {
    int32_t tall, flat, tall_step, flat_step;
} tt_window;

static inline TT_ALWAYS tt_window tt_window_of(int32_t tall, int32_t flat, int32_t tall_step, int32_t flat_step)
{
    return (tt_window){tall, flat, tall_step, flat_step};
}

/* Outputs along both axes that are computed together, two rows of two columns or four of one, or half of these; rows that
 * there are at least. */
typedef struct tt_spread_tile {
    int32_t high, wide, least;
} tt_spread_tile;

static inline TT_ALWAYS tt_spread_tile tt_spread_tile_of(int32_t high, int32_t wide)
{
    return (tt_spread_tile){high, wide, high / 2 + 1};
}

/* The taps of a channel by columns, in words: in turn of the taps for even rows of a tile, and of those for odd rows, which
 * begin with a 0. Where there is no tap, `taps` has a 0. */
static inline TT_ALWAYS void tt_spread_taps(int16_t *taps, const int8_t *w, tt_window of)
{
    for (int32_t s = 0; s < of.flat; s++, w += of.flat_step, taps += 4 * (of.tall / 2 + 1)) {
        TT_UNROLL
        for (int32_t r = 0; r < of.tall; r++) {
            const int16_t tap = w[r * of.tall_step];
            taps[r / 2 * 4 + r % 2] = tap;
            taps[(r + 1) / 2 * 4 + 2 + (r + 1) % 2] = tap;
        }
    }
}

/* Adds a column of taps to the sums of a tile, column by column. at: its first pixel, of an even row; rows: elements to its
 * next column. */
static inline TT_ALWAYS void tt_spread_column(
    int32_t sums[4], const int16_t *at, const int16_t *taps, tt_window of, tt_spread_tile tile, int32_t rows)
{
#if TT_HAS_DSP
    if (of.tall > 4) {
        __asm__ volatile("" : : : "memory"); /* taps that are kept from tile to tile would be kept on the stack */
    }
    TT_UNROLL
    for (int32_t r = 0; r <= of.tall; r += 2) {
        uint64_t both;
        memcpy(&both, __builtin_assume_aligned(taps + 2 * r, 8), sizeof both);
        TT_UNROLL
        for (int32_t i = 0; i < tile.high * tile.wide; i += tile.high > 1 ? 2 : 1) {
            uint32_t pixels;
            memcpy(&pixels, __builtin_assume_aligned(at + i / tile.high * rows + i % tile.high + r, 4), sizeof pixels);
            if (r < of.tall) {
                sums[i] = __smlad((int32_t)pixels, (int32_t)(uint32_t)both, sums[i]);
            }
            if (tile.high > 1) {
                sums[i + 1] = __smlad((int32_t)pixels, (int32_t)(uint32_t)(both >> 32), sums[i + 1]);
            }
        }
    }
#else
    TT_UNROLL
    for (int32_t begin = 0; begin < of.tall; begin += 8) { /* TT_UNROLL takes no more at a time */
        const int32_t end = of.tall < begin + 8 ? of.tall : begin + 8;
        TT_UNROLL
        for (int32_t r = begin; r < end; r++) {
            TT_UNROLL
            for (int32_t i = 0; i < tile.high * tile.wide; i++) {
                sums[i] += at[i / tile.high * rows + i % tile.high + r] * taps[r / 2 * 4 + r % 2];
            }
        }
    }
#endif
}

/* ---- what sums become ---------------------------------------------------------------------------------------------- */

/* Ends of a channel's sums. error: those of a data gradient, to which the last five belong; else `by` has them. */
typedef struct tt_spread_ends {
    tt_dense_ends by;
    bool error;
    const void *mask;
    tt_keep keep;
    int32_t factor, down, *peak;
} tt_spread_ends;

/* An error, in one place. */
TT_SHARED int8_t tt_spread_error(bool keep, int32_t sum, int32_t factor, int32_t down, int32_t *peak)
{
    return tt_rescaled_error(keep, sum, factor, down, peak);
}

/* Writes a tile, of which `below` rows and `beside` columns exist. at: its first element; pitch, next: elements to the next row
 * and column. */
static inline TT_ALWAYS void tt_spread_store(int8_t *y, int32_t at, const int32_t sums[4], tt_spread_tile tile, int32_t below,
    int32_t beside, int32_t pitch, int32_t next, tt_spread_ends ends)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    const int32_t most = ends.error ? (*ends.peak < 127 ? *ends.peak : 127) - 1 : 0;
    int32_t left = ends.down > 0 ? 0 : -1;
#else
    const int32_t left = -1;
#endif
    TT_UNROLL
    for (int32_t i = 0; i < tile.high * tile.wide; i++) {
        const int32_t row = i % tile.high, column = i / tile.high, place = at + row * pitch + column * next;
        if ((row >= tile.least && row >= below) || (column > 0 && column >= beside)) {
            continue;
        }
        if (!ends.error) {
            y[place] = tt_dense_end(sums[i], 0, ends.by);
            continue;
        }
#if TT_HAS_THUMB2 || TT_HAS_MULH
        const bool kept = tt_is_kept(ends.mask, place, ends.keep);
        const int32_t found = kept ? tt_requantise_kept(sums[i], ends.factor, ends.down, 0, INT32_MIN) : 0;
        left |= most - (found ^ (found >> 31));
        y[place] = (int8_t)found;
#endif
    }
    if (!ends.error || TT_LIKELY(left >= 0)) {
        return;
    }
    TT_UNROLL
    for (int32_t i = 0; i < tile.high * tile.wide; i++) { /* a peak, or more than an int8, is among them */
        const int32_t row = i % tile.high, column = i / tile.high, place = at + row * pitch + column * next;
        if ((row < tile.least || row < below) && (column == 0 || column < beside)) {
            y[place] = tt_spread_error(tt_is_kept(ends.mask, place, ends.keep), sums[i], ends.factor, ends.down, ends.peak);
        }
    }
}

/* ---- windows of any size ------------------------------------------------------------------------------------------- */

/* A row of tiles, from element `at` of y on. first: of its first pixel; image: see tt_spread_channel; below: rows of the output
 * from the first on. Columns of taps that meet no column of the image are left out. */
static inline TT_ALWAYS void tt_spread_row(int8_t *y, int32_t at, const int16_t *first, const int16_t *taps, tt_axis across,
    tt_window of, tt_spread_tile tile, int32_t rows, int32_t below, int32_t pitch, tt_spread_ends ends)
{
    const int32_t run = 4 * (of.tall / 2 + 1), border = tile.wide - 1, last = (of.flat - 1) * across.maps - across.pad;
    const int16_t *tap = taps + of.flat * run, *end = tap; /* columns of taps that meet the image, from the first on */
    const int16_t *pixel = first + (last + across.maps + border) * rows;
    int32_t before = last + border, behind = last - across.in; /* how far the next one is in the image, the last one beyond */
    for (int32_t column = 0; column < across.out; column += tile.wide, at += tile.wide * across.out_step) {
        const int32_t beside = across.out % tile.wide == 0 ? tile.wide : across.out - column;
        int32_t sums[4] = {0, 0, 0, 0};
        for (; tap > taps && before >= 0; before -= across.maps) {
            tap -= run;
            pixel -= across.maps * rows;
        }
        for (; end > taps && behind >= 0; behind -= across.maps) {
            end -= run;
        }
        const int16_t *own = pixel;
        for (const int16_t *own_tap = tap; own_tap < end; own_tap += run, own += across.maps * rows) {
            tt_spread_column(sums, own, own_tap, of, tile, rows);
        }
        tt_spread_store(y, at, sums, tile, below, beside, pitch, across.out_step, ends);
        before += tile.wide;
        behind += tile.wide;
        pixel += tile.wide * rows;
    }
}

/* One channel: of all channels of all images the one with number `turn`. w: its weights, tap (0, 0) first. Taps along `down`
 * are neighbours in a column of the image of a map; see tt_depthwise_pairs. scratch: tt_spread_taps, then the images, with a
 * border for whole tiles; what is computed below the output and at its right is not written. */
static inline TT_ALWAYS void tt_spread_channel(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis down, tt_axis across, tt_window of, tt_spread_tile tile, int32_t channels, int32_t apart, int32_t x_zero,
    tt_spread_ends ends)
{
    const int32_t c = turn % channels, n = turn / channels, taps = 4 * (of.tall / 2 + 1) * of.flat, border = tile.wide - 1;
    const int32_t most = (down.out + down.maps - 1) / down.maps, tiles = (most + tile.high - 1) / tile.high;
    const int32_t rows = tiles * tile.high + of.tall / 2 * 2, wide = across.in + 2 * border;
    const int32_t pitch = down.maps * down.out_step, from_row = down.maps * down.in_step;
    const int8_t *const own = x + n * down.in * across.in * channels + c;
    const tt_spread_tile half = {tile.high / 2, tile.wide, 1};
    if (turn == 0) {
        memset(scratch, 0, 2 * (size_t)(taps + (apart > 0 ? down.maps * apart : 0)));
    }
    tt_spread_taps(scratch, w, of);
    for (int32_t map = 0; map < down.maps; map++) {
        const tt_axis_part tall = tt_axis_part_of(down, map);
        const int32_t high = rows - tall.border < tall.in ? rows - tall.border : tall.in;
        const int8_t *const from = own + tall.from * down.in_step;
        int16_t *const image = scratch + taps + map * apart, *const inside = image + border * rows + tall.border;
        int32_t at = n * down.out * across.out * channels + c + map * down.out_step;
        if (apart == 0) {
            memset(image, 0, 2 * (size_t)(wide * rows));
        }
        if (down.in < across.in * down.maps) {
            tt_widen_cells(inside, from, -x_zero, across.in_step, from_row, rows, 1, across.in, high);
        } else {
            tt_widen_cells(inside, from, -x_zero, from_row, across.in_step, 1, rows, high, across.in);
        }
        int32_t row = 0;
        for (; row + half.high < tall.out; row += tile.high, at += tile.high * pitch) {
            tt_spread_row(y, at, image + row, scratch, across, of, tile, rows, tall.out - row, pitch, ends);
        }
        if (row < tall.out) {
            tt_spread_row(y, at, image + row, scratch, across, of, half, rows, tall.out - row, pitch, ends);
        }
    }
}

/* ---- windows of one row -------------------------------------------------------------------------------------------- */

#define TT_MOST_LINE_TAPS 16
/* `count` outputs, at most four, of neighbouring pixels. Two pixels are a word, and two taps. */
static inline TT_ALWAYS void tt_line_outputs(int8_t *y, int32_t at, const int16_t *pixel, const int16_t *taps, int32_t count,
    int32_t flat, int32_t gap, int32_t step, tt_spread_ends ends)
{
    const tt_spread_tile all = {count, 1, count};
    int32_t sums[4] = {0, 0, 0, 0};
#if TT_HAS_DSP
    TT_UNROLL
    for (int32_t s = 0; s < flat; s++) {
        uint32_t pair;
        memcpy(&pair, __builtin_assume_aligned(taps + s / 2 * 2, 4), sizeof pair);
        TT_UNROLL
        for (int32_t i = 0; i < count; i += 2) {
            uint32_t pixels;
            memcpy(&pixels, pixel + s * gap + i, sizeof pixels);
            const int32_t x = (int32_t)pixels, tap = (int32_t)pair;
            sums[i] = s % 2 == 0 ? __smlabb(x, tap, sums[i]) : __smlabt(x, tap, sums[i]);
            sums[i + 1] = s % 2 == 0 ? __smlatb(x, tap, sums[i + 1]) : __smlatt(x, tap, sums[i + 1]);
        }
    }
#else
    for (const int16_t *const end = taps + flat; taps < end; taps++, pixel += gap) {
        TT_UNROLL
        for (int32_t i = 0; i < count; i++) {
            sums[i] += pixel[i] * *taps;
        }
    }
#endif
    tt_spread_store(y, at, sums, all, count, 1, step, 0, ends);
}

/* One channel of a layer of one row, of `flat` taps that are `on` apart in w: see tt_spread_channel. scratch: its pixels,
 * between those of the border, and one more. */
static inline TT_ALWAYS void tt_line_channel(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis along, int32_t flat, int32_t on, int32_t channels, int32_t x_zero, tt_spread_ends ends)
{
    const int32_t c = turn % channels, n = turn / channels, wide = along.out + (flat - 1) * along.maps + 1;
    const int32_t first = n * along.out * channels + c, whole = along.out / 4 * 4;
    _Alignas(4) int16_t taps[TT_MOST_LINE_TAPS] = {0};
    TT_UNROLL
    for (int32_t s = 0; s < flat; s++) {
        taps[s] = w[s * on];
    }
    if (turn == 0) {
        memset(scratch, 0, 2 * (size_t)wide);
    }
    tt_widen_cells(scratch + along.pad, x + n * along.in * channels + c, -x_zero, channels, 0, 1, 1, along.in, 1);
    for (int32_t i = 0; i < whole; i += 4) {
        tt_line_outputs(y, first + i * channels, scratch + i, taps, 4, flat, along.maps, channels, ends);
    }
    if (along.out % 4 != 0) {
        tt_line_outputs(y, first + whole * channels, scratch + whole, taps, along.out % 4, flat, along.maps, channels, ends);
    }
}

/* ---- layers ------------------------------------------------------------------------------------------------------- */

/* What an output of channel c is made by; its numbers are copied out of reach of the output. */
#define TT_OUTPUT_ENDS(by, c)                                                                                          \
    const int32_t bias = by.bias[c], multiplier = by.multiplier[c];                                                    \
    const int8_t shift = by.shift[c];                                                                                  \
    const tt_spread_ends ends = {                                                                                      \
        {&bias, &multiplier, &shift, by.zero, by.low, by.high, by.shifts_down, by.above, by.once}, false, NULL, {0, 0, 0}, 0, 0, NULL}

/* One channel of a dilated QConv. */
static inline TT_ALWAYS void tt_depthwise_spread(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis down, tt_axis across, tt_window of, tt_spread_tile tile, int32_t channels, int32_t apart, int32_t x_zero,
    tt_dense_ends by)
{
    const int32_t c = turn % channels;
    TT_OUTPUT_ENDS(by, c);
    tt_spread_channel(y, scratch, x, w + c * of.tall * of.flat, turn, down, across, of, tile, channels, apart, x_zero, ends);
}

/* One channel of a dilated QConv of one row. */
static inline TT_ALWAYS void tt_depthwise_line(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis along, int32_t flat, int32_t channels, int32_t x_zero, tt_dense_ends by)
{
    const int32_t c = turn % channels;
    TT_OUTPUT_ENDS(by, c);
    tt_line_channel(y, scratch, x, w + c * flat, turn, along, flat, 1, channels, x_zero, ends);
}

/* What an error of channel c is made by. */
static inline TT_ALWAYS tt_spread_ends tt_spread_error_ends(
    int32_t *peak, int32_t multiplier, int32_t exponent, const void *mask, tt_keep keep)
{
    tt_spread_ends ends = {.error = true, .mask = mask, .keep = keep, .peak = peak};
    ends.factor = tt_factor(multiplier);
    ends.down = tt_down(multiplier, exponent);
    return ends;
}

/* One channel of the data gradient of a dilated QConv: a convolution whose taps run backwards. */
static inline TT_ALWAYS void tt_depthwise_spread_error(int8_t *y, int16_t *scratch, int32_t *peak, const int8_t *g,
    const int8_t *w, const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, int32_t turn,
    tt_axis down, tt_axis across, tt_window of, tt_spread_tile tile, int32_t channels, int32_t apart, tt_keep keep)
{
    const int32_t c = turn % channels, last = (c + 1) * of.tall * of.flat - 1;
    const tt_spread_ends ends = tt_spread_error_ends(peak, multiplier[c], exponent + shift[c], mask, keep);
    tt_spread_channel(y, scratch, g, w + last, turn, down, across, of, tile, channels, apart, 0, ends);
}

/* One channel of the data gradient of a dilated QConv of one row. */
static inline TT_ALWAYS void tt_depthwise_line_error(int8_t *y, int16_t *scratch, int32_t *peak, const int8_t *g,
    const int8_t *w, const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, int32_t turn,
    tt_axis along, int32_t flat, int32_t channels, tt_keep keep)
{
    const int32_t c = turn % channels;
    const tt_spread_ends ends = tt_spread_error_ends(peak, multiplier[c], exponent + shift[c], mask, keep);
    tt_line_channel(y, scratch, g, w + (c + 1) * flat - 1, turn, along, flat, -1, channels, 0, ends);
}

#endif
