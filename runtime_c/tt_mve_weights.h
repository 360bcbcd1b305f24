/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Weight gradients of convolutions over all channels on vectors (Helium); tt_mve_steps.h is what they do. Where there are no
 * vectors, plain C gives the same bits.
 *
 * A map of the error times the image under a tap. Both lie in scratch by channel, so that pixels are neighbours; the image
 * once for every column of taps, moved by it and thinned by the stride, or once with its border.
 */
#ifndef TT_MVE_WEIGHTS_H
#define TT_MVE_WEIGHTS_H

#include "tt_mve_steps.h"

/* The sums of four maps, `apart` from each other, of which an image takes `map`. n: pixels of an image, or those and zeros. */
static inline TT_ALWAYS tt_sums tt_map_sums(
    const int8_t *error, const int8_t *from, int32_t count, int32_t map, int32_t pixels, int32_t n)
{
    tt_sums s = {0, 0, 0, 0};
    for (int32_t image = 0; image < count; image++) {
        tt_runs runs = tt_runs_of(from + image * map, count * map);
        tt_runs8_x4(&s, error + image * pixels, &runs, count * map, n, count == 1);
    }
    return s;
}

/* The strip of a layer whose image has a border in scratch. */
#define TT_BORDERED (-1)

/* Maps of a weight gradient in scratch. columns: of taps that share a map of the image; it has `phases` of image_rows rows,
 * and the next one begins `map` elements behind it. pitch: elements from row to row; maps: of the image; across: how many are
 * there together; all: their elements with a border behind the last one; n: elements of the error's map, of which small ones
 * end with zeros, so that all vectors are whole. */
typedef struct tt_weight_maps {
    int32_t columns, phases, image_rows, pitch, map, maps, across, all, n;
} tt_weight_maps;

/* Elements of a border behind the image: those that taps reach beyond it. */
static inline TT_ALWAYS int32_t tt_border_behind(int32_t out, int32_t reach, int32_t before, int32_t size)
{
    const int32_t behind = out + reach - before - size;
    return behind > 0 ? behind : 0;
}

static inline TT_ALWAYS int32_t tt_map_end(int32_t count, int32_t elements)
{
    return count == 1 && elements < 64 ? tt_whole(elements) : elements;
}

/* With a border, which neighbours share: what is behind a row is in front of the next one, and maps likewise. */
static inline TT_ALWAYS tt_weight_maps tt_bordered_maps_of(tt_conv_shape of)
{
    const int32_t below = tt_border_behind(of.high, (of.rows - 1) * of.dilation_rows, of.top, of.height);
    const int32_t behind = tt_border_behind(of.wide, (of.columns - 1) * of.dilation_columns, of.left, of.width);
    const int32_t pitch = of.width + (of.left > behind ? of.left : behind);
    const int32_t map = (of.height + (of.top > below ? of.top : below)) * pitch;
    const int32_t last = (of.height + of.top + below - 1) * pitch + of.left + of.width + behind;
    const int32_t across = of.across < of.channels ? of.across : of.channels;
    return (tt_weight_maps){of.columns, 1, of.height, pitch, map, of.channels, across, (across - 1) * map + last,
        tt_map_end(1, (of.high - 1) * pitch + of.wide)};
}

static inline TT_ALWAYS tt_weight_maps tt_weight_maps_of(tt_conv_shape of)
{
    if (of.strip == TT_BORDERED) {
        return tt_bordered_maps_of(of);
    }
    const int32_t phases = of.dilation_rows == 1 && of.rows < of.down ? of.rows : of.down;
    const int32_t image_rows = of.high + (of.rows - 1) * of.dilation_rows / of.down, map = phases * image_rows * of.wide;
    return (tt_weight_maps){1, phases, image_rows, of.wide, of.count * map, of.columns * of.channels,
        of.across, of.across * of.count * map, tt_map_end(of.count, of.high * of.wide)};
}

/* Channels whose sums go to scratch together: two if both maps of the error stay in registers. */
static inline TT_ALWAYS int32_t tt_together(tt_conv_shape of, tt_weight_maps by)
{
    return of.count == 1 && by.n % 16 == 0 && by.n <= 48 ? 2 : 1;
}

/* Sums at even places of a row, or at odd ones: whole vectors. Those at odd places follow the others. */
static inline TT_ALWAYS int32_t tt_half_sums(tt_conv_shape of)
{
    return (of.across + 7) / 8 * 4;
}

#if TT_HAS_MVE
/* The error of a map of at most 64 pixels, in registers. */
typedef struct tt_held {
    int8x16_t at_0, at_16, at_32, at_48;
} tt_held;

static inline TT_ALWAYS bool tt_is_held(int32_t count, int32_t n)
{
    return count == 1 && n % 16 == 0 && n <= 64;
}

static inline TT_ALWAYS tt_held tt_hold(const int8_t *error, int32_t n)
{
    const int8x16_t first = vldrbq_s8(error);
    return (tt_held){first, n > 16 ? vldrbq_s8(error + 16) : first, n > 32 ? vldrbq_s8(error + 32) : first,
        n > 48 ? vldrbq_s8(error + 48) : first};
}

/* Products of two maps with that of a channel, or of two channels. */
#define TT_HELD_DOT(with, map, s, i) "vldrb.8 q0, [%[from" #map "], %[at" #map #i "]]\n\t" with " %[" s "], %q[e" #i "], q0\n\t"
#define TT_BOTH_DOT(with, map, s, t, i) TT_HELD_DOT(with, map, s, i) with " %[" t "], %q[f" #i "], q0\n\t"
#define TT_HELD_DOTS(with, i) TT_HELD_DOT(with, 1, "s0", i) TT_HELD_DOT(with, 2, "s1", i)
#define TT_BOTH_DOTS(with, i) TT_BOTH_DOT(with, 1, "s0", "s2", i) TT_BOTH_DOT(with, 2, "s1", "s3", i)
#define TT_HELD_AT(i) [e##i] "w"(held.at_##i), [at1##i] "i"(reach_1 + i), [at2##i] "i"(reach_2 + i)
#define TT_BOTH_AT(i) TT_HELD_AT(i), [f##i] "w"(other.at_##i)
#define TT_HELD_SUMS(dots, ...)                                                                                        \
    __asm__ volatile(dots : [s0] "=&Te"(s.sum_0), [s1] "=&Te"(s.sum_1)                                                 \
                     : [from1] "h"(one), [from2] "h"(two), __VA_ARGS__ : "q0", "memory")
#define TT_BOTH_SUMS(dots, ...)                                                                                        \
    __asm__ volatile(dots : TT_SUMS_OF(s.sum_, "=&Te") : [from1] "h"(one), [from2] "h"(two), __VA_ARGS__ : "q0", "memory")

/* How far the offset of a load reaches, both ways. */
#define TT_REACH 127

/* The sums of maps i and k of four that are `map` apart, of n elements; both: of two channels, and n is at most 48. middle:
 * TT_REACH behind the first map. Levels of optimisation that know no constants use no offsets. */
static inline TT_ALWAYS tt_sums tt_held_sums(
    tt_held held, tt_held other, const int8_t *middle, int32_t i, int32_t k, int32_t map, int32_t n, bool both)
{
    const int32_t near = (2 * TT_REACH + 16 - n) / map + 1; /* maps that one pointer reaches */
    const int32_t first = i * map - TT_REACH, second = k * map - TT_REACH;
    const int32_t skip_1 = i / near * near * map, skip_2 = k / near * near * map;
    const int32_t reach_1 = TT_CONSTANT(first - skip_1) ? first - skip_1 : 0;
    const int32_t reach_2 = TT_CONSTANT(second - skip_2) ? second - skip_2 : 0;
    const int8_t *const one = middle + first - reach_1, *const two = middle + second - reach_2;
    tt_sums s = {0, 0, 0, 0};
    if (n == 16 && both) {
        TT_BOTH_SUMS(TT_BOTH_DOTS("vmladav.s8", 0), TT_BOTH_AT(0));
    } else if (n == 32 && both) {
        TT_BOTH_SUMS(TT_BOTH_DOTS("vmladav.s8", 0) TT_BOTH_DOTS("vmladava.s8", 16), TT_BOTH_AT(0), TT_BOTH_AT(16));
    } else if (n == 48 && both) {
        TT_BOTH_SUMS(TT_BOTH_DOTS("vmladav.s8", 0) TT_BOTH_DOTS("vmladava.s8", 16) TT_BOTH_DOTS("vmladava.s8", 32),
            TT_BOTH_AT(0), TT_BOTH_AT(16), TT_BOTH_AT(32));
    } else if (n == 16) {
        TT_HELD_SUMS(TT_HELD_DOTS("vmladav.s8", 0), TT_HELD_AT(0));
    } else if (n == 32) {
        TT_HELD_SUMS(TT_HELD_DOTS("vmladav.s8", 0) TT_HELD_DOTS("vmladava.s8", 16), TT_HELD_AT(0), TT_HELD_AT(16));
    } else if (n == 48) {
        TT_HELD_SUMS(TT_HELD_DOTS("vmladav.s8", 0) TT_HELD_DOTS("vmladava.s8", 16) TT_HELD_DOTS("vmladava.s8", 32),
            TT_HELD_AT(0), TT_HELD_AT(16), TT_HELD_AT(32));
    } else {
        TT_HELD_SUMS(TT_HELD_DOTS("vmladav.s8", 0) TT_HELD_DOTS("vmladava.s8", 16) TT_HELD_DOTS("vmladava.s8", 32)
                         TT_HELD_DOTS("vmladava.s8", 48),
            TT_HELD_AT(0), TT_HELD_AT(16), TT_HELD_AT(32), TT_HELD_AT(48));
    }
    return s;
}
#endif

static inline TT_ALWAYS void tt_store_sums(int32_t *to, int32_t first, int32_t second)
{
    to[0] = first;
    to[1] = second;
}

/* The sums of a row of taps: of `maps` maps from `from` on, or up to three more, each with tt_together maps of the error. */
static inline TT_ALWAYS void tt_row_sums8(
    int32_t *sums, const int8_t *error, const int8_t *from, int32_t maps, tt_weight_maps by, tt_conv_shape of)
{
    const int32_t n = by.n, map = by.map, half = tt_half_sums(of);
#if TT_HAS_MVE
    if (tt_is_held(of.count, n)) {
        TT_UNSEEN(error); /* or GCC keeps an address for each vector */
        const bool both = tt_together(of, by) > 1;
        const tt_held held = tt_hold(error, n), other = tt_hold(both ? error + n : error, n);
        const int8_t *middle = from + TT_REACH;
        for (int32_t j = 0; j < maps; j += 4, sums += 2, middle += 4 * map) {
            TT_UNROLL
            for (int32_t odd = 0; odd < 2; odd++) {
                const tt_sums two = tt_held_sums(held, other, middle, odd, odd + 2, map, n, both);
                tt_store_sums(sums + odd * half, two.sum_0, two.sum_1);
                if (both) {
                    tt_store_sums(sums + (2 + odd) * half, two.sum_2, two.sum_3);
                }
            }
        }
        return;
    }
#endif
    for (int32_t c = 0; c < tt_together(of, by); c++, error += n, sums += 2 * half) {
        int32_t *to = sums;
        for (int32_t j = 0; j < maps; j += 4, to += 2) {
            const tt_sums four = tt_map_sums(error, from + j * map, of.count, map / of.count, of.high * of.wide, n);
            tt_store_sums(to, four.sum_0, four.sum_2);
            tt_store_sums(to + half, four.sum_1, four.sum_3);
        }
    }
}

/* Elements that are `pitch` apart. */
static inline TT_ALWAYS void tt_fill_apart8(int8_t *to, int32_t value, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)pitch);
    const int16x8_t values = vdupq_n_s16((int16_t)value);
    for (int32_t i = 0; i < n; i += 8, to += 8 * pitch) {
        vstrbq_scatter_offset_p_s16(to, places, values, vctp16q((uint32_t)(n - i)));
    }
#else
    for (int32_t i = 0; i < n; i++) {
        to[i * pitch] = (int8_t)value;
    }
#endif
}

/* Elements of rows of `wide` in front of `low` and from `end` on. */
static inline TT_ALWAYS void tt_border8(int8_t *to, int32_t rows, int32_t wide, int32_t low, int32_t end, int32_t zero)
{
    for (int32_t i = 0; i < low; i++) {
        tt_fill_apart8(to + i, zero, wide, rows);
    }
    for (int32_t i = end; i < wide; i++) {
        tt_fill_apart8(to + i, zero, wide, rows);
    }
}

/* The image of a channel under a column of taps, thinned by the stride: for each phase of its rows, image_rows of them. Those
 * above and below the image are its zero point already. */
static inline TT_ALWAYS void tt_lay_image8(
    int8_t *to, const int8_t *x, int32_t column, int32_t phases, int32_t image_rows, tt_conv_shape of)
{
    /* positions in a row: the image reaches those from low to end */
    const int32_t start = column * of.dilation_columns - of.left, pixel = of.right * of.channels;
    const int32_t low = tt_clamp((-start + of.right - 1) / of.right, 0, of.wide);
    const int32_t end = tt_clamp((of.width - start + of.right - 1) / of.right, low, of.wide);
    /* rows that follow each other in memory are one run of elements, whose border is overwritten */
    const bool together = of.down == 1 && of.right == 1 && of.wide == of.width;
    for (int32_t part = 0; part < of.count * phases; part++, to += image_rows * of.wide) {
        const int32_t image = part / phases, ahead = of.top - part % phases; /* the image's row of line 0, negated */
        const int32_t first = tt_clamp((ahead + of.down - 1) / of.down, 0, image_rows);
        const int32_t last = tt_clamp((of.height + ahead + of.down - 1) / of.down, first, image_rows);
        const int32_t rows = last - first;
        if (low == end) {
            tt_fill8(to, of.zero, image_rows * of.wide);
        }
        if (low == end || rows == 0) {
            continue;
        }
        const int32_t place = ((image * of.height + first * of.down - ahead) * of.width + start + low * of.right) * of.channels;
        const int32_t line = of.down * of.width * of.channels, n = end - low;
        for (int32_t r = 0; r < (together ? 1 : rows); r++) {
            tt_gather8(to + (first + r) * of.wide + low, x + place + r * line, pixel, together ? (rows - 1) * of.wide + n : n);
        }
        tt_border8(to + first * of.wide, rows, of.wide, low, end, of.zero);
    }
}

/* What becomes of the sums of a channel's weights. */
typedef struct tt_channel_end {
    int32_t channel, correction;
#if TT_HAS_MVE
    tt_quick quick;
#endif
} tt_channel_end;

static inline TT_ALWAYS tt_channel_end tt_channel_end_of(
    int32_t o, const int8_t *error, int32_t n, tt_moves by, tt_through through, tt_conv_shape of)
{
    const int32_t correction = of.zero == 0 ? 0 : -of.zero * tt_sum8(0, error, n);
#if TT_HAS_MVE
    return (tt_channel_end){o, correction, tt_quick_of(o, by, through)};
#else
    (void)by;
    (void)through;
    return (tt_channel_end){o, correction};
#endif
}

/* Steps of n weights of a channel from element `at` on that may need more than tt_quick, four by four. */
static inline TT_ALWAYS void tt_other_steps8(int8_t *w, const int32_t *sums, int32_t half, int32_t n, int32_t at,
    const tt_channel_end *end, tt_moves by, tt_through through)
{
    by.kind = TT_BY_NOISE; /* as tt_may_be_quick says; constants leave out what it excludes */
    through.largest = 0;
    const tt_step_factor factor = tt_step_factor_of(end->channel, by, through);
    for (int32_t j = 0; j < n; j += 4) {
        const int32_t skip = j + 4 <= n ? 0 : j + 4 - n;
        tt_i32x4 four;
        for (int32_t i = 0; i < 4; i++) {
            const int32_t place = i < skip ? j : j - skip + i;
            four[i] = sums[place % 2 * half + place / 2];
        }
        tt_end_weights8(w, four + end->correction, end->channel, at + j - skip, skip, factor.multiplier, factor.exponent,
            by, through);
    }
}

/* The same in functions of their own, so that quick steps find registers: without momentum, and with it. */
TT_SHARED void tt_other_moves8(int8_t *w, const int32_t *sums, int32_t half, int32_t n, int32_t at,
    const tt_channel_end *end, const tt_moves *by)
{
    tt_other_steps8(w, sums, half, n, at, end, *by, (tt_through){0, NULL, NULL, NULL, 0, NULL, 0});
}

TT_SHARED void tt_other_velocities8(int8_t *w, const int32_t *sums, int32_t half, int32_t n, int32_t at,
    const tt_channel_end *end, const tt_moves *by, const tt_through *through)
{
    tt_through on = *through;
    on.momentum = 1;
    tt_other_steps8(w, sums, half, n, at, end, *by, on);
}

/* Steps of weights whose sums are in scratch: n of `maps` from element `at` on. */
static inline TT_ALWAYS void tt_row_steps8(void *w, int32_t *sums, int32_t n, int32_t maps, int32_t at,
    const tt_channel_end *end, tt_moves by, tt_through through, tt_conv_shape of, tt_largest *seen)
{
    const int32_t half = tt_half_sums(of);
#if TT_HAS_MVE
    if (TT_LIKELY(end->quick.lift > 0)) {
        const bool whole = maps % 8 == 0 && (of.across % 8 == 0 || of.across == maps);
        const tt_quick quick = end->quick;
        if (through.momentum != 0) {
            tt_quick_velocities8(sums, half, n, whole, at, end->correction, quick, by, through, seen);
        }
        tt_quick_steps8((int8_t *)w, sums, half, n, whole, at, through.momentum == 0 ? end->correction : 0,
            through.momentum == 0 ? by.spare - 1 : 0, quick, by);
        return;
    }
#endif
    const tt_moves moves = by; /* copies, so that the others stay in registers */
    if (through.momentum == 0) {
        tt_other_moves8((int8_t *)w, sums, half, n, at, end, &moves);
    } else {
        const tt_through on = through;
        tt_other_velocities8((int8_t *)w, sums, half, n, at, end, &moves, &on);
    }
    (void)maps;
    (void)seen;
}

/* What the gradients of a row of taps do if no step is quick: n weights from element `at` on, of which four or more lie
 * together. factor: of the channel's steps. */
static inline TT_ALWAYS void tt_row_ends8(void *w, const int8_t *error, const int8_t *from, int32_t n, tt_weight_maps in,
    int32_t at, const tt_channel_end *end, tt_step_factor factor, tt_moves by, tt_through through, tt_conv_shape of)
{
    const int32_t elements = in.n, map = in.map;
#if TT_HAS_MVE
    const tt_held held = tt_hold(error, tt_is_held(of.count, elements) ? elements : 0);
#endif
    for (int32_t j = 0; j < n; j += 4) {
        const int32_t skip = in.maps % 4 == 0 || j + 4 <= n ? 0 : j + 4 - n;
        tt_sums four;
#if TT_HAS_MVE
        if (tt_is_held(of.count, elements)) {
            const int8_t *const middle = from + (j - skip) * map + TT_REACH;
            const tt_sums low = tt_held_sums(held, held, middle, 0, 1, map, elements, false);
            const tt_sums high = tt_held_sums(held, held, middle, 2, 3, map, elements, false);
            four = (tt_sums){low.sum_0, low.sum_1, high.sum_0, high.sum_1};
        } else
#endif
        {
            four = tt_map_sums(error, from + (j - skip) * map, of.count, map / of.count, of.high * of.wide, elements);
        }
        const tt_i32x4 sums = tt_lanes(four.sum_0, four.sum_1, four.sum_2, four.sum_3);
        tt_end_weights8(w, of.zero == 0 ? sums : sums + end->correction, end->channel, at + j - skip, skip,
            factor.multiplier, factor.exponent, by, through);
    }
}

/* Whether the sums of a row of taps go to scratch: steps may be quick, and are not four at a time, which takes less without:
 * 5x5 5x5x7 to 9 1.03 instead of 1.17 instructions per multiply-accumulate on a Cortex-M55. */
static inline TT_ALWAYS bool tt_sums_first(tt_moves by, tt_through through, tt_conv_shape of)
{
    return tt_may_be_quick(by, through) && (of.across > 4 || through.momentum != 0);
}

/* A channel of rows that follow each other in memory, in rows that are `pitch` apart. apart: distance of its elements, below
 * 2^12; rows * wide * wide < 2^16. */
static inline TT_ALWAYS void tt_gather_rows8(
    int8_t *to, int32_t pitch, const int8_t *from, int32_t apart, int32_t rows, int32_t wide)
{
#if TT_HAS_MVE
    const uint16x8_t others = vmulq_n_u16(tt_count_x8(), (uint16_t)apart);
    const uint16x8_t part = vdupq_n_u16((uint16_t)(65536 / wide + 1)); /* of 2^16: a product's high half is the row */
    int32_t place = 0;
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vidup.u16 q0, %[place], #1\n\t"
                     "vmulh.u16 q1, q0, %q[part]\n\t"
                     "vmla.u16 q0, q1, %[more]\n\t"
                     "vldrb.u16 q1, [%[from], %q[others]]\n\t"
                     "add %[from], %[on]\n\t"
                     "vstrb.16 q1, [%[to], q0]\n\t"
                     "letp lr, 1b"
        : [from] "+&r"(from), [place] "+&Te"(place)
        : [to] "r"(to), [n] "r"(rows * wide), [part] "w"(part), [others] "w"(others), [more] "r"(pitch - wide),
        [on] "rI"(8 * apart)
        : "lr", "q0", "q1", "memory");
#else
    for (int32_t i = 0; i < rows * wide; i++) {
        to[i / wide * pitch + i % wide] = from[i * apart];
    }
#endif
}

/* A map of the image; place: which one of all. What is no image is its zero point already. */
static inline TT_ALWAYS void tt_lay_map8(
    int8_t *to, const int8_t *x, int32_t place, tt_weight_maps in, tt_conv_shape of)
{
    if (of.strip != TT_BORDERED) {
        tt_lay_image8(to, x + place % of.channels, place / of.channels, in.phases, in.image_rows, of);
        return;
    }
    tt_gather_rows8(to + of.top * in.pitch + of.left, in.pitch, x + place, of.channels, of.height, of.width);
}

/* The error of a channel; what is between its rows and behind them is 0 already. */
static inline TT_ALWAYS void tt_lay_error8(int8_t *to, const int8_t *g, tt_weight_maps in, tt_conv_shape of)
{
    if (of.strip != TT_BORDERED) {
        tt_gather8(to, g, of.outputs, of.count * of.high * of.wide);
    } else {
        tt_gather_rows8(to, in.pitch, g, of.outputs, of.high, of.wide);
    }
}

/* How far the image under a tap is from the beginning of its map. tap: of those that share no map, a row. */
static inline TT_ALWAYS int32_t tt_under_tap(int32_t tap, tt_weight_maps in, tt_conv_shape of)
{
    const int32_t row = tap / in.columns * of.dilation_rows;
    const int32_t line = of.strip == TT_BORDERED ? row : row % of.down * in.image_rows + row / of.down;
    return line * in.pitch + tap % in.columns * of.dilation_columns;
}

/* The sums of some columns of taps, one if only `here` of all maps are there. */
static inline TT_ALWAYS void tt_columns_sums8(int32_t *sums, const int8_t *error, const int8_t *from, int32_t columns,
    int32_t here, tt_weight_maps in, tt_conv_shape of)
{
    if (columns == 1) {
        tt_row_sums8(sums, error, from, here, in, of);
        return;
    }
    for (int32_t s = 0; s < columns; s++) {
        tt_row_sums8(sums + s * in.maps / 2, error, from + s * of.dilation_columns, in.maps, in, of);
    }
}

/* All weights. scratch: sums (tt_sums_first), maps of the image, of.across of them or less, and those of the error. Four maps
 * of the image, at least, lie together. */
static inline TT_ALWAYS void tt_weights8(
    void *w, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of, tt_moves by, tt_through through)
{
    const tt_weight_maps in = tt_weight_maps_of(of);
    const int32_t columns = of.across > in.maps ? in.columns : 1; /* of taps whose sums are there together */
    const int32_t runs = of.rows * in.columns / columns, weights = in.maps * columns;
    const bool sums_first = tt_sums_first(by, through, of);
    const int32_t n = in.n, together = sums_first ? tt_together(of, in) : 1;
    int32_t *const sums = (int32_t *)(void *)scratch;
    int8_t *const images = scratch + (sums_first ? 8 * together * tt_half_sums(of) : 0);
    /* sums of a row read up to three maps more than there are */
    int8_t *const error = images + in.all + (sums_first ? (in.across + 3) / 4 * 4 - in.across : 0) * in.map;
    tt_largest seen = {0, 0};
    memset(error, 0, (size_t)(together * n));
    if (of.strip == TT_BORDERED || of.top > 0 || (in.image_rows - 1) * of.down + in.phases - of.top > of.height) {
        tt_fill8(images, of.zero, in.all);
    }
    for (int32_t first = 0; first < in.maps; first += in.across) {
        const int32_t here = first + in.across < in.maps ? in.across : in.maps - first;
        const int32_t before = sums_first || here >= 4 ? 0 : 4 - here;
        for (int32_t j = 0; j < before + here; j++) {
            tt_lay_map8(images + j * in.map, x, first - before + j, in, of);
        }
        for (int32_t o = 0; o < of.outputs; o += together) {
            const int32_t own = of.outputs % together == 0 || o + together <= of.outputs ? together : 1;
            tt_channel_end ends[2];
            for (int32_t c = 0; c < own; c++) {
                tt_lay_error8(error + c * n, g + o + c, in, of);
                ends[c] = tt_channel_end_of(
                    o + c, error + c * n, of.count * ((of.high - 1) * in.pitch + of.wide), by, through, of);
            }
            const tt_step_factor factor = sums_first ? (tt_step_factor){0, 0} : tt_step_factor_of(o, by, through);
            for (int32_t run = 0; run < runs; run++) {
                const int8_t *const from = images + tt_under_tap(run * columns, in, of);
                if (!sums_first) {
                    tt_row_ends8(w, error, from + before * in.map, here, in, (o * runs + run) * in.maps + first, ends,
                        factor, by, through, of);
                    continue;
                }
                tt_columns_sums8(sums, error, from, columns, here, in, of);
                for (int32_t c = 0; c < own; c++) {
                    tt_row_steps8(w, sums + 2 * c * tt_half_sums(of), columns == 1 ? here : weights, weights,
                        ((o + c) * runs + run) * weights + first, ends + c, by, through, of, &seen);
                }
            }
        }
    }
    tt_see_peak(seen, through);
}

/* ---- depthwise --------------------------------------------------------------------------------------------------- */

/* A channel's error in scratch, `strip` rows at a time with zeros between them, and the image under it, in phases of the
 * strides: rows of both are `pitch` apart. So a tap reads one run of the image, wherever it is. */
typedef struct tt_channel_maps {
    int32_t pitch, rows, phase_rows, phase_columns;
} tt_channel_maps;

static inline TT_ALWAYS tt_channel_maps tt_channel_maps_of(tt_conv_shape of)
{
    return (tt_channel_maps){of.wide + (of.columns - 1) * of.dilation_columns / of.right,
        of.strip + (of.rows - 1) * of.dilation_rows / of.down, of.down < of.rows || of.dilation_rows > 1 ? of.down : of.rows,
        of.right < of.columns || of.dilation_columns > 1 ? of.right : of.columns};
}

static inline TT_ALWAYS void tt_fill_rows8(int8_t *to, int32_t rows, int32_t value, int32_t pitch)
{
    if (rows > 0) {
        tt_fill8(to, value, rows * pitch);
    }
}

/* The image under rows of the error from `first` on. x: of the channel. What is no image is filled with its zero point
 * already, unless strips differ in it. */
static inline TT_ALWAYS void tt_lay_channel8(
    int8_t *to, const int8_t *x, int32_t first, tt_channel_maps maps, tt_conv_shape of)
{
    const int32_t line = of.down * of.width * of.channels, pixel = of.right * of.channels;
    for (int32_t p = 0; p < maps.phase_rows; p++) {
        const int32_t above = of.top - p - first * of.down; /* the image's row of the first one, negated */
        const int32_t from = tt_clamp((above + of.down - 1) / of.down, 0, maps.rows);
        const int32_t until = tt_clamp((of.height + above + of.down - 1) / of.down, from, maps.rows);
        for (int32_t q = 0; q < maps.phase_columns; q++, to += maps.rows * maps.pitch) {
            const int32_t ahead = of.left - q;
            const int32_t low = tt_clamp((ahead + of.right - 1) / of.right, 0, maps.pitch);
            const int32_t end = tt_clamp((of.width + ahead + of.right - 1) / of.right, low, maps.pitch);
            if (of.strip < of.high) {
                tt_fill_rows8(to, from, of.zero, maps.pitch);
                tt_fill_rows8(to + until * maps.pitch, maps.rows - until, of.zero, maps.pitch);
            }
            int8_t *row = to + from * maps.pitch + low;
            const int8_t *at = x + (from * of.down - above) * of.width * of.channels + (low * of.right - ahead) * of.channels;
            for (int32_t r = from; r < until && low < end; r++, row += maps.pitch, at += line) {
                tt_gather8(row, at, pixel, end - low);
            }
        }
    }
}

/* Adds the sums of all taps of a strip, `n` elements of the error with the zeros between its rows. */
static inline TT_ALWAYS void tt_add_taps8(
    int32_t *totals, const int8_t *error, const int8_t *image, int32_t n, tt_channel_maps maps, tt_conv_shape of)
{
    const int32_t area = of.rows * of.columns;
    for (int32_t tap = 0; tap < area; tap += 4) {
        const int8_t *at[4];
        TT_UNROLL
        for (int32_t i = 0; i < 4; i++) {
            const int32_t own = tap + i < area ? tap + i : area - 1;
            const int32_t r = own / of.columns * of.dilation_rows, s = own % of.columns * of.dilation_columns;
            const int32_t phase = r % of.down * maps.phase_columns + s % of.right;
            at[i] = image + (phase * maps.rows + r / of.down) * maps.pitch + s / of.right;
        }
        tt_runs runs = {at[0], at[1], at[2], at[3]};
        tt_sums sums = {0, 0, 0, 0};
        tt_runs8_x4(&sums, error, &runs, 128, n, false);
        const tt_i32x4 all = tt_lanes(sums.sum_0, sums.sum_1, sums.sum_2, sums.sum_3);
        tt_store32_x4(totals + tap, tt_load32_x4(totals + tap) + all);
    }
}

/* sum + products of n elements of the error, `apart` from each other, and of the image, which are `step` apart and less
 * zero; n > 0. Both distances are below 2^12. */
static inline TT_ALWAYS int32_t tt_add_apart8(
    int32_t sum, const int8_t *error, int32_t apart, const int8_t *image, int32_t step, int32_t zero, int32_t n)
{
#if TT_HAS_MVE
    const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)apart);
    const uint16x8_t others = apart == step ? places : vmulq_n_u16(tt_count_x8(), (uint16_t)step);
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.s16 q0, [%[error], %q[places]]\n\t"
                     "add %[error], %[on]\n\t"
                     "vldrb.s16 q1, [%[image], %q[others]]\n\t"
                     "add %[image], %[further]\n\t"
                     "vsub.i16 q1, q1, %[zero]\n\t"
                     "vmladava.s16 %[sum], q0, q1\n\t"
                     "letp lr, 1b"
        : [sum] "+&Te"(sum), [error] "+&r"(error), [image] "+&r"(image) /* `sum` and `zero` may both be 0 */
        : [n] "r"(n), [places] "w"(places), [others] "w"(others), [on] "rI"(8 * apart), [further] "rI"(8 * step),
        [zero] "r"(zero)
        : "lr", "q0", "q1", "memory");
#else
    for (int32_t i = 0; i < n; i++) {
        sum += error[i * apart] * (image[i * step] - zero);
    }
#endif
    return sum;
}

/* Elements of the error that a tap reads, along an axis: from `first` to `end`. ahead: by how much the tap is. */
typedef struct tt_tapped {
    int32_t first, end;
} tt_tapped;

static inline TT_ALWAYS tt_tapped tt_tapped_of(int32_t ahead, int32_t step, int32_t size, int32_t out)
{
    const int32_t first = tt_clamp((step - 1 - ahead) / step, 0, out);
    return (tt_tapped){first, tt_clamp((size - ahead + step - 1) / step, first, out)};
}

/* sum + what rows of the error give with rows of the image that are as long and not thinned, by a tap that is `ahead` by some
 * columns: all is one run, and what crosses the end of a row is taken away again. error, image: of these rows. */
static inline TT_ALWAYS int32_t tt_add_rows_apart8(
    int32_t sum, const int8_t *error, const int8_t *image, int32_t rows, int32_t ahead, tt_conv_shape of)
{
    const int32_t line = of.wide * of.outputs, size = ahead < 0 ? -ahead : ahead;
    const int32_t before = ahead < 0 ? size : 0, after = ahead < 0 ? 0 : size;
    sum = tt_add_apart8(sum, error + before * of.outputs, of.outputs, image + after * of.channels, of.channels, of.zero,
        rows * of.wide - size);
    for (int32_t i = 0; i < size && rows > 1; i++) {
        const int32_t crossing = ahead < 0 ? of.wide + i : of.wide - size + i;
        sum -= tt_add_apart8(0, error + crossing * of.outputs, line, image + (crossing + ahead) * of.channels,
            of.wide * of.channels, of.zero, rows - 1);
    }
    return sum;
}

/* The gradient of a weight of a channel that reads one of the image, where both lie. x, g: of these channels; r, s: its tap. */
static inline TT_ALWAYS int32_t tt_tap_gradient8(const int8_t *x, const int8_t *g, int32_t r, int32_t s, tt_conv_shape of)
{
    const int32_t top = r * of.dilation_rows - of.top, left = s * of.dilation_columns - of.left;
    const tt_tapped rows = tt_tapped_of(top, of.down, of.height, of.high), columns = tt_tapped_of(left, of.right, of.width, of.wide);
    const int32_t step = of.right * of.channels, line = of.down * of.width * of.channels, lines = rows.end - rows.first;
    const bool together = of.right == 1 && of.down == 1 && of.wide == of.width && 2 * (left < 0 ? -left : left) < lines;
    int32_t sum = 0;
    for (int32_t b = 0; b < of.count && lines > 0 && columns.first < columns.end; b++) {
        const int8_t *error = g + (b * of.high + rows.first) * of.wide * of.outputs;
        const int8_t *image = x + (b * of.height + top + rows.first * of.down) * of.width * of.channels;
        if (together) {
            sum = tt_add_rows_apart8(sum, error, image, lines, left, of);
            continue;
        }
        error += columns.first * of.outputs;
        image += (left + columns.first * of.right) * of.channels;
        for (int32_t i = 0; i < lines; i++, error += of.wide * of.outputs, image += line) {
            sum = tt_add_apart8(sum, error, of.outputs, image, step, of.zero, columns.end - columns.first);
        }
    }
    return sum;
}

/* All weights of a convolution of four taps or more whose channels each read one of the image: a depthwise one, or one of an
 * image of one channel. scratch: a sum of every tap, in whole vectors, and the maps of a channel. */
static inline TT_ALWAYS void tt_depthwise8_weights(
    void *w, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of, tt_moves by, tt_through through)
{
    const tt_channel_maps maps = tt_channel_maps_of(of);
    const int32_t area = of.rows * of.columns, whole = (area + 3) / 4 * 4;
    const bool kept = of.channels == 1 && of.count == 1 && of.strip == of.high; /* the image, from channel to channel */
    const int32_t all = maps.phase_rows * maps.phase_columns * maps.rows * maps.pitch;
    int32_t *const totals = (int32_t *)(void *)scratch;
    int8_t *const error = scratch + 4 * whole, *const image = error + of.strip * maps.pitch;
    tt_fill8(error, 0, of.strip * maps.pitch);
    tt_fill8(image, of.zero, all);
    for (int32_t c = 0; c < of.outputs; c++) {
        int32_t sum = 0;
        memset(totals, 0, (size_t)(4 * whole));
        for (int32_t b = 0; b < of.count; b++) {
            for (int32_t first = 0; first < of.high; first += of.strip) {
                const int32_t rows = of.high % of.strip == 0 || first + of.strip <= of.high ? of.strip : of.high - first;
                const int32_t n = (rows - 1) * maps.pitch + of.wide;
                for (int32_t r = 0; r < rows; r++) {
                    const int32_t place = ((b * of.high + first + r) * of.wide) * of.outputs + c;
                    tt_gather8(error + r * maps.pitch, g + place, of.outputs, of.wide);
                }
                if (!kept || c == 0) {
                    const int8_t *const own = x + b * of.height * of.width * of.channels + (of.channels == 1 ? 0 : c);
                    tt_lay_channel8(image, own, first, maps, of);
                }
                sum = of.zero == 0 ? 0 : tt_sum8(sum, error, n);
                tt_add_taps8(totals, error, image, n, maps, of);
            }
        }
        const tt_step_factor factor = tt_step_factor_of(c, by, through);
        for (int32_t tap = 0; tap < area; tap += 4) {
            const int32_t skip = tap + 4 <= area ? 0 : tap + 4 - area;
            const tt_i32x4 sums = tt_load32_x4(totals + tap - skip);
            tt_end_weights8(w, of.zero == 0 ? sums : sums - of.zero * sum, c,
                c * area + tap - skip, skip, factor.multiplier, factor.exponent, by, through);
        }
    }
}

/* Those of any layer: strip > 0: channel by channel. */
static inline TT_ALWAYS void tt_all_weights8(
    void *w, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of, tt_moves by, tt_through through)
{
    if (of.strip > 0) {
        tt_depthwise8_weights(w, scratch, x, g, of, by, through);
    } else {
        tt_weights8(w, scratch, x, g, of, by, through);
    }
}

/* The step of a weight that noise rounds. spare: free bits above a gradient's. */
static inline TT_ALWAYS void tt_conv8_update(int8_t *w, int8_t *scratch, const int8_t *x, const int8_t *g,
    const int32_t *multiplier, const int8_t *shift, const int32_t *rate, const int32_t *p, int32_t noise, int32_t salt,
    tt_conv_shape of, int32_t limit, int32_t spare)
{
    const tt_moves by = {TT_BY_NOISE, multiplier, shift, rate, p, NULL, noise, salt, limit, spare};
    tt_all_weights8(w, scratch, x, g, of, by, (tt_through){0, NULL, NULL, NULL, 0, NULL, 0});
}

/* The step of a weight with fractions. */
static inline TT_ALWAYS void tt_conv8_update_fine(int8_t *w, int8_t *fraction, int8_t *scratch, const int8_t *x,
    const int8_t *g, const int32_t *multiplier, const int8_t *shift, const int32_t *rate, const int32_t *p,
    tt_conv_shape of, int32_t limit, int32_t spare)
{
    const tt_moves by = {TT_BY_FRACTION, multiplier, shift, rate, p, fraction, 0, 0, limit, spare};
    tt_all_weights8(w, scratch, x, g, of, by, (tt_through){0, NULL, NULL, NULL, 0, NULL, 0});
}

/* The step of a weight with momentum, or whose squares are added up; fine: with fractions, which noise does not round. What
 * a step has not may be any pointer. */
static inline TT_ALWAYS void tt_conv8_moves(int8_t *w, int8_t *velocity, void *peak, int8_t *fraction, void *rows,
    int8_t *scratch, const int8_t *x, const int8_t *g, const int32_t *multiplier, const int8_t *shift, const int32_t *rate,
    const int32_t *p, const void *state, int32_t noise, int32_t salt, int32_t salt_of_w, tt_conv_shape of, int32_t limit,
    int32_t spare, int32_t momentum, bool fine, int32_t largest)
{
    const tt_moves by = {
        fine ? TT_BY_FRACTION : TT_BY_NOISE, multiplier, shift, rate, p, fraction, noise, salt_of_w, limit, spare};
    tt_all_weights8(w, scratch, x, g, of, by, (tt_through){momentum, velocity, (int32_t *)peak, (const int32_t *)state, salt, (int32_t *)rows, largest});
}

/* Gradients added to running sums. */
static inline TT_ALWAYS void tt_conv8_sums(
    int32_t *total, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of)
{
    const tt_moves by = {TT_SUMMED, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0};
    tt_all_weights8(total, scratch, x, g, of, by, (tt_through){0, NULL, NULL, NULL, 0, NULL, 0});
}

#endif
