/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Data gradients of depthwise convolutions on vectors (Helium). Where there are none, plain C gives the same bits. */
#ifndef TT_MVE_ERRORS_H
#define TT_MVE_ERRORS_H

#include "tt_errors.h"
#include "tt_mve_taps.h"

/* -1 where the errors from element `at` on, `step` apart, are kept; bits: of whole bytes of channels; bit: at % 8. */
static inline TT_ALWAYS tt_i32x4 tt_kept_x4(const void *mask, int32_t at, int32_t bit, int32_t step, tt_keep keep)
{
    if (keep.kind == TT_KEPT_BY_VALUE) {
#if TT_HAS_MVE
        const uint32x4_t places = vmulq_n_u32(tt_count_x4(), (uint32_t)step);
        return tt_passes_x4(vldrbq_gather_offset_s32((const int8_t *)mask + at, places), keep.low, keep.high);
#else
        const int8_t *const from = (const int8_t *)mask + at;
        return tt_passes_x4(tt_lanes(from[0], from[step], from[2 * step], from[3 * step]), keep.low, keep.high);
#endif
    }
#if TT_HAS_MVE
    const uint32x4_t places = vmulq_n_u32(tt_count_x4(), (uint32_t)step / 8u);
    const uint32x4_t bytes = vldrbq_gather_offset_u32((const uint8_t *)mask + at / 8, places);
    return vshrq_n_s32(vshlq_r_s32(vreinterpretq_s32_u32(bytes), 31 - bit), 31);
#else
    const uint8_t *const from = (const uint8_t *)mask + at / 8;
    const int32_t by = step / 8;
    return tt_lanes(-(from[0] >> bit & 1), -(from[by] >> bit & 1), -(from[2 * by] >> bit & 1), -(from[3 * by] >> bit & 1));
#endif
}

/* Where the tap of every place of every phase is in a channel's weights: taps run backwards. */
static inline TT_ALWAYS void tt_place_backwards(
    uint8_t *places, tt_image layer, tt_taps window, tt_spread spread, tt_bands cut)
{
    const int32_t down = spread.down / spread.rows, right = spread.right / spread.columns;
    memset(places, TT_NO_TAP, (size_t)(16 * cut.vectors * tt_phases_of(cut)));
    for (int32_t phase = 0; phase < tt_phases_of(cut); phase++, places += 16 * cut.vectors) {
        const int32_t p = (phase / cut.phase_columns + layer.top) % cut.phase_rows;
        const int32_t q = (phase % cut.phase_columns + layer.left) % cut.phase_columns;
        for (int32_t r = 0; r < window.rows; r++) {
            for (int32_t s = 0; s < window.columns; s++) {
                const int32_t row = (window.rows - 1 - r) * cut.phase_rows + p;
                const int32_t column = (window.columns - 1 - s) * cut.phase_columns + q;
                if (row < window.kernel_rows && column < window.kernel_columns) {
                    places[s * right * cut.deep + r * down] = (uint8_t)(row * window.kernel_columns + column);
                }
            }
        }
    }
}

/* What the ends of an error's sums read of a channel: its factor, shift (within +-31) and mask; peak: of all errors. */
typedef struct tt_error_ends {
    tt_i32x4 factor, by;
    const void *mask;
    tt_keep keep;
    int32_t *peak;
} tt_error_ends;

/* The errors of a phase, or of all interleaved maps of columns, in a strip. start: the first element; rows: how many rows
 * there are from it on; column: of the phase. */
static inline TT_ALWAYS void tt_depthwise8_error_strip(int8_t *y, const int8_t *bands, const int8_t *taps, int32_t start,
    int32_t rows, int32_t column, tt_spread spread, tt_bands cut, int32_t channels, tt_error_ends ends)
{
    const int32_t on = cut.phase_columns * spread.columns, line = cut.phase_rows * spread.rows * cut.columns;
    const bool maps = tt_lanes_are_maps(spread, cut);
    const tt_four four = maps ? tt_four_maps(cut, 1) : tt_four_of(cut, 1, 1);
    const int32_t lane = maps ? channels : four.columns == 1 ? line * channels : on * channels;
    for (int32_t i = 0; i < tt_bands_in(cut) * cut.band; i += four.rows) {
        const int32_t band = i / cut.band, row = tt_start_of(band, cut) + i % cut.band;
        const int8_t *from = bands + band * spread.columns * cut.across * cut.deep + i % cut.band;
        if (row >= rows) {
            continue; /* the phase has a row less */
        }
        for (int32_t map = 0; map < spread.columns; map += maps ? 4 : 1, from += (maps ? 4 : 1) * cut.across * cut.deep) {
            const int32_t width = (cut.columns - column - map + on - 1) / on;
            const int8_t *at = from;
            int32_t place = start + (row * line + map) * channels;
            for (int32_t x = 0; x < width; x += four.columns) {
                const int32_t back = tt_back_of(x, width, four);
                at -= back * four.step;
                place -= back * on * channels;
                const tt_i32x4 sums = tt_windows_x4(at, taps, four.step, cut.vectors);
                tt_i32x4 error = tt_requantise_x4(sums, ends.factor, ends.by);
                if (ends.keep.kind != TT_ALL_KEPT) {
                    error &= tt_kept_x4(ends.mask, place, start % 8, lane, ends.keep);
                }
                tt_scatter8_x4(y + place, lane, tt_usual_error_x4(error, ends.peak));
                at += four.on;
                place += four.columns * on * channels;
            }
        }
    }
}

/* Rows of a depthwise QConvGradInput, with strides or dilations. layer: the incoming error and the padding of the layer;
 * exponent: of the incoming error less that of what comes out; mask: see tt_keep; row_at: see tt_lay_rows8, or NULL. */
static inline TT_ALWAYS void tt_depthwise8_error_rows(int8_t *y, int8_t *scratch, int32_t *peak, const int8_t *g,
    const int8_t *w, const int32_t *multiplier, const int8_t *shift, const void *mask, const int32_t *row_at,
    int32_t exponent, tt_image layer, tt_taps window, tt_spread spread, tt_bands cut, tt_keep keep)
{
    int32_t largest = *peak;
    const int32_t lanes = 16 * cut.vectors, kernel = window.kernel_rows * window.kernel_columns;
    const int32_t row = spread.rows * layer.width * layer.channels, pixel = spread.columns * layer.channels;
    uint16_t *const elements = (uint16_t *)(void *)(scratch + lanes * (1 + tt_phases_of(cut)));
    int8_t *const taps = scratch, *const bands = (int8_t *)elements + tt_noted_bytes(cut);
    uint8_t *const places = (uint8_t *)scratch + lanes;
    tt_image image = layer;
    image.top = (window.rows - 1) * spread.down - layer.top / cut.phase_rows;
    image.left = (window.columns - 1) * spread.right - layer.left / cut.phase_columns;
    tt_place_backwards(places, layer, window, spread, cut);
    tt_note_places(elements, row, pixel, cut);
    memset(bands, 0, (size_t)(tt_bands_in(cut) * spread.columns * cut.across * cut.deep + 16));
    for (int32_t c = 0; c < layer.count * layer.channels; c++) {
        const int32_t channel = layer.count == 1 ? c : c % layer.channels, n = layer.count == 1 ? 0 : c / layer.channels;
        const int8_t *const own = g + n * layer.height * layer.width * layer.channels + channel;
        const tt_error_ends ends = {tt_all(multiplier[channel]),
            tt_all(tt_clamp(shift[channel] + exponent, -31, 31)), mask, keep, &largest};
        for (int32_t map = 0; map < spread.rows; map++) {
            const int32_t height = spread.rows == 1 ? cut.height : (cut.rows - map + spread.rows - 1) / spread.rows;
            for (int32_t i = 0; i < height; i += cut.strip) {
                const int32_t first = i + cut.strip <= height ? i : height - cut.strip;
                if (row_at == NULL) {
                    tt_lay_bands8(bands, own, first, map, image, 1, spread, elements, row, pixel, cut);
                } else {
                    tt_lay_rows8(bands, own, row_at + first, image, cut);
                }
                for (int32_t phase = 0; phase < tt_phases_of(cut); phase++) {
                    const int32_t p = phase / cut.phase_columns, q = phase % cut.phase_columns;
                    const int32_t down = (p + layer.top % cut.phase_rows) / cut.phase_rows;
                    const int32_t ahead = down + (q + layer.left % cut.phase_columns) / cut.phase_columns * cut.deep;
                    const int32_t line = (first * spread.rows + map) * cut.phase_rows + p;
                    const int32_t rows = (cut.rows - line + cut.phase_rows * spread.rows - 1) / (cut.phase_rows * spread.rows);
                    (void)tt_lay_taps8(taps, places + phase * lanes, w + channel * kernel, cut.vectors);
                    tt_depthwise8_error_strip(y, bands + ahead, taps,
                        ((n * cut.rows + line) * cut.columns + q) * layer.channels + channel, rows, q, spread, cut,
                        layer.channels, ends);
                }
            }
        }
    }
    *peak = largest;
}

/* A depthwise QConvGradInput. */
static inline TT_ALWAYS void tt_depthwise8_error(int8_t *y, int8_t *scratch, int32_t *peak, const int8_t *g,
    const int8_t *w, const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_image layer,
    tt_taps window, tt_spread spread, tt_bands cut, tt_keep keep)
{
    tt_depthwise8_error_rows(
        y, scratch, peak, g, w, multiplier, shift, mask, NULL, exponent, layer, window, spread, cut, keep);
}

/* Four errors at a time, n > 0, from element `place` on; windows: see tt_next_windows_x4. */
static inline TT_ALWAYS void tt_gathered8_error(int8_t *y, int32_t place, const int8_t *copy, const uint16_t *list,
    int32_t step, int32_t n, const tt_taps16 *taps, int32_t vectors, int32_t channels, tt_error_ends ends)
{
    const int32_t bit = place % 8;
    TT_UNSEEN(copy); /* as in tt_gathered8 */
    do {
        const tt_i32x4 sums = tt_next_windows_x4(&copy, &list, step, taps, vectors);
        tt_i32x4 error = tt_requantise_x4(sums, ends.factor, ends.by);
        if (ends.keep.kind != TT_ALL_KEPT) {
            error &= tt_kept_x4(ends.mask, place, bit, channels, ends.keep);
        }
        tt_scatter8_x4(y + place, channels, tt_usual_error_x4(error, ends.peak));
        place += 4 * channels;
    } while (--n > 0);
}

/* A depthwise QConvGradInput with dilated windows, in strips of at least four pixels. layer, exponent, mask: see
 * tt_depthwise8_error_rows; the others: see tt_depthwise8_gathered. */
static inline TT_ALWAYS void tt_depthwise8_gathered_error(int8_t *y, int8_t *scratch, int32_t *peak, const int8_t *g,
    const int8_t *w, const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_image layer,
    tt_taps window, int32_t down, int32_t right, tt_copied cut, tt_listed of, tt_keep keep)
{
    int32_t largest = *peak;
    const int32_t area = window.rows * window.columns, n = layer.channels;
    const int32_t pixels = cut.strip * cut.wide, last = tt_last_four(pixels), step = of.windows > 0 ? 0 : 1;
    const tt_gathered in = tt_gathered_in(scratch, cut, of);
    tt_taps16 taps[TT_MOST_TAPS16];
    tt_image image = layer;
    image.top = (window.rows - 1) * down - layer.top;
    image.left = (window.columns - 1) * right - layer.left;
    tt_begin_gathered(in, image, window, down, right, true, cut, of);
    for (int32_t turn = 0; turn < image.count * n; turn++) {
        const int32_t c = image.count == 1 ? turn : turn % n, map = image.count == 1 ? 0 : turn / n;
        (void)tt_read_taps16(taps, in.places, w + c * area, area, cut.vectors);
        const tt_error_ends ends = {
            tt_all(multiplier[c]), tt_all(tt_clamp(shift[c] + exponent, -31, 31)), mask, keep, &largest};
        const int8_t *const own = g + map * image.height * image.width * n + c;
        for (int32_t i = 0; i < cut.high; i += cut.strip) {
            const int32_t first = i + cut.strip <= cut.high ? i : cut.high - cut.strip;
            const int8_t *const at = in.copy + cut.before - image.left;
            const int32_t place = (map * cut.high + first) * cut.wide * n + c;
            tt_copy_rows8(in.copy, own, first - image.top, in.list + of.first, image, down, cut, of.elements > 0);
            for (int32_t done = 0; done < pixels; done = done < last ? last : pixels) {
                const int32_t fours = done < last ? pixels / 4 : 1;
                tt_gathered8_error(y, place + done * n, at + done * step, in.list + done, step, fours, taps, cut.vectors, n, ends);
            }
        }
    }
    *peak = largest;
}

/* tt_depthwise_error, four neighbouring channels at a time. */
static inline TT_ALWAYS void tt_depthwise_error_x4(int8_t *y, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    const int32_t n = of.channels, kernel = of.rows * of.columns;
    const int32_t whole = keep.kind == TT_KEPT_BY_BITS && n % 4 > 0 ? 0 : n / 4 * 4; /* four bits are in one byte */
    if (of.down > 1 || of.right > 1) {
        memset(y, 0, (size_t)(of.count * of.height * of.width * n));
    }
    for (int32_t row = 0; row < of.count * of.height; row++) {
        const int8_t *const map = g + row / of.height * of.high * of.wide * n;
        const tt_reach rows = tt_reach_of(row % of.height, of.top, of.rows, of.down, of.dilation_rows);
        const tt_inside down = tt_inside_of(rows, 0, of.high);
        for (int32_t phase = 0; phase < of.right && phase < of.width; phase++) {
            const tt_reach columns = tt_reach_of(phase, of.left, of.columns, of.right, of.dilation_columns);
            if (rows.taps == 0 || columns.taps == 0) {
                continue;
            }
            for (int32_t x = phase, steps = 0; x < of.width; x += of.right, steps++) {
                const tt_under under = tt_under_of(rows, down, columns, steps, of);
                for (int32_t c = 0; c < whole; c += 4) {
                    const int32_t place = (row * of.width + x) * n + c;
                    const int8_t *error = map + under.error + c, *weight = w + c * kernel + under.tap;
                    tt_i32x4 sums = tt_all(0);
                    for (int32_t i = 0; i < down.taps; i++) {
                        for (int32_t j = 0; j < under.across; j++) {
                            sums += tt_load8_x4(error + j * columns.step * n) *
                                tt_gather8_x4(weight - j * columns.apart, kernel);
                        }
                        error += rows.step * of.wide * n;
                        weight -= rows.apart * of.columns;
                    }
                    const tt_i32x4 by = tt_clamp_x4(tt_load8_x4(shift + c) + tt_all(exponent), -31, 31);
                    tt_i32x4 found = tt_requantise_x4(sums, tt_load32_x4(multiplier + c), by);
                    if (keep.kind == TT_KEPT_BY_VALUE) {
                        found &= tt_passes_x4(tt_load8_x4((const int8_t *)mask + place), keep.low, keep.high);
                    } else if (keep.kind == TT_KEPT_BY_BITS) {
                        found &= tt_bits_x4(((const uint8_t *)mask)[place / 8] >> place % 8);
                    }
                    tt_scatter8_x4(y + place, 1, tt_usual_error_x4(found, peak));
                }
            }
        }
    }
    for (int32_t c = whole; c < n; c++) {
        tt_channels_error(y, peak, g, w, multiplier, shift, mask, exponent, of, keep, c, NULL, 1);
    }
}

#endif
