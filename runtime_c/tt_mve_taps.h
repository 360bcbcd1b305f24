/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Dilated depthwise convolutions on vectors (Helium) whose interleaved maps would be small (tt_mve_windows.h). Where there
 * are no vectors, plain C gives the same bits.
 *
 * The image of one channel is copied to scratch with its border, row by row. Rows that a window reads together are
 * neighbours there: with taps two rows apart, first all even rows, then all odd ones. So all taps are within 256 bytes, and
 * a gather loads sixteen of them from the first one's address. These addresses are listed once, for all channels.
 */
#ifndef TT_MVE_TAPS_H
#define TT_MVE_TAPS_H

#include "tt_mve_windows.h"

/* Rows and columns of the output; strip: its rows whose inputs are in scratch together, the last of which may be computed
 * again. rows: of the image and its border for a strip; before, pitch: elements of the border before a row, which also ends
 * the row before it, and from row to row; size: of all. vectors: of taps, 16 each. */
typedef struct tt_copied {
    int32_t high, wide, strip, rows, before, pitch, size, vectors;
} tt_copied;

static inline TT_ALWAYS tt_copied tt_copied_of(int32_t high, int32_t wide, int32_t strip, int32_t rows, int32_t before,
    int32_t pitch, int32_t size, int32_t vectors)
{
    return (tt_copied){high, wide, strip, rows, before, pitch, size, vectors};
}

/* Lists of places in the copy. windows: rows of that of windows, 0 if the output has one row; elements: rows of that of the
 * image's elements, 0 if there is none; first: where this begins, 0 if both are one list; size: of all. */
typedef struct tt_listed {
    int32_t windows, elements, first, size;
} tt_listed;

static inline TT_ALWAYS tt_listed tt_listed_of(int32_t windows, int32_t elements, int32_t first, int32_t size)
{
    return (tt_listed){windows, elements, first, size};
}

/* ---- the lists, and the copy ------------------------------------------------------------------------------------- */

/* to[i] = first + i * step for i < n, n > 0. */
static inline TT_ALWAYS void tt_list_run16(uint16_t *to, int32_t first, int32_t step, int32_t n)
{
#if TT_HAS_MVE
    int32_t lane = 0;
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vidup.u16 q0, %[lane], #1\n\t"
                     "vmul.i16 q0, q0, %[step]\n\t"
                     "vadd.i16 q0, q0, %[first]\n\t"
                     "vstrh.16 q0, [%[to]], #16\n\t"
                     "letp lr, 1b"
        : [to] "+&r"(to), [lane] "+&Te"(lane) /* `first` may be 0 too, and is read after `lane` has moved on */
        : [n] "r"(n), [first] "r"(first), [step] "r"(step)
        : "lr", "q0", "memory");
#else
    for (int32_t i = 0; i < n; i++) {
        to[i] = (uint16_t)(first + i * step);
    }
#endif
}

/* to[places[i]] = from[i * pitch] for i < n, n > 0; pitch < 2^12. */
static inline TT_ALWAYS void tt_place8(int8_t *to, const uint16_t *places, const int8_t *from, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    const uint16x8_t from_places = vmulq_n_u16(tt_count_x8(), (uint16_t)pitch);
    __asm__ volatile("dlstp.16 lr, %[n]\n"
                     "1:\n\t"
                     "vldrb.u16 q0, [%[from], %q[from_places]]\n\t"
                     "add %[from], %[step]\n\t"
                     "vldrh.u16 q1, [%[places]], #16\n\t"
                     "vstrb.16 q0, [%[to], q1]\n\t"
                     "letp lr, 1b"
        : [from] "+&r"(from), [places] "+&r"(places)
        : [n] "r"(n), [to] "r"(to), [step] "r"(8 * pitch), [from_places] "w"(from_places)
        : "lr", "q0", "q1", "memory");
#else
    for (int32_t i = 0; i < n; i++) {
        to[places[i]] = from[i * pitch];
    }
#endif
}

/* Where in the copy a row of the image and its border begins: rows that are `apart` are neighbours. */
static inline TT_ALWAYS int32_t tt_copied_row(int32_t row, int32_t apart, tt_copied cut)
{
    const int32_t map = row % apart, rest = cut.rows % apart;
    return (map * (cut.rows / apart) + (map < rest ? map : rest) + row / apart) * cut.pitch;
}

/* Lists places in the copy: of `columns` from each of `n` rows, `down` rows and `right` columns apart. */
static inline TT_ALWAYS void tt_list_rows16(
    uint16_t *list, int32_t n, int32_t columns, int32_t down, int32_t right, int32_t apart, tt_copied cut)
{
    for (int32_t row = 0; row < n; row++) {
        tt_list_run16(list + row * columns, tt_copied_row(row * down, apart, cut), right, columns);
    }
}

/* Fills rows `from` to `to` of a strip with border. */
static inline TT_ALWAYS void tt_clear_copied(
    int8_t *copy, int32_t from, int32_t to, tt_image image, int32_t apart, tt_copied cut)
{
    for (int32_t row = from; row < to; row++) {
        tt_fill8(copy + tt_copied_row(row, apart, cut) + cut.before, image.border, image.width);
    }
}

/* Copies the rows of a strip, of which the first is row `first` of the image. Border columns are there from the start, and
 * border rows if there is one strip. elements: the list, if there is one. */
static inline TT_ALWAYS void tt_copy_rows8(int8_t *copy, const int8_t *x, int32_t first, const uint16_t *elements,
    tt_image image, int32_t apart, tt_copied cut, bool listed)
{
    const int32_t low = first < 0 ? -first : 0, line = image.width * image.channels;
    const int32_t high = tt_clamp(image.height - first, low, cut.rows);
    const int8_t *from = x + (first + low) * line;
    if (cut.strip < cut.high) {
        tt_clear_copied(copy, 0, low < cut.rows ? low : cut.rows, image, apart, cut);
        tt_clear_copied(copy, high, cut.rows, image, apart, cut);
    }
    if (listed) {
        if (high > low) {
            tt_place8(copy + cut.before, elements + low * image.width, from, image.channels, (high - low) * image.width);
        }
        return;
    }
    for (int32_t row = low; row < high; row++, from += line) {
        tt_gather8(copy + tt_copied_row(row, apart, cut) + cut.before, from, image.channels, image.width);
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Sixteen taps: where they are, from the first one on, and their weights. */
typedef struct tt_taps16 {
#if TT_HAS_MVE
    uint8x16_t places;
    int8x16_t weights;
#else
    uint8_t places[16];
    int8_t weights[16];
#endif
} tt_taps16;

#define TT_MOST_TAPS16 4

/* The first sixteen of n > 0 taps; after the last one, weights are 0. */
static inline TT_ALWAYS tt_taps16 tt_taps16_of(const uint8_t *places, const int8_t *w, int32_t n)
{
    tt_taps16 taps;
#if TT_HAS_MVE
    taps.places = vldrbq_u8(places);
    taps.weights = vldrbq_z_s8(w, vctp8q((uint32_t)n));
#else
    for (int32_t i = 0; i < 16; i++) {
        taps.places[i] = places[i];
        taps.weights[i] = (int8_t)(i < n ? w[i] : 0);
    }
#endif
    return taps;
}

/* sum + their weights. */
static inline TT_ALWAYS int32_t tt_taps16_weight(int32_t sum, tt_taps16 taps)
{
#if TT_HAS_MVE
    return vaddvaq_s8(sum, taps.weights);
#else
    for (int32_t i = 0; i < 16; i++) {
        sum += taps.weights[i];
    }
    return sum;
#endif
}

#if TT_HAS_MVE
/* sum (+)= weights of sixteen taps times what they read. For the intrinsics, GCC 12 copies the address. */
#define TT_TAPS16(with, constraint)                                                                                    \
    __asm__ volatile("vldrb.u8 %q[read], [%[at], %q[places]]\n\t" with " %[sum], %q[read], %q[weights]"                \
        : [sum] constraint(sum), [read] "=&w"(read)                                                                    \
        : [at] "r"(at), [places] "w"(taps[v].places), [weights] "w"(taps[v].weights)                                   \
        : "memory")
#endif

/* The sum of a window's taps: of 16 from 16 * first on, up to `vectors` of them, a constant. */
static inline TT_ALWAYS int32_t tt_taps16_sum(
    int32_t sum, const int8_t *at, const tt_taps16 *taps, int32_t first, int32_t vectors)
{
#if TT_HAS_MVE
    int8x16_t read;
#pragma GCC unroll 4
    for (int32_t v = first; v < vectors; v++) {
        if (v == 0) {
            TT_TAPS16("vmladav.s8", "=&Te");
        } else {
            TT_TAPS16("vmladava.s8", "+Te");
        }
    }
#else
    for (int32_t i = 16 * first; i < 16 * vectors; i++) {
        sum += at[taps[i / 16].places[i % 16]] * taps[i / 16].weights[i % 16];
    }
#endif
    return sum;
}

/* Up to so many vectors of taps stay in registers, and windows are summed one after the other. */
#define TT_KEPT_TAPS16 2

/* Sums of the windows whose first taps are at four addresses. */
static inline TT_ALWAYS tt_i32x4 tt_taps16_x4(const int8_t *at_0, const int8_t *at_1, const int8_t *at_2, const int8_t *at_3,
    const tt_taps16 *taps, int32_t vectors)
{
    const int32_t together = vectors <= TT_KEPT_TAPS16 ? vectors : 1;
    int32_t sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
#pragma GCC unroll 4
    for (int32_t v = 0; v < vectors; v += together) {
        sum_0 = tt_taps16_sum(sum_0, at_0, taps, v, v + together);
        sum_1 = tt_taps16_sum(sum_1, at_1, taps, v, v + together);
        sum_2 = tt_taps16_sum(sum_2, at_2, taps, v, v + together);
        sum_3 = tt_taps16_sum(sum_3, at_3, taps, v, v + together);
    }
    return tt_lanes(sum_0, sum_1, sum_2, sum_3);
}

/* Sums of the next four windows, which are in *list or, if step > 0, so much after each other from *copy on. */
static inline TT_ALWAYS tt_i32x4 tt_next_windows_x4(
    const int8_t **copy, const uint16_t **list, int32_t step, const tt_taps16 *taps, int32_t vectors)
{
    const int8_t *const at = *copy;
    if (step > 0) {
        *copy += 4 * step;
        return tt_taps16_x4(at, at + step, at + 2 * step, at + 3 * step, taps, vectors);
    }
    uint32_t first, last; /* two places each, which are one instruction to load and one each to add */
    memcpy(&first, *list, 4);
    memcpy(&last, *list + 2, 4);
    *list += 4;
    return tt_taps16_x4(
        at + (first & 0xffffu), at + (first >> 16), at + (last & 0xffffu), at + (last >> 16), taps, vectors);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* Where in scratch the places of taps, the lists and the copy are. */
typedef struct tt_gathered {
    uint8_t *places;
    uint16_t *list;
    int8_t *copy;
} tt_gathered;

static inline TT_ALWAYS tt_gathered tt_gathered_in(int8_t *scratch, tt_copied cut, tt_listed of)
{
    uint16_t *const list = (uint16_t *)(void *)(scratch + 16 * cut.vectors);
    return (tt_gathered){(uint8_t *)scratch, list, (int8_t *)(list + of.size)};
}

/* Prepares it for all channels. window: of the kernel, and the strides; down, right: distances of taps; back: whether they run
 * backwards. */
static inline TT_ALWAYS void tt_begin_gathered(tt_gathered in, tt_image image, tt_taps window, int32_t down, int32_t right,
    bool back, tt_copied cut, tt_listed of)
{
    const int32_t area = window.rows * window.columns;
    memset(in.places, 0, (size_t)(16 * cut.vectors));
    for (int32_t i = 0; i < area; i++) {
        in.places[back ? area - 1 - i : i] = (uint8_t)(i / window.columns * cut.pitch + i % window.columns * right);
    }
    tt_list_rows16(in.list, of.windows, cut.wide, window.down, window.right, down, cut);
    if (of.first > 0) {
        tt_list_rows16(in.list + of.first, of.elements, image.width, 1, 1, down, cut);
    }
    for (int32_t i = of.windows * cut.wide; i > 0 && i < 4; i++) {
        in.list[i] = in.list[0]; /* of a sum that is not stored */
    }
    tt_fill8(in.copy, image.border, cut.size);
}

/* Reads the taps of a channel. Returns the sum of their weights. */
static inline TT_ALWAYS int32_t tt_read_taps16(
    tt_taps16 *taps, const uint8_t *places, const int8_t *w, int32_t area, int32_t vectors)
{
    int32_t sum = 0;
#pragma GCC unroll 4
    for (int32_t v = 0; v < vectors; v++) {
        taps[v] = tt_taps16_of(places + 16 * v, w + 16 * v, area - 16 * v);
        sum = tt_taps16_weight(sum, taps[v]);
    }
    return sum;
}

/* Where the last four of a strip's outputs begin if they are not whole fours, 0 if they are less than four; else their
 * number. */
static inline TT_ALWAYS int32_t tt_last_four(int32_t pixels)
{
    return pixels % 4 == 0 ? pixels : pixels > 4 ? pixels - 4 : 0;
}

/* What the ends of a channel's sums read; correction: what sums of the zero point need. */
typedef struct tt_gathered_ends {
    int32_t correction;
    tt_i32x4 bias, factor, by;
} tt_gathered_ends;

/* Four outputs at a time, n > 0; windows: see tt_next_windows_x4; pixels: how many of four are stored, a constant. */
static inline TT_ALWAYS void tt_gathered8(int8_t *to, const int8_t *copy, const uint16_t *list, int32_t step, int32_t n,
    int32_t pixels, const tt_taps16 *taps, int32_t vectors, int32_t border, int32_t channels, tt_gathered_ends ends,
    tt_end8 end)
{
    TT_UNSEEN(copy); /* or GCC adds its distance from the scratch to each place */
    do {
        const tt_i32x4 sums = tt_next_windows_x4(&copy, &list, step, taps, vectors);
        const tt_i32x4 sum = border == 0 ? sums : tt_plus_x4(sums, ends.correction);
        tt_scatter8_few(to, channels, tt_ended8_x4(sum, ends.bias, ends.factor, ends.by, end), pixels);
        to += 4 * channels;
    } while (--n > 0);
}

/* A depthwise QConv with dilated windows. scratch: see tt_gathered; window, down, right: see tt_begin_gathered. */
static inline TT_ALWAYS void tt_depthwise8_gathered(int8_t *y, int8_t *scratch, const int8_t *x, const int8_t *w,
    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, tt_image image, tt_taps window, int32_t down,
    int32_t right, tt_copied cut, tt_listed of, tt_end8 end)
{
    const int32_t area = window.rows * window.columns, n = image.channels;
    const int32_t pixels = cut.strip * cut.wide, last = tt_last_four(pixels);
    const int32_t step = of.windows > 0 ? 0 : window.right;
    const tt_gathered in = tt_gathered_in(scratch, cut, of);
    tt_taps16 taps[TT_MOST_TAPS16];
    tt_begin_gathered(in, image, window, down, right, false, cut, of);
    for (int32_t turn = 0; turn < image.count * n; turn++) {
        const int32_t c = image.count == 1 ? turn : turn % n, map = image.count == 1 ? 0 : turn / n;
        const int32_t sum = tt_read_taps16(taps, in.places, w + c * area, area, cut.vectors);
        const tt_gathered_ends ends = {
            -image.border * sum, tt_all(bias[c]), tt_all(multiplier[c]), tt_all(tt_clamp(shift[c], -31, 31))};
        const int8_t *const own = x + map * image.height * image.width * n + c;
        for (int32_t i = 0; i < cut.high; i += cut.strip) {
            const int32_t first = i + cut.strip <= cut.high ? i : cut.high - cut.strip;
            const int8_t *const at = in.copy + cut.before - image.left;
            int8_t *const to = y + (map * cut.high + first) * cut.wide * n + c;
            tt_copy_rows8(in.copy, own, first * window.down - image.top, in.list + of.first, image, down, cut, of.elements > 0);
            for (int32_t done = 0; done < pixels; done = done < last ? last : pixels) {
                const int32_t fours = done < last ? pixels / 4 : 1;
                tt_gathered8(to + done * n, at + done * step, in.list + done, step, fours, pixels, taps, cut.vectors,
                    image.border, n, ends, end);
            }
        }
    }
}

#endif
