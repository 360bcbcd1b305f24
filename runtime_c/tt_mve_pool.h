/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The largest int8 under windows, of sixteen channels at a time (Helium). Where there are no vectors, plain C gives the same
 * bits. */
#ifndef TT_MVE_POOL_H
#define TT_MVE_POOL_H

#include "tt_mve_windows.h"

/* to[c] = the largest of from[r * pitch + s * channels + c] for r < rows, s < columns; -128 if there is none. */
static inline TT_ALWAYS void tt_largest8(
    int8_t *to, const int8_t *from, int32_t rows, int32_t columns, int32_t pitch, int32_t channels)
{
#if TT_HAS_MVE
    for (int32_t c = 0; c < channels; c += 16) {
        const mve_pred16_t there = vctp8q((uint32_t)(channels - c));
        int8x16_t largest = vdupq_n_s8(-128);
        for (int32_t r = 0; r < rows; r++) {
            const int8_t *at = from + r * pitch + c;
            for (int32_t s = 0; s < columns; s++, at += channels) {
                largest = vmaxq_s8(largest, vldrbq_z_s8(at, there));
            }
        }
        vstrbq_p_s8(to + c, largest, there);
    }
#else
    for (int32_t c = 0; c < channels; c++) {
        int8_t largest = -128;
        for (int32_t r = 0; r < rows; r++) {
            for (int32_t s = 0; s < columns; s++) {
                const int8_t value = from[r * pitch + s * channels + c];
                largest = value > largest ? value : largest;
            }
        }
        to[c] = largest;
    }
#endif
}

/* How many of `taps` lie inside of `extent` if the first one is at `first`; *before: how many lie in front of it. */
static inline TT_ALWAYS int32_t tt_taps_inside(int32_t first, int32_t taps, int32_t extent, int32_t *before)
{
    *before = first < 0 ? -first : 0;
    const int32_t end = extent - first < taps ? extent - first : taps;
    return end > *before ? end - *before : 0;
}

/* A MaxPool without dilations; height, width: of the output. y may lie over x as its operator says. */
static inline TT_ALWAYS void tt_max_pool8(
    int8_t *y, const int8_t *x, tt_image image, tt_taps window, int32_t height, int32_t width)
{
    const int32_t pitch = image.width * image.channels;
    for (int32_t n = 0; n < image.count; n++, x += image.height * pitch) {
        for (int32_t row = 0; row < height; row++) {
            int32_t above;
            const int32_t top = row * window.down - image.top;
            const int32_t rows = tt_taps_inside(top, window.rows, image.height, &above);
            for (int32_t column = 0; column < width; column++, y += image.channels) {
                int32_t before;
                const int32_t left = column * window.right - image.left;
                const int32_t columns = tt_taps_inside(left, window.columns, image.width, &before);
                const bool some = rows > 0 && columns > 0;
                const int8_t *from = some ? x + (top + above) * pitch + (left + before) * image.channels : x;
                tt_largest8(y, from, some ? rows : 0, columns, pitch, image.channels);
            }
        }
    }
}

#endif
