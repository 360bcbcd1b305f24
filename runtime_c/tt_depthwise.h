/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Depthwise convolutions whose channel images are copied, of any size and dilation, for cores with products in pairs. Each
 * gives the same bits on every core and on a host.
 */
#ifndef TT_DEPTHWISE_H
#define TT_DEPTHWISE_H

#include "tt_dsp_tiles.h"

/* An axis of a channel's maps: elements of the image and of the output, how far neighbours are apart in memory, elements of
 * the border in front, and the interleaved maps that dilation makes of the axis. */
typedef struct tt_axis {
    int32_t in, out, in_step, out_step, pad, maps;
} tt_axis;

static inline TT_ALWAYS tt_axis tt_axis_of(
    int32_t in, int32_t out, int32_t in_step, int32_t out_step, int32_t pad, int32_t maps)
{
    return (tt_axis){in, out, in_step, out_step, pad, maps};
}

/* What an interleaved map has of an axis: elements of the output, of the border in front, and of the image, and the first of
 * these. */
typedef struct tt_axis_part {
    int32_t out, border, in, from;
} tt_axis_part;

static inline TT_ALWAYS tt_axis_part tt_axis_part_of(tt_axis axis, int32_t map)
{
    const int32_t border = (axis.pad - map + axis.maps - 1) / axis.maps, from = map - axis.pad + border * axis.maps;
    const int32_t out = (axis.out - map + axis.maps - 1) / axis.maps;
    return (tt_axis_part){out, border, from < axis.in ? (axis.in - from + axis.maps - 1) / axis.maps : 0, from};
}

/* Whether all maps of an axis have the same border. */
static inline TT_ALWAYS bool tt_is_even(tt_axis axis)
{
    return axis.maps == 1 || (axis.pad % axis.maps == 0 && axis.in % axis.maps == 0);
}

/* to[r * row + i * step] = from[r * from_row + i * pitch] + offset for r < rows, i < count. */
TT_SHARED void tt_widen_rows_of(int16_t *to, const int8_t *from, int32_t offset, int32_t step, int32_t pitch,
    int32_t count, int32_t row, int32_t from_row, int32_t rows)
{
    for (; rows > 0; rows--, to += row, from += from_row) {
        const int8_t *x = from;
        int16_t *cell = to;
        for (const int16_t *const end = to + count / 4 * 4 * step; cell != end; cell += 4 * step, x += 4 * pitch) {
            const int32_t x0 = x[0], x1 = x[pitch], x2 = x[2 * pitch], x3 = x[3 * pitch];
            cell[0] = (int16_t)(x0 + offset);
            cell[step] = (int16_t)(x1 + offset);
            cell[2 * step] = (int16_t)(x2 + offset);
            cell[3 * step] = (int16_t)(x3 + offset);
        }
        for (int32_t i = count % 4; i > 0; i--, cell += step, x += pitch) {
            *cell = (int16_t)(*x + offset);
        }
    }
}

/* Output rows of 3x3 taps: two, or one, at a time. a: a channel's image by columns, `rows` from one to the next; next, pitch:
 * elements of the output to the next column and row. The last tile of an odd width begins a column earlier. */
static inline TT_ALWAYS void tt_depthwise_lines(int8_t *out, const int16_t *a, const int16_t *taps, int32_t bias,
    int32_t factor, int32_t down, int32_t high, int32_t width, int32_t rows, int32_t next, int32_t pitch, int32_t zero)
{
    for (int32_t i = 0; i < high; i += 2, out += 2 * pitch, a += 2) {
        for (int32_t column = 0; column < width; column = width - 2 > column ? width - 2 : width) {
            const int32_t tiles = column == 0 ? width / 2 : 1;
            if (i + 1 < high) {
                tt_depthwise_tiles(out + column * next, a + column * rows, taps, bias, factor, down, tiles, rows, next, pitch, zero);
            } else {
                tt_depthwise_halves(out + column * next, a + column * rows, taps, bias, factor, down, tiles, rows, next, zero);
            }
            if (width % 2 == 0) {
                break;
            }
        }
    }
}

/* One channel of a 3x3 depthwise QConv in steps of one, whose sums all shift down: of all channels of all images the one
 * with number `turn`. down, across: of two axes, each of which may be the rows; tap: elements of the weights from tap to tap
 * of `down`. strip: rows whose inputs are in scratch together. scratch, from turn to turn: twelve elements for the taps, then
 * columns of the image of a map, each of an even number of rows. */
static inline TT_ALWAYS void tt_depthwise_pairs(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w,
    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, int32_t turn, tt_axis down, tt_axis across,
    int32_t channels, int32_t tap, int32_t strip, int32_t x_zero, int32_t zero)
{
    const int32_t c = turn % channels, n = turn / channels, rows = (strip + 3) / 2 * 2;
    const int32_t wide = (across.out + across.maps - 1) / across.maps + 2;
    const int8_t *const own = x + n * down.in * across.in * channels + c;
    int8_t *const out = y + n * down.out * across.out * channels + c;
    int16_t *const image = scratch + 12;
    const bool alike = tt_is_even(down) && tt_is_even(across) && strip * down.maps >= down.out;
    for (int32_t s = 0; s < 3; s++) {
        for (int32_t r = 0; r < 3; r++) {
            scratch[3 * s + r] = w[9 * c + r * tap + s * (4 - tap)];
        }
    }
    for (int32_t map = 0; map < down.maps * across.maps; map++) {
        const tt_axis_part tall = tt_axis_part_of(down, map / across.maps), flat = tt_axis_part_of(across, map % across.maps);
        const int32_t count = wide - flat.border < flat.in ? wide - flat.border : flat.in;
        const int8_t *const from = own + tall.from * down.in_step + flat.from * across.in_step;
        int8_t *const to = out + map / across.maps * down.out_step + map % across.maps * across.out_step;
        for (int32_t first = 0; first < tall.out; first += strip) {
            const int32_t high = tall.out - first < strip ? tall.out - first : strip;
            const int32_t start = first - tall.border, low = start < 0 ? -start : 0;
            const int32_t behind = tall.in - start < high + 2 ? tall.in - start : high + 2;
            if (!alike || turn == 0) {
                memset(image, 0, (size_t)(2 * wide * rows));
            }
            tt_widen_rows_of(image + flat.border * rows + low, from + (start + low) * down.maps * down.in_step, -x_zero, rows,
                across.maps * across.in_step, count, 1, down.maps * down.in_step, behind - low);
            tt_depthwise_lines(to + first * down.maps * down.out_step, image, scratch, bias[c], tt_factor(multiplier[c]),
                -shift[c], high, flat.out, rows, across.maps * across.out_step, down.maps * down.out_step, zero);
        }
    }
}

#endif
