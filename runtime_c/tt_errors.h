/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Data gradients of convolutions that are one call: over all channels, with strides, dilations, odd maps or odd channels, and
 * depthwise ones with strides. The same bits on every core. */
#ifndef TT_ERRORS_H
#define TT_ERRORS_H

#include "tt_conv.h"

/* How the last operand tells which errors are kept: see MaskAttrs. */
#define TT_ALL_KEPT 0
#define TT_KEPT_BY_VALUE 1
#define TT_KEPT_BY_BITS 2
typedef struct tt_keep {
    int32_t kind, low, high;
} tt_keep;

static inline TT_ALWAYS tt_keep tt_keep_of(int32_t kind, int32_t low, int32_t high)
{
    return (tt_keep){kind, low, high};
}

/* Whether the error at element `at` is kept. */
static inline TT_ALWAYS bool tt_is_kept(const void *mask, int32_t at, tt_keep keep)
{
    if (keep.kind == TT_KEPT_BY_VALUE) {
        return tt_passes(((const int8_t *)mask)[at], keep.low, keep.high);
    }
    return keep.kind == TT_ALL_KEPT || (((const uint8_t *)mask)[at / 8] >> at % 8 & 1) != 0;
}

/* ---- over all channels ------------------------------------------------------------------------------------------- */

/* Elements that n weights of a column take: if three are left, they are in a whole block. */
static inline TT_ALWAYS int32_t tt_column(int32_t n)
{
    return n > 4 && n % 4 == 3 ? n + 1 : n;
}

/* Two columns of weights, `on` (0 or 1) from each other, as tt_widen_two lays them. What is no whole block lies column by
 * column, or in a block that ends with the column: weights of the block before are 0 there. */
static inline TT_ALWAYS void tt_turn_two(int16_t *to, const int8_t *w, int32_t on, int32_t pitch, int32_t n)
{
    const int32_t rest = n % 4;
    int32_t k = 0;
    for (; k < n - rest; k += 4) {
        tt_gather4(to + 2 * k, w + k * pitch, pitch, 0);
        tt_gather4(to + 2 * k + 4, w + k * pitch + on, pitch, 0);
    }
    if (tt_column(n) > n) {
        tt_gather4(to + 2 * k, w + (n - 4) * pitch, pitch, 0);
        tt_gather4(to + 2 * k + 4, w + (n - 4) * pitch + on, pitch, 0);
        to[2 * k] = to[2 * k + 4] = 0;
        return;
    }
    for (; k < n; k++) {
        to[n - rest + k] = w[k * pitch];
        to[n + k] = w[k * pitch + on];
    }
}

/* Adds the products of a tap for two pixels, whose errors are `pitch` elements apart, with two columns of n weights each. */
static inline TT_ALWAYS void tt_add_tap(int32_t sums[4], const int16_t *weights, const int8_t *g, int32_t pitch, int32_t n)
{
    const int32_t blocks = n / 4, rest = n % 4;
    if (blocks > 0) {
        tt_dot_direct_2x2(&sums[0], &sums[1], &sums[2], &sums[3], weights, g, pitch, blocks);
    }
    if (tt_column(n) > n) {
        tt_dot_direct_2x2(&sums[0], &sums[1], &sums[2], &sums[3], weights + 8 * blocks, g + n - 4, pitch, 1);
        return;
    }
    weights += 8 * blocks;
    g += 4 * blocks;
    TT_UNROLL
    for (int32_t k = 0; k < rest; k++) {
        sums[0] += weights[k] * g[k];
        sums[1] += weights[k] * g[pitch + k];
        sums[2] += weights[rest + k] * g[k];
        sums[3] += weights[rest + k] * g[pitch + k];
    }
}

/* A QConvGradInput over all channels, whatever its strides and dilations. Two pixels that the same taps reach, and two
 * channels, are computed together; a pixel that no tap reaches is 0. scratch: two columns of weights of every tap;
 * exponent: of the incoming error less that of what comes out; of: the layer. */
static inline TT_ALWAYS void tt_windows_error(int8_t *y, int16_t *scratch, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    const int32_t line = of.width * of.channels, n = of.outputs, column_size = tt_column(n);
    if (of.down > 1 || of.right > 1) {
        memset(y, 0, (size_t)(of.count * of.height * line));
    }
    for (int32_t c = 0; c < of.channels; c += 2) {
        const int32_t next = of.channels % 2 == 0 || c + 1 < of.channels ? 1 : 0;
        const int32_t factor_0 = tt_factor(multiplier[c]), down_0 = tt_down(multiplier[c], shift[c] + exponent);
        const int32_t factor_1 = tt_factor(multiplier[c + next]);
        const int32_t down_1 = tt_down(multiplier[c + next], shift[c + next] + exponent);
        for (int32_t t = 0; t < of.rows * of.columns; t++) {
            tt_turn_two(scratch + 2 * column_size * t, w + t * of.channels + c, next, of.rows * of.columns * of.channels, n);
        }
        for (int32_t row = 0; row < of.count * of.height; row++) {
            const int8_t *const map = g + row / of.height * of.high * of.wide * n;
            const tt_reach rows = tt_reach_of(row % of.height, of.top, of.rows, of.down, of.dilation_rows);
            for (int32_t phase = 0; phase < of.right && phase < of.width; phase++) {
                const tt_reach columns = tt_reach_of(phase, of.left, of.columns, of.right, of.dilation_columns);
                const int32_t last = columns.tap + (columns.taps - 1) * columns.apart;
                int32_t place = row * line + phase * of.channels + c, column = columns.from;
                if (rows.taps == 0 || columns.taps == 0) {
                    continue;
                }
                for (int32_t x = phase; x < of.width; x += 2 * of.right, column += 2) {
                    const int32_t second = x + of.right < of.width ? 1 : 0;
                    int32_t sums[4] = {0, 0, 0, 0};
                    for (int32_t i = 0, at = rows.from; i < rows.taps; i++, at += rows.step) {
                        if (at < 0 || at >= of.high) {
                            continue;
                        }
                        const int32_t tap = (rows.tap + (rows.taps - 1 - i) * rows.apart) * of.columns + last;
                        const int16_t *weights = scratch + 2 * column_size * tap;
                        const int8_t *from = map + (at * of.wide + column) * n;
                        int32_t to = column;
                        for (int32_t j = 0; j < columns.taps; j++) {
                            if (to >= 0 && to < of.wide - second) {
                                tt_add_tap(sums, weights, from, second * n, n);
                            } else if (to == -1 || to == of.wide - 1) { /* one of two is beside the error */
                                int32_t own[4] = {0, 0, 0, 0};
                                tt_add_tap(own, weights, to < 0 ? from + n : from, 0, n);
                                sums[0] += to < 0 ? 0 : own[0];
                                sums[1] += to < 0 ? own[0] : 0;
                                sums[2] += to < 0 ? 0 : own[2];
                                sums[3] += to < 0 ? own[2] : 0;
                            }
                            to += columns.step;
                            from += columns.step * n;
                            weights -= 2 * column_size * columns.apart;
                        }
                    }
                    if (second > 0) {
                        const int32_t other = place + of.right * of.channels;
                        y[other] = tt_rescaled_error(tt_is_kept(mask, other, keep), sums[1], factor_0, down_0, peak);
                        y[other + next] =
                            tt_rescaled_error(tt_is_kept(mask, other + next, keep), sums[3], factor_1, down_1, peak);
                    }
                    y[place] = tt_rescaled_error(tt_is_kept(mask, place, keep), sums[0], factor_0, down_0, peak);
                    y[place + next] =
                        tt_rescaled_error(tt_is_kept(mask, place + next, keep), sums[2], factor_1, down_1, peak);
                    place += 2 * of.right * of.channels;
                }
            }
        }
    }
}

/* The weights of channels c and c + on of the image, by the windows of the error that their pixels read: tap by tap, the last
 * one first, all channels of the error. */
static inline TT_ALWAYS void tt_turn_windows(int8_t *to, const int8_t *w, int32_t on, tt_conv_shape of)
{
    const int32_t taps = of.rows * of.columns, line = taps * of.channels;
    for (int32_t t = taps - 1; t >= 0; t--) {
        const int8_t *from = w + t * of.channels;
        for (int32_t o = 0; o < of.outputs; o++, from += line, to++) {
            to[0] = from[0];
            to[taps * of.outputs] = from[on];
        }
    }
}

/* Tell whether a window lies in the image. */
static inline TT_ALWAYS bool tt_is_whole(tt_corner p, tt_conv_shape of)
{
    return p.row >= 0 && p.row + (of.rows - 1) * of.dilation_rows < of.height && tt_is_inside(p.column, of);
}

/* A QConvGradInput over all channels without strides: the windows of two pixels are widened, and meet the weights of `kept`
 * channels, an even number or all. scratch: two windows and these weights as int16 in whole blocks of four; factor and shift
 * of these channels; what is left of the rows of two windows, as int8 in whole blocks; two windows as int8. The other
 * operands are those of tt_windows_error. */
static inline TT_ALWAYS void tt_pairs_error(int8_t *y, int16_t *scratch, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep,
    int32_t kept)
{
    const int32_t run = of.columns * of.outputs, n = of.rows * run, blocks = (n + 3) / 4, pixels = of.height * of.width;
    const tt_conv_shape turned = {of.count, of.high, of.wide, of.outputs, of.channels,
        (of.rows - 1) * of.dilation_rows - of.top, (of.columns - 1) * of.dilation_columns - of.left, of.rows, of.columns, 1, 1,
        of.dilation_rows, of.dilation_columns, of.height, of.width, 0, 0, 0};
    const tt_window_rows copied = tt_window_rows_of(of.rows, run, run, true);
    const tt_window_rows whole = tt_window_rows_of(of.rows, run, of.wide * of.outputs, true);
    int16_t *const weights = scratch + 8 * blocks;
    int32_t *const ends = (int32_t *)(void *)(weights + 4 * kept * blocks);
    int8_t *const bytes = (int8_t *)(ends + 2 * kept), *const copies = bytes + (copied.left + 3) / 4 * 8;
    const bool words = of.outputs % 4 == 0, one = n == of.outputs && !tt_is_padded(turned);
    const tt_way next = {of.outputs, 0, 1}, wrap = {(of.wide - of.width) * of.outputs, 1, -of.width};
    for (int32_t first = 0; first < of.channels; first += kept) {
        const int32_t last = first + kept < of.channels ? first + kept : of.channels;
        for (int32_t c = first; c < last; c++) {
            int16_t *const to = weights + (c - first) * 4 * blocks;
            ends[2 * (c - first)] = tt_factor(multiplier[c]);
            ends[2 * (c - first) + 1] = tt_down(multiplier[c], shift[c] + exponent);
            if ((c - first) % 2 != 0) {
                continue;
            }
            tt_turn_windows(copies, w + c, c + 1 < last ? 1 : 0, of);
            if (c + 1 < last) {
                tt_widen_weights(to, copies, copies + n, bytes, copied);
            } else {
                tt_widen_last(to, copies, scratch, bytes, copied);
            }
        }
        memset(copies, 0, (size_t)of.outputs);
        for (int32_t image = 0; image < of.count; image++) {
            const int8_t *const from = g + image * of.high * of.wide * of.outputs;
            tt_corner p = {from - (turned.top * of.wide + turned.left) * of.outputs, -turned.top, -turned.left};
            int32_t place = image * pixels * of.channels + first, in_row = of.width;
            for (int32_t i = 0; i < pixels; i += 2, place += 2 * of.channels) {
                const int32_t on = i + 1 < pixels ? of.channels : 0;
                tt_corner q = p;
                if (on > 0) {
                    q = tt_behind(p, next);
                    q = --in_row == 0 ? tt_behind(q, wrap) : q;
                    in_row = in_row == 0 ? of.width : in_row;
                }
                if (one) {
                    tt_widen_windows(scratch, p.at, q.at, bytes, 0, copied);
                } else if (words) {
                    tt_two_windows(scratch, p, q, copies, turned);
                } else if (of.dilation_rows * of.dilation_columns == 1 && tt_is_whole(p, turned) && tt_is_whole(q, turned)) {
                    tt_widen_windows(scratch, p.at, q.at, bytes, 0, whole);
                } else {
                    tt_window8(copies, p, turned);
                    tt_window8(copies + n, q, turned);
                    tt_widen_windows(scratch, copies, copies + n, bytes, 0, copied);
                }
                for (int32_t c = first; c < last; c += 2) {
                    const int16_t *const own = weights + (c - first) * 4 * blocks;
                    const int32_t *const end = ends + 2 * (c - first);
                    int32_t sums[4] = {0, 0, 0, 0};
                    if (c + 1 < last) {
                        tt_dot_2x2(&sums[0], &sums[1], &sums[2], &sums[3], scratch, own, blocks);
                    } else {
                        tt_dot_2x1(&sums[0], &sums[2], scratch, own, blocks);
                    }
                    TT_UNROLL
                    for (int32_t k = 0; k < 4; k++) {
                        const int32_t at = place + c - first + k % 2 + k / 2 * on, *const by = end + k % 2 * 2;
                        if ((k % 2 == 0 || c + 1 < last) && (k < 2 || on > 0)) {
                            y[at] = tt_rescaled_error(tt_is_kept(mask, at, keep), sums[k], by[0], by[1], peak);
                        }
                    }
                }
                p = tt_behind(q, next);
                if (--in_row == 0) {
                    p = tt_behind(p, wrap);
                    in_row = of.width;
                }
            }
        }
    }
}

/* ---- depthwise --------------------------------------------------------------------------------------------------- */

/* The taps of tt_reach that lie inside the error for the position `steps` strides behind the phase: how many are left out in
 * front, and how many there are. */
typedef struct tt_inside {
    int32_t first, taps;
} tt_inside;

static inline TT_ALWAYS tt_inside tt_inside_of(tt_reach by, int32_t steps, int32_t extent)
{
    const int32_t from = by.from + steps, behind = extent - 1 - from;
    if (TT_LIKELY(from >= 0 && behind >= (by.taps - 1) * by.step)) {
        return (tt_inside){0, by.taps};
    }
    const int32_t first = from < 0 ? (by.step - 1 - from) / by.step : 0, end = behind < 0 ? 0 : behind / by.step + 1;
    return (tt_inside){first, (end < by.taps ? end : by.taps) - first};
}

/* What the taps of a pixel read, of the first channel: the first element of an image's error, the first tap, and how many
 * columns of taps. down: the rows of taps inside; steps: strides behind the phase's first pixel. */
typedef struct tt_under {
    int32_t error, tap, across;
} tt_under;

static inline TT_ALWAYS tt_under tt_under_of(
    tt_reach rows, tt_inside down, tt_reach columns, int32_t steps, tt_conv_shape of)
{
    const tt_inside across = tt_inside_of(columns, steps, of.wide);
    const int32_t row = rows.from + down.first * rows.step, column = columns.from + steps + across.first * columns.step;
    const int32_t tap_row = rows.tap + (rows.taps - 1 - down.first) * rows.apart;
    const int32_t tap = columns.tap + (columns.taps - 1 - across.first) * columns.apart;
    return (tt_under){(row * of.wide + column) * of.channels, tap_row * of.columns + tap, across.taps};
}

#if TT_HAS_DSP
/* Adds the products of a tap to the sums of four channels; w: their weights, as tt_widen4 lays them. */
static inline TT_ALWAYS void tt_add_four(int32_t sums[4], const int8_t *g, const int16_t *w)
{
    int32_t even, odd, two;
    __asm__("ldr %[even], %[g]\n\tldr %[two], %[first]\n\tsxtb16 %[odd], %[even], ror #8\n\tsxtb16 %[even], %[even]\n\t"
            "smlabb %[s0], %[even], %[two], %[s0]\n\tsmlatt %[s2], %[even], %[two], %[s2]\n\tldr %[two], %[second]\n\t"
            "smlabb %[s1], %[odd], %[two], %[s1]\n\tsmlatt %[s3], %[odd], %[two], %[s3]"
            : [s0] "+r"(sums[0]), [s1] "+r"(sums[1]), [s2] "+r"(sums[2]), [s3] "+r"(sums[3]), [even] "=&r"(even),
            [odd] "=&r"(odd), [two] "=&r"(two)
            : [g] "m"(*(const int8_t(*)[4])g), [first] "m"(*(const int16_t(*)[2])w), [second] "m"(*(const int16_t(*)[2])(w + 2)));
}

/* tt_rescaled_error, in one place. */
TT_SHARED int8_t tt_any_error(bool keep, int32_t sum, int32_t factor, int32_t down, int32_t *peak)
{
    return tt_rescaled_error(keep, sum, factor, down, peak);
}
#endif

/* Adds the products of down x across taps to the sums of `lanes` channels. kernel: weights of a channel; four: those of
 * four, as tt_add_four has them, or NULL. on: to the error of the next row and of the next tap of it; back: of their weights. */
static inline TT_ALWAYS void tt_add_taps(int32_t sums[4], const int8_t *g, const int8_t *w, const int16_t *four, int32_t lanes,
    int32_t kernel, int32_t down, int32_t across, int32_t on_row, int32_t on, int32_t back_row, int32_t back)
{
    (void)four;
    for (int32_t i = 0; i < down; i++, g += on_row) {
        TT_UNROLL
        for (int32_t j = 0; j < across; j++) {
            const int32_t tap = -i * back_row - j * back;
#if TT_HAS_DSP
            if (lanes == 4) {
                tt_add_four(sums, g + j * on, four + 4 * tap);
                continue;
            }
#endif
            TT_UNROLL
            for (int32_t k = 0; k < lanes; k++) {
                sums[k] += g[j * on + k] * w[k * kernel + tap];
            }
        }
    }
}

/* Errors of neighbours from their sums; right: whether all factors shift right. */
static inline TT_ALWAYS void tt_lane_errors(int8_t *y, const int32_t sums[4], const int32_t factors[4], const int32_t downs[4],
    bool right, const void *mask, int32_t place, int32_t *peak, tt_keep keep, int32_t lanes)
{
#if TT_HAS_DSP
    if (lanes == 4 && TT_LIKELY(right)) {
        const int32_t most = (*peak < 127 ? *peak : 127) - 1;
        int32_t left = 0;
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            const bool kept = tt_is_kept(mask, place + k, keep);
            const int32_t found = kept ? tt_requantise_kept(sums[k], factors[k], downs[k], 0, INT32_MIN) : 0;
            left |= most - (found ^ (found >> 31));
            y[place + k] = (int8_t)found;
        }
        if (TT_LIKELY(left >= 0)) { /* else a peak, or more than an int8, is among them */
            return;
        }
    }
#else
    (void)right;
#endif
    TT_UNROLL
    for (int32_t k = 0; k < lanes; k++) {
        const bool kept = tt_is_kept(mask, place + k, keep);
#if TT_HAS_DSP
        y[place + k] = tt_any_error(kept, sums[k], factors[k], downs[k], peak);
#else
        y[place + k] = tt_rescaled_error(kept, sums[k], factors[k], downs[k], peak);
#endif
    }
}

/* A channel of a depthwise QConvGradInput, whatever its strides and dilations, or four lanes; four: then place for their weights
 * of every tap. */
static inline TT_ALWAYS void tt_channels_error(int8_t *y, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep,
    int32_t c, int16_t *four, int32_t lanes)
{
    const int32_t n = of.channels, kernel = of.rows * of.columns;
    int32_t factors[4], downs[4];
    bool right = true;
    for (int32_t k = 0; k < lanes; k++) {
        factors[k] = tt_factor(multiplier[c + k]);
        downs[k] = tt_down(multiplier[c + k], shift[c + k] + exponent);
        right = right && downs[k] > 0;
    }
    for (int32_t i = 0; TT_HAS_DSP && lanes == 4 && i < 4 * kernel; i++) {
        four[i / 4 * 4 + tt_place(i % 4)] = w[(c + i % 4) * kernel + i / 4];
    }
    for (int32_t row = 0; row < of.count * of.height; row++) {
        const int8_t *const map = g + row / of.height * of.high * of.wide * n + c;
        const tt_reach rows = tt_reach_of(row % of.height, of.top, of.rows, of.down, of.dilation_rows);
        const tt_inside down = tt_inside_of(rows, 0, of.high);
        for (int32_t phase = 0; phase < of.right && phase < of.width; phase++) {
            const tt_reach columns = tt_reach_of(phase, of.left, of.columns, of.right, of.dilation_columns);
            if (rows.taps == 0 || columns.taps == 0) {
                continue;
            }
            const int32_t on_row = rows.step * of.wide * n, on = columns.step * n, back_row = rows.apart * of.columns;
            int32_t place = (row * of.width + phase) * n + c;
            for (int32_t x = phase, steps = 0; x < of.width; x += of.right, steps++, place += of.right * n) {
                const tt_under under = tt_under_of(rows, down, columns, steps, of);
                const int8_t *const from = map + under.error, *const weight = w + c * kernel + under.tap;
                const int16_t *const weights = lanes == 4 ? four + 4 * under.tap : NULL;
                int32_t sums[4] = {0, 0, 0, 0};
                if (under.across == columns.taps) {
                    tt_add_taps(sums, from, weight, weights, lanes, kernel, down.taps, columns.taps, on_row, on, back_row,
                        columns.apart);
                } else {
                    for (int32_t j = 0; j < under.across; j++) {
                        const int16_t *const own = lanes == 4 ? weights - 4 * j * columns.apart : NULL;
                        tt_add_taps(sums, from + j * on, weight - j * columns.apart, own, lanes, kernel, down.taps, 1,
                            on_row, on, back_row, columns.apart);
                    }
                }
                tt_lane_errors(y, sums, factors, downs, right, mask, place, peak, keep, lanes);
            }
        }
    }
}

/* four: place for four weights of every tap. */
static inline TT_ALWAYS void tt_depthwise_error(int8_t *y, int16_t *four, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    if (of.down > 1 || of.right > 1) {
        memset(y, 0, (size_t)(of.count * of.height * of.width * of.channels));
    }
    for (int32_t c = 0; c + 4 <= of.channels; c += 4) {
        tt_channels_error(y, peak, g, w, multiplier, shift, mask, exponent, of, keep, c, four, 4);
    }
    for (int32_t c = of.channels / 4 * 4; c < of.channels; c++) {
        tt_channels_error(y, peak, g, w, multiplier, shift, mask, exponent, of, keep, c, NULL, 1);
    }
}

/* ---- depthwise 3x3, stride 2 ------------------------------------------------------------------------------------- */

/* Rows of the image are reached in turn by the taps of rows 0 and 2, from two rows of the error, and by those of row 1, from
 * the first of these; its columns likewise. So two rows of the image are computed together, two columns at a time. Two
 * elements of the error are a word of halves where there are products in pairs. Sums are doubled there, so that the upper
 * half of their product with a multiplier is that of tt_requantise. */
#if TT_HAS_DSP
typedef uint32_t tt_both;
#else
typedef struct tt_both {
    int32_t first, second;
} tt_both;
#endif

static inline TT_ALWAYS tt_both tt_both_of(int32_t first, int32_t second)
{
#if TT_HAS_DSP
    tt_both both;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(both) : "r"(first), "r"(second));
    return both;
#else
    return (tt_both){first, second};
#endif
}

/* Products of both elements, of the first ones, of the first with the second; and such added to a sum. */
#if TT_HAS_DSP
#define TT_BOTH(name, first, added, products)                                                                          \
    static inline TT_ALWAYS int32_t name(tt_both a, tt_both b)                                                         \
    {                                                                                                                  \
        int32_t sum;                                                                                                   \
        __asm__(first " %0, %1, %2" : "=r"(sum) : "r"(a), "r"(b));                                                     \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static inline TT_ALWAYS int32_t name##_added(int32_t sum, tt_both a, tt_both b)                                    \
    {                                                                                                                  \
        __asm__(added " %0, %1, %2, %0" : "+r"(sum) : "r"(a), "r"(b));                                                 \
        return sum;                                                                                                    \
    }
#else
#define TT_BOTH(name, first, added, products)                                                                          \
    static inline TT_ALWAYS int32_t name(tt_both a, tt_both b)                                                         \
    {                                                                                                                  \
        return products;                                                                                               \
    }                                                                                                                  \
    static inline TT_ALWAYS int32_t name##_added(int32_t sum, tt_both a, tt_both b)                                    \
    {                                                                                                                  \
        return sum + products;                                                                                         \
    }
#endif
TT_BOTH(tt_both_products, "smuad", "smlad", (a.first * b.first + a.second * b.second))
TT_BOTH(tt_first_products, "smulbb", "smlabb", (a.first * b.first))
TT_BOTH(tt_cross_products, "smulbt", "smlabt", (a.first * b.second))

/* What two rows of a channel are computed from: rows of the error; taps of rows 0 and 2, by columns; those of row 1, of
 * columns 0 and 2, and of column 1 behind the shift down. half: 2^(down - 1), or 0 if the factor does not shift right. bytes: whether bytes of a mask hold
 * whole pixels, a constant; bit: then, the channel's. has_outer, has_inner: which of both rows are in the map; constants. */
typedef struct tt_error_rows {
    const int8_t *first, *second;
    tt_both outer_0, outer_1, outer_2, sides, middle;
    int32_t multiplier, down, half, bit;
    bool has_outer, has_inner, bytes;
} tt_error_rows;

#if TT_HAS_DSP
/* value >> the first element, of which the instruction reads the lowest byte. */
static inline TT_ALWAYS int32_t tt_shifted(int32_t value, tt_both by)
{
    __asm__("asr %0, %0, %1" : "+r"(value) : "r"(by));
    return value;
}
#endif

static inline TT_ALWAYS bool tt_keeps(const void *mask, int32_t at, tt_error_rows by, tt_keep keep)
{
    if (keep.kind == TT_KEPT_BY_BITS && by.bytes) {
        return (((const uint8_t *)mask)[(uint32_t)at / 8] & by.bit) != 0;
    }
    return tt_is_kept(mask, at, keep);
}

/* The error of a sum. */
TT_SHARED int8_t tt_one_error(bool keep, int32_t sum, int32_t multiplier, int32_t down, int32_t *peak)
{
    return tt_rescaled_error(keep, TT_HAS_DSP ? sum / 2 : sum, tt_factor(multiplier), down, peak);
}

/* A magnitude that is below it changes no peak, and is none of an int8 only. */
static inline TT_ALWAYS int32_t tt_peak_limit(int32_t peak, int32_t half)
{
    return half == 0 ? 0 : peak < 127 ? peak : 127;
}

/* Errors of two neighbours, `on` elements apart. limit: see tt_peak_limit. */
static inline TT_ALWAYS void tt_two_errors(int8_t *y, int32_t on, int32_t sum_0, int32_t sum_1, const int8_t *mask,
    int32_t at, tt_error_rows by, int32_t *peak, int32_t *limit, tt_keep keep)
{
    const bool keep_0 = tt_keeps(mask, at, by, keep), keep_1 = tt_keeps(mask, at + on, by, keep);
#if TT_HAS_DSP
    int32_t y_0, y_1;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(y_0) : "r"(sum_0), "r"(by.multiplier), "r"(by.half));
    __asm__("smmlar %0, %1, %2, %3" : "=r"(y_1) : "r"(sum_1), "r"(by.multiplier), "r"(by.half));
    y_0 = keep_0 ? tt_shifted(y_0 + (sum_0 >> 31), by.middle) : 0;
    y_1 = keep_1 ? tt_shifted(y_1 + (sum_1 >> 31), by.middle) : 0;
    y[0] = (int8_t)y_0;
    y[on] = (int8_t)y_1;
    if (TT_LIKELY(((y_0 ^ (y_0 >> 31)) | (y_1 ^ (y_1 >> 31))) < *limit)) {
        return;
    }
#endif
    y[0] = tt_one_error(keep_0, sum_0, by.multiplier, by.down, peak);
    y[on] = tt_one_error(keep_1, sum_1, by.multiplier, by.down, peak);
    *limit = tt_peak_limit(*peak, by.half);
}

/* Errors of a column of both rows, or of one of them. */
static inline TT_ALWAYS void tt_column_errors(int8_t *y, int32_t line, int32_t outer, int32_t inner, const int8_t *mask,
    int32_t at, tt_error_rows by, int32_t *peak, int32_t *limit, tt_keep keep)
{
    if (by.has_outer && by.has_inner) {
        tt_two_errors(y + at, line, outer, inner, mask, at, by, peak, limit, keep);
        return;
    }
    const int32_t to = by.has_outer ? at : at + line;
    y[to] = tt_one_error(tt_is_kept(mask, to, keep), by.has_outer ? outer : inner, by.multiplier, by.down, peak);
    *limit = tt_peak_limit(*peak, by.half);
}

/* Sums of a column that lies between two of the error, of the row between two of its rows, and of the one on its row. */
static inline TT_ALWAYS int32_t tt_outer_sum(tt_both here, tt_both before, tt_error_rows by)
{
    return tt_both_products_added(tt_both_products(here, by.outer_0), before, by.outer_2);
}

static inline TT_ALWAYS int32_t tt_inner_sum(tt_both here, tt_both before, tt_error_rows by)
{
    return tt_cross_products_added(tt_first_products(here, by.sides), before, by.sides);
}

/* Errors of two columns of both rows, or of one of them. */
static inline TT_ALWAYS void tt_columns_errors(int8_t *y, const int8_t *mask, int32_t at, tt_both here, tt_both before,
    tt_error_rows by, int32_t *peak, int32_t *limit, tt_conv_shape of, tt_keep keep)
{
    const int32_t step = of.channels, line = of.width * step;
    if (by.has_outer) {
        const int32_t sum = tt_outer_sum(here, before, by), next = tt_both_products(here, by.outer_1);
        tt_two_errors(y + at, step, sum, next, mask, at, by, peak, limit, keep);
    }
    if (by.has_inner) {
        const int32_t sum = tt_inner_sum(here, before, by), next = tt_cross_products(here, by.middle);
        tt_two_errors(y + at + line, step, sum, next, mask, at + line, by, peak, limit, keep);
    }
}

/* The next column of two rows of the error. */
static inline TT_ALWAYS tt_both tt_next_column(tt_error_rows *by, int32_t step)
{
    const tt_both here = tt_both_of(*by->first, *by->second);
    by->first += step;
    by->second += step;
#if TT_HAS_DSP
    __asm__("" : "+r"(by->first), "+r"(by->second)); /* each steps on as it is read, without a shared index */
#endif
    return here;
}

/* Two rows of a channel's errors, or one of them; at: of the first element of the first. */
static inline TT_ALWAYS void tt_error_rows3(
    int8_t *y, const int8_t *mask, int32_t at, tt_error_rows by, int32_t *peak, tt_conv_shape of, tt_keep keep)
{
    const int32_t step = of.channels, line = of.width * step;
    int32_t x = -of.left, limit = tt_peak_limit(*peak, by.half);
    tt_both before = tt_both_of(0, 0);
    if (x < 0) { /* no more than one column of two is in front of the map */
        const tt_both here = tt_both_of(*by.first, *by.second);
        if (x == -1) {
            const int32_t outer = tt_both_products(here, by.outer_1), inner = tt_cross_products(here, by.middle);
            tt_column_errors(y, line, outer, inner, mask, at, by, peak, &limit, keep);
        }
        before = here;
        by.first += step;
        by.second += step;
        x += 2;
    }
    const int32_t inside = (of.width - x) / 2, left = of.wide - (of.left > 0 ? 1 : 0), both = inside < left ? inside : left;
    at += x * step;
    const int32_t turns = keep.kind == TT_ALL_KEPT ? both / 2 : 0;
    for (int32_t i = 2 * turns; i < both; i++, at += 2 * step) {
        const tt_both here = tt_next_column(&by, step);
        tt_columns_errors(y, mask, at, here, before, by, peak, &limit, of, keep);
        before = here;
    }
    for (int32_t i = 0; i < turns; i++, at += 4 * step) { /* two at a time, so that none moves between registers */
        const tt_both here = tt_next_column(&by, step);
        tt_columns_errors(y, mask, at, here, before, by, peak, &limit, of, keep);
        before = tt_next_column(&by, step);
        tt_columns_errors(y, mask, at + 2 * step, before, here, by, peak, &limit, of, keep);
    }
    for (x += 2 * both; x < of.width; x++, at += step) { /* behind the last two of the error, or half of them */
        const bool there = both < left, even = (x + of.left) % 2 == 0;
        const tt_both here = there ? tt_both_of(*by.first, *by.second) : tt_both_of(0, 0);
        const int32_t outer = even ? tt_outer_sum(here, before, by) : tt_both_products(here, by.outer_1);
        const int32_t inner = even ? tt_inner_sum(here, before, by) : tt_cross_products(here, by.middle);
        tt_column_errors(y, line, outer, inner, mask, at, by, peak, &limit, keep);
    }
}

/* A QConvGradInput of a depthwise 3x3 convolution with stride 2. */
static inline TT_ALWAYS void tt_depthwise_error3(int8_t *y, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    const int32_t line = of.width * of.channels, pitch = of.wide * of.channels;
    for (int32_t c = 0; c < of.count * of.channels; c++) {
        const int32_t channel = c % of.channels, n = c / of.channels;
        const int8_t *const map = g + n * of.high * pitch + channel;
        tt_error_rows by;
        by.multiplier = multiplier[channel];
        by.bytes = of.channels % 8 == 0;
        by.bit = 1 << channel % 8;
        by.down = tt_down(by.multiplier, shift[channel] + exponent);
        by.half = by.down > 0 ? (int32_t)(1u << (by.down - 1)) : 0;
        for (int32_t i = 0, up = -of.top; up < of.height; i++, up += 2) {
            const int32_t at = (n * of.height + up) * line + channel;
            if (i < 2 || i >= of.high) { /* rows beyond the border stand for themselves by any other ones, without taps */
                const int8_t *const own = w + 9 * channel;
                const int32_t scale = TT_HAS_DSP ? 2 : 1, first = i < of.high ? scale : 0;
                const int32_t second = i > 0 && i <= of.high ? scale : 0;
                by.outer_0 = tt_both_of(first * own[0], second * own[6]);
                by.outer_1 = tt_both_of(first * own[1], second * own[7]);
                by.outer_2 = tt_both_of(first * own[2], second * own[8]);
                by.sides = tt_both_of(first * own[3], first * own[5]);
                by.middle = tt_both_of(by.down, first * own[4]);
            }
            by.first = i < of.high ? map + i * pitch : map;
            by.second = i > 0 && i <= of.high ? map + (i - 1) * pitch : map;
            by.has_outer = true;
            by.has_inner = true;
            if (up >= 0 && up + 1 < of.height) {
                tt_error_rows3(y, mask, at, by, peak, of, keep);
            } else if (up >= 0 && (of.height + of.top) % 2 == 1) {
                by.has_inner = false;
                tt_error_rows3(y, mask, at, by, peak, of, keep);
            } else if (up == -1 && of.top == 1) {
                by.has_outer = false;
                tt_error_rows3(y, mask, at, by, peak, of, keep);
            }
        }
    }
}

#endif
