/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Depthwise convolutions on vectors (Helium), and what their data gradients (tt_mve_errors.h) are made of too. Where there
 * are no vectors, plain C gives the same bits.
 *
 * The image of one channel lies in scratch in bands of a few output rows, column by column and with its border, so that
 * all that a pixel's taps read is one run: of a 3x3 window in a band of six rows, elements 0, 1, 2, 6, 7, 8, 12, 13 and 14.
 * The taps lie in the same way with zeros between, and a sum is one or a few instructions of 16 products each. What a sum
 * reads behind a band are numbers of the scratch, times zero.
 */
#ifndef TT_MVE_WINDOWS_H
#define TT_MVE_WINDOWS_H

#include "tt_mve.h"

/* An image that taps read: how many, their size, the border in front of it, and what the border is filled with. */
typedef struct tt_image {
    int32_t count, height, width, channels, top, left, border;
} tt_image;

/* Taps of a phase, how far windows are apart, and of a layer's kernel that lies in memory. */
typedef struct tt_taps {
    int32_t rows, columns, down, right, kernel_rows, kernel_columns;
} tt_taps;

/* How the output is cut. rows, columns: of all of it; height, width: of the largest of the interleaved phases; strip: output
 * rows whose bands lie in scratch together; band: output rows in one (the last one of a strip ends with it, and may repeat
 * rows); deep, across: image rows and columns in one; vectors: of taps, 16 each; places: of how many of its columns it is
 * written down where they lie in the image, 0 for none. */
typedef struct tt_bands {
    int32_t rows, columns, height, width, strip, band, deep, across, vectors, phase_rows, phase_columns, places;
} tt_bands;

static inline TT_ALWAYS tt_image tt_image_of(int32_t count, int32_t height, int32_t width, int32_t channels, int32_t top,
    int32_t left, int32_t border)
{
    return (tt_image){count, height, width, channels, top, left, border};
}

static inline TT_ALWAYS tt_taps tt_taps_of(
    int32_t rows, int32_t columns, int32_t down, int32_t right, int32_t kernel_rows, int32_t kernel_columns)
{
    return (tt_taps){rows, columns, down, right, kernel_rows, kernel_columns};
}

static inline TT_ALWAYS tt_bands tt_bands_of(int32_t rows, int32_t columns, int32_t height, int32_t width, int32_t strip,
    int32_t band, int32_t deep, int32_t across, int32_t vectors, int32_t phase_rows, int32_t phase_columns, int32_t places)
{
    return (tt_bands){rows, columns, height, width, strip, band, deep, across, vectors, phase_rows, phase_columns, places};
}

/* Dilated windows. down, right: distances of taps; rows, columns: divisors of them. The output of `high` rows and `wide`
 * columns is interleaved from `rows` maps of rows, each from `columns` maps of columns, the first ones a row or column
 * larger if they are not equal. What a map reads of the image is interleaved too, and its taps are down / rows apart. A
 * band has all maps of columns, one after the other. */
typedef struct tt_spread {
    int32_t down, right, rows, columns, high, wide;
} tt_spread;

static inline TT_ALWAYS tt_spread tt_spread_of(
    int32_t down, int32_t right, int32_t rows, int32_t columns, int32_t high, int32_t wide)
{
    return (tt_spread){down, right, rows, columns, high, wide};
}

#define TT_NO_SPREAD tt_spread_of(1, 1, 1, 1, 0, 0)

static inline TT_ALWAYS int32_t tt_bands_in(tt_bands cut)
{
    return (cut.strip + cut.band - 1) / cut.band;
}

/* The row of its strip that a band begins with. */
static inline TT_ALWAYS int32_t tt_start_of(int32_t band, tt_bands cut)
{
    const int32_t start = band * cut.band;
    return cut.strip % cut.band == 0 || start <= cut.strip - cut.band ? start : cut.strip - cut.band;
}

/* Scratch: the taps of a phase, the places where they are found in a channel's weights, those of a band's elements in the
 * image, and the bands of a strip. */
#define TT_NO_TAP 255
static inline TT_ALWAYS int32_t tt_phases_of(tt_bands cut)
{
    return cut.phase_rows * cut.phase_columns;
}

/* ---- what lies in scratch ---------------------------------------------------------------------------------------- */

/* to[i * to_pitch] = from[i * from_pitch] for i < n, n > 0; pitches < 2^12. */
static inline TT_ALWAYS void tt_spread8(int8_t *to, int32_t to_pitch, const int8_t *from, int32_t from_pitch, int32_t n)
{
#if TT_HAS_MVE
    if (n == 4) {
        const uint32x4_t lanes = tt_count_x4();
        const uint32x4_t four = vldrbq_gather_offset_u32((const uint8_t *)from, vmulq_n_u32(lanes, (uint32_t)from_pitch));
        vstrbq_scatter_offset_u32((uint8_t *)to, vmulq_n_u32(lanes, (uint32_t)to_pitch), four);
        return;
    }
    const uint16x8_t lanes = tt_count_x8();
    const uint16x8_t from_places = vmulq_n_u16(lanes, (uint16_t)from_pitch);
    const uint16x8_t to_places = vmulq_n_u16(lanes, (uint16_t)to_pitch);
    if (n == 8) {
        vstrbq_scatter_offset_u16(
            (uint8_t *)to, to_places, vldrbq_gather_offset_u16((const uint8_t *)from, from_places));
        return;
    }
    if (n < 8) {
        const mve_pred16_t few = vctp16q((uint32_t)n);
        __asm__ volatile("vpstt\n\t"
                         "vldrbt.u16 q0, [%[from], %q[from_places]]\n\t"
                         "vstrbt.16 q0, [%[to], %q[to_places]]"
            :
            : [to] "r"(to), [from] "r"(from), [few] "Up"(few), [from_places] "w"(from_places),
            [to_places] "w"(to_places)
            : "q0", "memory");
        return;
    }
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.u16 q0, [%[from], %q[from_places]]\n\t"
                     "add %[from], %[from_step]\n\t"
                     "vstrb.16 q0, [%[to], %q[to_places]]\n\t"
                     "add %[to], %[to_step]\n\t"
                     "letp lr, 1b"
        : [to] "+r"(to), [from] "+r"(from)
        : [n] "r"(n), [from_step] "r"(8 * from_pitch), [to_step] "r"(8 * to_pitch),
        [from_places] "w"(from_places), [to_places] "w"(to_places)
        : "lr", "q0", "memory");
#else
    for (int32_t i = 0; i < n; i++) {
        to[i * to_pitch] = from[i * from_pitch];
    }
#endif
}

/* to[i] = w[places[i]], or 0 where there is no place. Returns the sum of them. */
static inline TT_ALWAYS int32_t tt_lay_taps8(int8_t *to, const uint8_t *places, const int8_t *w, int32_t vectors)
{
    int32_t sum = 0;
#if TT_HAS_MVE
    if (__builtin_constant_p(vectors)) {
#pragma GCC unroll 8
        for (int32_t i = 0; i < 16 * vectors; i += 16) {
            __asm__ volatile("vldrb.8 q0, [%[places], %[i]]\n\t"
                             "vcmp.i8 ne, q0, %[none]\n\t"
                             "vpst\n\t"
                             "vldrbt.u8 q1, [%[w], q0]\n\t"
                             "vstrb.8 q1, [%[to], %[i]]\n\t"
                             "vaddva.s8 %[sum], q1"
                : [sum] "+Te"(sum)
                : [places] "r"(places), [w] "r"(w), [to] "r"(to), [i] "i"(i), [none] "r"(TT_NO_TAP)
                : "q0", "q1", "p0", "memory");
        }
        return sum;
    }
#endif
    for (int32_t i = 0; i < 16 * vectors; i++) {
        to[i] = (int8_t)(places[i] == TT_NO_TAP ? 0 : w[places[i]]);
        sum += to[i];
    }
    return sum;
}

/* The image elements of the first cut.places columns of a band, counted from the first one's. row, pixel: elements from one
 * to the next in the image. */
static inline TT_ALWAYS void tt_note_places(uint16_t *places, int32_t row, int32_t pixel, tt_bands cut)
{
    for (int32_t column = 0; column < cut.places; column++) {
        for (int32_t r = 0; r < cut.deep; r++) {
            *places++ = (uint16_t)(column * pixel + r * row);
        }
    }
}

/* Bytes of them. */
static inline TT_ALWAYS int32_t tt_noted_bytes(tt_bands cut)
{
    return (2 * cut.places * cut.deep + 15) / 16 * 16;
}

/* to[i] = from[places[i] - least] for i < n where this is at least 0 and below `most`, else the border; whole: it is
 * everywhere. */
static inline TT_ALWAYS void tt_lay_places8(int8_t *to, const int8_t *from, const uint16_t *places, int32_t n, int32_t least,
    int32_t most, bool whole, int32_t border)
{
#if TT_HAS_MVE
    if (whole) {
        __asm__ volatile("dlstp.16 lr, %[n]\n"
                         "1:\n\t"
                         "vldrh.u16 q0, [%[places]], #16\n\t"
                         "vldrb.u16 q1, [%[from], q0]\n\t"
                         "vstrb.16 q1, [%[to]], #8\n\t"
                         "letp lr, 1b"
            : [to] "+l"(to), [places] "+r"(places)
            : [n] "r"(n), [from] "r"(from)
            : "lr", "q0", "q1", "memory");
        return;
    }
    __asm__ volatile("vdup.16 q2, %[border]\n\t"
                     "vdup.16 q3, %[most]\n\t"
                     "dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrh.u16 q0, [%[places]], #16\n\t"
                     "vsub.i16 q0, q0, %[least]\n\t"
                     "vpt.u16 hi, q3, q0\n\t"
                     "vldrbt.u16 q1, [%[from], q0]\n\t"
                     "vpsel q1, q1, q2\n\t"
                     "vstrb.16 q1, [%[to]], #8\n\t"
                     "letp lr, 1b"
        : [to] "+l"(to), [places] "+r"(places)
        : [n] "r"(n), [from] "r"(from), [least] "r"(least), [most] "r"(most), [border] "r"(border)
        : "lr", "q0", "q1", "q2", "q3", "p0", "memory");
#else
    for (int32_t i = 0; i < n; i++) {
        const int32_t place = places[i] - least;
        to[i] = (int8_t)border;
        if (whole || (place >= 0 && place < most)) {
            to[i] = from[place];
        }
    }
#endif
}

/* n columns of a band, as many at a time as have places: rows low to high, of which the first is at `from`. */
static inline TT_ALWAYS void tt_lay_columns8(int8_t *to, const int8_t *from, const uint16_t *places, int32_t n, int32_t low,
    int32_t high, bool whole, int32_t border, int32_t row, int32_t pixel, tt_bands cut)
{
    for (int32_t column = 0; column < n; column += cut.places) {
        const int32_t few = n - column < cut.places ? n - column : cut.places;
        tt_lay_places8(to, from, places, few * cut.deep, low * row, (high - low) * row, whole, border);
        to += cut.places * cut.deep;
        from += cut.places * pixel;
    }
}

/* Whether n columns of a band are laid one by one, and not row by row: if that takes fewer instructions. */
static inline TT_ALWAYS bool tt_lays_columns(int32_t n, tt_bands cut)
{
    const int32_t row = n > 8 ? 11 + 5 * ((n + 7) / 8) : 11;
    return (14 + 4 * n) * ((cut.deep + 7) / 8) < row * cut.deep;
}

/* `rows` elements of each of n columns, `deep` from each other; row, pixel: elements from one to the next in the image. All
 * distances are below 2^12. */
static inline TT_ALWAYS void tt_lay_each_column8(
    int8_t *to, const int8_t *from, int32_t rows, int32_t n, int32_t row, int32_t pixel, int32_t deep)
{
#if TT_HAS_MVE
    if (__builtin_constant_p(deep)) {
        const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)row);
        const uint16x8_t next = vaddq_n_u16(places, (uint16_t)pixel);
        for (int32_t r = 0; r < rows; r += 8, to += 8, from += 8 * row) {
            const uint32_t few = rows - r < 8 ? (1u << 2 * (rows - r)) - 1u : 0xffffu; /* two bits a lane */
            const int8_t *at = from - 2 * pixel;
            int8_t *place = to;
            if (n % 2 == 1) {
                __asm__ volatile("vmsr p0, %[few]\n\tvpstt\n\t"
                                 "vldrbt.u16 q0, [%[from], %q[places]]\n\tvstrbt.16 q0, [%[to]], %[deep]"
                    : [to] "+l"(place)
                    : [from] "r"(from), [few] "r"(few), [places] "w"(places), [deep] "i"(deep)
                    : "q0", "p0", "memory");
                at += pixel;
            }
            if (n > 1) {
                __asm__ volatile("vmsr p0, %[few]\n\tdls lr, %[pairs]\n"
                                 "1:\n\tadd %[at], %[on]\n\tvpstttt\n\t"
                                 "vldrbt.u16 q0, [%[at], %q[places]]\n\tvstrbt.16 q0, [%[to]], %[deep]\n\t"
                                 "vldrbt.u16 q0, [%[at], %q[next]]\n\tvstrbt.16 q0, [%[to]], %[deep]\n\t"
                                 "le lr, 1b"
                    : [to] "+l"(place), [at] "+r"(at)
                    : [pairs] "r"(n / 2), [few] "r"(few), [on] "rI"(2 * pixel), [places] "w"(places), [next] "w"(next),
                    [deep] "i"(deep)
                    : "lr", "q0", "p0", "memory");
            }
        }
        return;
    }
#endif
    for (int32_t i = 0; i < n * rows; i++) {
        to[i / rows * deep + i % rows] = from[i / rows * pixel + i % rows * row];
    }
}

/* Rows low to high of a band's columns, of which the first row is at `from`. edges: whether its other rows are laid too, as
 * border; whole: there are none. */
static inline TT_ALWAYS void tt_lay_band8(int8_t *band, const int8_t *from, tt_image image, tt_spread spread,
    const uint16_t *places, int32_t low, int32_t high, bool edges, bool whole, int32_t row, int32_t pixel, tt_bands cut)
{
    const int8_t border = (int8_t)image.border;
    for (int32_t map = 0; map < spread.columns; map++, band += cut.across * cut.deep) {
        /* how many columns are border, and the first one of the image that the map has */
        const int32_t left = (image.left - map + spread.columns - 1) / spread.columns;
        const int32_t column = map - image.left + left * spread.columns;
        const int32_t room = cut.across - left, own = (image.width - column + spread.columns - 1) / spread.columns;
        const int32_t n = room < own ? room : own;
        int8_t *const to = band + left * cut.deep;
        const int8_t *at = from + column * image.channels;
        if (spread.columns > 1 && n <= 0) {
            continue;
        }
        if (cut.places > 0) {
            tt_lay_columns8(to, at, places, n, low, high, whole, image.border, row, pixel, cut);
            continue;
        }
        if (edges) {
            for (int32_t r = 0; r < low; r++) {
                tt_spread8(to + r, cut.deep, &border, 0, n);
            }
            for (int32_t r = high; r < cut.deep; r++) {
                tt_spread8(to + r, cut.deep, &border, 0, n);
            }
        }
        if (tt_lays_columns(n, cut)) {
            tt_lay_each_column8(to + low, at, high - low, n, row, pixel, cut.deep);
            continue;
        }
        for (int32_t r = low; r < high; r++, at += row) {
            tt_spread8(to + r, cut.deep, at, pixel, n);
        }
    }
}

/* A band of a strip, whose first output row (of a phase, or of map `map`) is `first`: those of its rows that the image has,
 * and the others where the strips differ in them. Border columns lie there from the start. places: see tt_note_places. */
static inline TT_ALWAYS void tt_lay_one_band8(int8_t *bands, int32_t band, const int8_t *x, int32_t first, int32_t map,
    tt_image image, int32_t down, tt_spread spread, const uint16_t *places, int32_t row, int32_t pixel, tt_bands cut)
{
    const bool alike = image.top % spread.rows == 0 && image.height % spread.rows == 0; /* the borders of all maps */
    const bool edges = cut.strip < cut.height || !alike;
    const int32_t line = image.width * image.channels;
    int8_t *const to = bands + band * spread.columns * cut.across * cut.deep;
    /* the image row that the band begins with */
    const int32_t start = (first + tt_start_of(band, cut)) * down * spread.rows + map - image.top;
    if (cut.places > 0 && start >= 0 && start + (cut.deep - 1) * spread.rows < image.height) {
        tt_lay_band8(to, x + start * line, image, spread, places, 0, cut.deep, edges, true, row, pixel, cut);
        return;
    }
    const int32_t before = start < 0 ? (spread.rows - 1 - start) / spread.rows : 0;
    const int32_t behind = image.height - start > 0 ? (image.height - start + spread.rows - 1) / spread.rows : 0;
    const int32_t low = before < cut.deep ? before : cut.deep, high = tt_clamp(behind, low, cut.deep);
    const int8_t *const from = x + (start + low * spread.rows) * line;
    tt_lay_band8(to, from, image, spread, places, low, high, edges, false, row, pixel, cut);
}

/* Whether each band has code of its own, in which its rows are constants: if they are few, and some have border. */
static inline TT_ALWAYS bool tt_lays_constants(tt_image image, tt_bands cut)
{
    const bool edges = tt_phases_of(cut) == 1 && (cut.places == 0 || image.top > 0);
    return tt_bands_in(cut) * ((cut.deep + 7) / 8) <= 6 && cut.strip == cut.height && edges;
}

/* The bands of a strip: see tt_lay_one_band8. */
static inline TT_ALWAYS void tt_lay_bands8(int8_t *bands, const int8_t *x, int32_t first, int32_t map, tt_image image,
    int32_t down, tt_spread spread, const uint16_t *places, int32_t row, int32_t pixel, tt_bands cut)
{
    if (tt_lays_constants(image, cut)) {
        TT_UNROLL
        for (int32_t band = 0; band < tt_bands_in(cut); band++) {
            tt_lay_one_band8(bands, band, x, first, map, image, down, spread, places, row, pixel, cut);
        }
        return;
    }
    for (int32_t band = 0; band < tt_bands_in(cut); band++) {
        tt_lay_one_band8(bands, band, x, first, map, image, down, spread, places, row, pixel, cut);
    }
}

/* The same of a few rows, each a strip. row_at: where rows of the image with its border begin in x, or a negative number. */
static inline TT_ALWAYS void tt_lay_rows8(
    int8_t *band, const int8_t *x, const int32_t *row_at, tt_image image, tt_bands cut)
{
    const int8_t border = (int8_t)image.border;
    const int32_t room = cut.across - image.left, n = room < image.width ? room : image.width;
    for (int32_t r = 0; r < cut.deep; r++) {
        const bool there = row_at[r] >= 0;
        int8_t *const to = band + image.left * cut.deep + r;
        tt_spread8(to, cut.deep, there ? x + row_at[r] : &border, there ? image.channels : 0, n);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

#if TT_HAS_MVE
#define TT_WINDOW_DOT(with, sum, q) "vldrb.8 " q ", [%[at], %[at" #sum "]]\n\t" with " %[s" #sum "], q0, " q "\n\t"
#define TT_WINDOW_DOTS(with) \
    "vldrb.8 q0, [%[taps], %[at_taps]]\n\t" TT_WINDOW_DOT(with, 0, "q1") TT_WINDOW_DOT(with, 1, "q2") \
        TT_WINDOW_DOT(with, 2, "q1") TT_WINDOW_DOT(with, 3, "q2")
#define TT_WINDOW_AT(v, step) \
    [at_taps] "i"(v), [at0] "i"(v), [at1] "i"((v) + (step)), [at2] "i"((v) + 2 * (step)), [at3] "i"((v) + 3 * (step))
#endif

/* Sums of four windows, `step` behind each other; vectors and step are constants with which no offset is above 127. -Og does
 * not find all of them. */
static inline TT_ALWAYS tt_i32x4 tt_windows_x4(const int8_t *at, const int8_t *taps, int32_t step, int32_t vectors)
{
#if TT_HAS_MVE
    if (__builtin_constant_p(step) && __builtin_constant_p(vectors)) {
        int32_t sum_0, sum_1, sum_2, sum_3;
        __asm__ volatile(TT_WINDOW_DOTS("vmladav.s8")
            : TT_SUMS_OF(sum_, "=&Te")
            : [at] "r"(at), [taps] "r"(taps), TT_WINDOW_AT(0, step)
            : "q0", "q1", "q2", "memory");
#pragma GCC unroll 8
        for (int32_t v = 16; v < 16 * vectors; v += 16) {
            __asm__ volatile(TT_WINDOW_DOTS("vmladava.s8")
                : TT_SUMS_OF(sum_, "+Te")
                : [at] "r"(at), [taps] "r"(taps), TT_WINDOW_AT(v, step)
                : "q0", "q1", "q2", "memory");
        }
        return tt_lanes(sum_0, sum_1, sum_2, sum_3);
    }
#endif
    int32_t sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
    for (int32_t v = 0; v < 16 * vectors; v++) {
        sum_0 += at[v] * taps[v];
        sum_1 += at[step + v] * taps[v];
        sum_2 += at[2 * step + v] * taps[v];
        sum_3 += at[3 * step + v] * taps[v];
    }
    return tt_lanes(sum_0, sum_1, sum_2, sum_3);
}

/* Where four lanes go: to pixels of a row, or of as many rows of a band where these are whole vectors. */
typedef struct tt_four {
    int32_t rows, columns; /* of output pixels */
    int32_t step, on; /* elements of a band to the next lane, to the next four */
    int32_t pixels; /* from lane to lane of a map with `width` pixels in a row */
} tt_four;

static inline TT_ALWAYS tt_four tt_four_of(tt_bands cut, int32_t down, int32_t right)
{
    if (cut.band % 4 == 0) {
        return (tt_four){4, 1, down, right * cut.deep, cut.phase_rows * cut.columns};
    }
    return (tt_four){1, 4, right * cut.deep, 4 * right * cut.deep, cut.phase_columns};
}

/* Whether four lanes go to pixels of as many interleaved maps, which are neighbours in the output: if these come in fours and
 * are equal, and the offsets to them are not too large. */
static inline TT_ALWAYS bool tt_lanes_are_maps(tt_spread spread, tt_bands cut)
{
    const bool fours = spread.columns % 4 == 0 && spread.wide % spread.columns == 0 && cut.band % 4 != 0;
    return fours && 16 * (cut.vectors - 1) + 3 * cut.across * cut.deep <= 127;
}

/* Their steps. right: distance of windows. */
static inline TT_ALWAYS tt_four tt_four_maps(tt_bands cut, int32_t right)
{
    return (tt_four){1, 1, cut.across * cut.deep, right * cut.deep, 0};
}

/* By how many pixels the four lanes at `column` would leave a row of `width`: they then begin so much earlier, and the pixels
 * before them are computed again. A row of less than four pixels is computed once, and its last lanes are not stored. */
static inline TT_ALWAYS int32_t tt_back_of(int32_t column, int32_t width, tt_four four)
{
    const bool whole = width % four.columns == 0 || width < four.columns;
    return whole || column + four.columns <= width ? 0 : column + four.columns - width;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* What the ends of a channel's sums read; correction: what sums of the zero point need. */
typedef struct tt_ends_x4 {
    tt_i32x4 correction, bias, factor, by;
} tt_ends_x4;

/* Output rows of a strip, of map `map` of rows; y: the first element of the first row. */
static inline TT_ALWAYS void tt_depthwise8_strip(int8_t *y, const int8_t *bands, const int8_t *taps, int32_t border,
    tt_taps window, tt_spread spread, tt_bands cut, int32_t channels, tt_ends_x4 ends, tt_end8 end)
{
    const int32_t on = spread.columns * channels, row = spread.rows * spread.wide * channels;
    const bool maps = tt_lanes_are_maps(spread, cut);
    const tt_four four = maps ? tt_four_maps(cut, window.right) : tt_four_of(cut, window.down, window.right);
    const int32_t lane = maps ? channels : four.columns == 1 ? row : on, together = maps ? 4 : 1;
    for (int32_t i = 0; i < tt_bands_in(cut) * cut.band; i += four.rows) {
        const int32_t band = i / cut.band, at_row = tt_start_of(band, cut) + i % cut.band;
        const int8_t *line = bands + band * spread.columns * cut.across * cut.deep + i % cut.band * window.down;
        for (int32_t map = 0; map < spread.columns; map += together, line += together * cut.across * cut.deep) {
            const int32_t width = (spread.wide - map + spread.columns - 1) / spread.columns;
            const int8_t *at = line;
            int8_t *to = y + at_row * row + map * channels;
            for (int32_t column = 0; column < width; column += four.columns) {
                const int32_t back = tt_back_of(column, width, four);
                at -= back * four.step;
                to -= back * on;
                tt_i32x4 sums = tt_windows_x4(at, taps, four.step, cut.vectors);
                sums = border == 0 ? sums : sums + ends.correction;
                const tt_i32x4 ended = tt_ended8_x4(sums, ends.bias, ends.factor, ends.by, end);
                tt_scatter8_few(to, lane, ended, four.columns == 1 ? 4 : width);
                at += four.on;
                to += four.columns * on;
            }
        }
    }
}

/* Rows of a depthwise QConv. scratch: see above; row_at: see tt_lay_rows8, or NULL; then there is no dilation. Strips of
 * interleaved rows may overlap. */
static inline TT_ALWAYS void tt_depthwise8_rows(int8_t *y, int8_t *scratch, const int8_t *x, const int8_t *w,
    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, const int32_t *row_at, tt_image image,
    tt_taps window, tt_spread spread, tt_bands cut, tt_end8 end)
{
    const int32_t lanes = 16 * cut.vectors, area = window.kernel_rows * window.kernel_columns;
    const int32_t line = spread.wide * image.channels, pixel = spread.columns * image.channels;
    const int32_t row = spread.rows * image.width * image.channels;
    uint16_t *const elements = (uint16_t *)(void *)(scratch + 2 * lanes);
    int8_t *const taps = scratch, *const bands = scratch + 2 * lanes + tt_noted_bytes(cut);
    uint8_t *const places = (uint8_t *)scratch + lanes;
    memset(places, TT_NO_TAP, (size_t)lanes);
    tt_note_places(elements, row, pixel, cut);
    for (int32_t i = 0; i < area; i++) {
        const int32_t column = i % window.kernel_columns * (spread.right / spread.columns);
        places[column * cut.deep + i / window.kernel_columns * (spread.down / spread.rows)] = (uint8_t)i;
    }
    memset(bands, image.border, (size_t)(tt_bands_in(cut) * spread.columns * cut.across * cut.deep + 16));
    for (int32_t c = 0; c < image.count * image.channels; c++) {
        const int32_t channel = image.count == 1 ? c : c % image.channels, n = image.count == 1 ? 0 : c / image.channels;
        const int8_t *const own = x + n * image.height * image.width * image.channels + channel;
        int8_t *const out = y + n * (row_at == NULL ? spread.high : cut.height) * line + channel;
        const int32_t sum = tt_lay_taps8(taps, places, w + channel * area, cut.vectors);
        const tt_ends_x4 ends = {tt_all(-image.border * sum), tt_all(bias[channel]), tt_all(multiplier[channel]),
            tt_all(tt_clamp(shift[channel], -31, 31))};
        for (int32_t map = 0; map < spread.rows; map++) {
            const int32_t height = spread.rows == 1 ? cut.height : (spread.high - map + spread.rows - 1) / spread.rows;
            for (int32_t i = 0; i < height; i += cut.strip) {
                const bool whole = spread.rows == 1 && cut.height % cut.strip == 0;
                const int32_t first = whole || i + cut.strip <= height ? i : height - cut.strip;
                if (row_at == NULL) {
                    tt_lay_bands8(bands, own, first, map, image, window.down, spread, elements, row, pixel, cut);
                } else {
                    tt_lay_rows8(bands, own, row_at + first * window.down, image, cut);
                }
                int8_t *const to = out + (map + first * spread.rows) * line;
                tt_depthwise8_strip(to, bands, taps, image.border, window, spread, cut, image.channels, ends, end);
            }
        }
    }
}

/* A depthwise QConv. */
static inline TT_ALWAYS void tt_depthwise8(int8_t *y, int8_t *scratch, const int8_t *x, const int8_t *w,
    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, tt_image image, tt_taps window, tt_spread spread,
    tt_bands cut, tt_end8 end)
{
    tt_depthwise8_rows(y, scratch, x, w, bias, multiplier, shift, NULL, image, window, spread, cut, end);
}

#endif
