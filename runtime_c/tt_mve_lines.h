/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Data gradients of convolutions of few or odd channels on vectors (Helium). Where there are no vectors, plain C gives the
 * same bits.
 *
 * A line is the error under a row of pixels, column by column: of each column the rows of taps, one after the other. So the
 * window of a pixel is one run of elements, and that of the next pixel begins one column later. Four pixels of a channel are
 * computed at a time: neighbours, or the last ones of four rows.
 */
#ifndef TT_MVE_LINES_H
#define TT_MVE_LINES_H

#include "tt_mve_gradients.h"

/* The lines of a phase of the image. column: elements of a column; window: under all taps, in whole vectors; pixels: of a
 * row, last: see tt_last_columns; pitch: elements from line to line; apart: from the error of a pixel to that of the next.
 * one: there is a single phase. Else GCC at -O3 takes numbers for constants in parts of a function that it then joins. */
typedef struct tt_lines {
    int32_t column, window, pixels, last, pitch, apart;
    bool one;
} tt_lines;

/* Runs of a block: `count` of n elements in each of `rows`, as many at least as 1. They are `apart` from each other and rows
 * `line`; their copies are `on` apart, and those of rows n. */
typedef struct tt_block {
    int32_t rows, line, count, apart, on, n;
} tt_block;

#if TT_HAS_MVE
#define TT_COPY_RUN "vldrbt.8 q0, [%[at]], %[apart]\n\tvstrbt.8 q0, [%[place]], %[on]\n\t"
#define TT_COPY_PAIR "vpstttt\n\t" TT_COPY_RUN TT_COPY_RUN
#define TT_COPY_LOOP(turns, runs) "dls lr, %[" turns "]\n1:\n\t" runs "le lr, 1b\n\t"
#define TT_COPY_PAIRS TT_COPY_LOOP("turns", TT_COPY_PAIR)
#define TT_COPY_ROWS(runs)                                                                                             \
    __asm__ volatile("vmsr p0, %[few]\n2:\n\tmov %[at], %[from]\n\tmov %[place], %[to]\n\t" runs                     \
                     "add %[from], %[line]\n\tadd %[to], %[next]\n\tsubs %[rows], #1\n\tbne 2b"                       \
                     : [to] "+&r"(to), [from] "+&r"(from), [rows] "+&r"(by.rows), [at] "=&r"(at), [place] "=&r"(place)  \
                     : [turns] "r"(turns), [few] "r"(few), [line] "r"(by.line), [next] "i"(next), [on] "i"(on), \
                     [apart] "i"(apart)                                                                                \
                     : "lr", "q0", "p0", "cc", "memory")

/* A block's first 16 elements of each run, or less; on, apart, next: constants of the block, on and apart at most 127. */
static inline TT_ALWAYS void tt_copy_near_block8(
    int8_t *to, const int8_t *from, tt_block by, uint32_t few, int32_t on, int32_t apart, int32_t next)
{
    const int8_t *at;
    int8_t *place;
    const bool fours = TT_CONSTANT(by.count) && by.count % 4 == 0;
    const int32_t turns = fours ? by.count / 4 : by.count / 2;
    if (fours) {
        TT_COPY_ROWS(TT_COPY_LOOP("turns", TT_COPY_PAIR TT_COPY_PAIR));
    } else if (by.count == 1) {
        TT_COPY_ROWS("vpstt\n\t" TT_COPY_RUN);
    } else if (by.count % 2 == 1) {
        TT_COPY_ROWS("vpstt\n\t" TT_COPY_RUN TT_COPY_PAIRS);
    } else {
        TT_COPY_ROWS(TT_COPY_PAIRS);
    }
}

static inline TT_ALWAYS void tt_copy_far_block8(int8_t *to, const int8_t *from, tt_block by, uint32_t few)
{
    for (int32_t r = 0; r < by.rows; r++, to += by.n, from += by.line) {
        int8_t *place = to;
        const int8_t *at = from;
        __asm__ volatile("vmsr p0, %[few]\n\tdls lr, %[count]\n"
                         "1:\n\tvpstt\n\tvldrbt.8 q0, [%[at]]\n\tvstrbt.8 q0, [%[place]]\n\t"
                         "add %[at], %[apart]\n\tadd %[place], %[on]\n\tle lr, 1b"
                         : [place] "+r"(place), [at] "+r"(at)
                         : [count] "r"(by.count), [few] "r"(few), [on] "r"(by.on), [apart] "r"(by.apart)
                         : "lr", "q0", "p0", "memory");
    }
}
#endif

/* Copies a block. one: see tt_lines. */
static inline TT_ALWAYS void tt_copy_block8(int8_t *to, const int8_t *from, tt_block by, bool one)
{
#if TT_HAS_MVE
    for (int32_t i = 0; i < by.n; i += 16) {
        /* lanes, loaded by the assembly: GCC 12 may find no register on its way to p0 */
        const uint32_t few = by.n - i < 16 ? (1u << (by.n - i)) - 1u : 0xffffu;
        if (one && TT_CONSTANT(by.on) && TT_CONSTANT(by.apart) && by.on <= 127 && by.apart <= 127) {
            tt_copy_near_block8(to + i, from + i, by, few, by.on, by.apart, by.n);
        } else {
            tt_copy_far_block8(to + i, from + i, by, few);
        }
    }
#else
    for (int32_t i = 0; i < by.rows * by.count; i++) {
        const int32_t r = i / by.count, run = i % by.count;
        memcpy(to + r * by.n + run * by.on, from + r * by.line + run * by.apart, (size_t)by.n);
    }
    (void)one;
#endif
}

/* Lays the line of row y of a phase, from its pixel `start` on. g: the error of the image. What is beside the error in all
 * rows is 0 already. */
static inline TT_ALWAYS void tt_lay_line8(int8_t *line, const int8_t *g, int32_t y, int32_t start, tt_lines lines,
    tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const tt_inside down = tt_inside_of(rows, y, of.high);
    tt_reach under = columns;
    under.taps += lines.pixels - 1;
    const tt_inside across = tt_inside_of(under, start, of.wide);
    if (down.taps < rows.taps) {
        tt_fill8(line, 0, under.taps * lines.column);
    }
    if (down.taps <= 0 || across.taps <= 0) {
        return;
    }
    const int32_t row = rows.from + y + down.first * rows.step;
    const int32_t column = columns.from + start + across.first * columns.step;
    const int8_t *const from = g + (row * of.wide + column) * of.outputs;
    int8_t *const to = line + across.first * lines.column + down.first * of.outputs;
    if (rows.taps == 1 && columns.step == 1) {
        tt_copy8(to, from, across.taps * of.outputs);
        return;
    }
    const tt_block block = {down.taps, rows.step * of.wide * of.outputs, across.taps, columns.step * of.outputs,
        lines.column, of.outputs};
    tt_copy_block8(to, from, block, lines.one);
}

/* tt_gather8, short for at most eight elements; n is a constant. */
static inline TT_ALWAYS void tt_gather_few8(int8_t *to, const int8_t *from, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    if (n <= 8) {
        const uint16x8_t places = vmulq_n_u16(tt_count_x8(), (uint16_t)pitch);
        const mve_pred16_t few = vctp16q((uint32_t)n);
        __asm__ volatile("vpstt\n\tvldrbt.u16 q0, [%[from], %q[places]]\n\tvstrbt.16 q0, [%[to]]"
                         :
                         : [to] "l"(to), [from] "r"(from), [places] "w"(places), [few] "Up"(few)
                         : "q0", "memory");
        return;
    }
#endif
    tt_gather8(to, from, pitch, n);
}

/* The turned weights of a phase for `channels` channels of the image, in the order of a line: `window` of each, zeros at the
 * end. w: those of the first channel. */
static inline TT_ALWAYS void tt_lay_turned_columns8(
    int8_t *to, const int8_t *w, int32_t channels, int32_t window, tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t pitch = of.rows * of.columns * of.channels;
    tt_fill8(to, 0, channels * window);
    for (int32_t s = columns.taps - 1; s >= 0; s--) {
        for (int32_t r = rows.taps - 1; r >= 0; r--, to += of.outputs) {
            const int32_t tap = (rows.tap + r * rows.apart) * of.columns + columns.tap + s * columns.apart;
            for (int32_t c = 0; c < channels; c++) {
                tt_gather_few8(to + c * window, w + tap * of.channels + c, pitch, of.outputs);
            }
        }
    }
}

#if TT_HAS_MVE
typedef uint32x4_t tt_places;
#else
typedef int32_t tt_places;
#endif

/* Where four errors are that are `apart` from each other. In a register: GCC would compute it for each four. */
static inline TT_ALWAYS tt_places tt_places_of(int32_t apart)
{
#if TT_HAS_MVE
    uint32x4_t places = vmulq_n_u32(tt_count_x4(), (uint32_t)apart);
    __asm__("" : "+w"(places));
    return places;
#else
    return apart;
#endif
}

#if TT_HAS_MVE
/* Sets errors to 0 where the value compares so with a number. */
#define TT_DROP_WHERE(compare, errors, value, number)                                                                  \
    __asm__("vpt.s32 " compare ", %q[v], %[n]\n\tveort %q[e], %q[e], %q[e]"                                            \
            : [e] "+w"(errors)                                                                                         \
            : [v] "w"(value), [n] "r"(number)                                                                          \
            : "p0")
#endif

/* Four errors from element `at` on, `apart` from each other; 0 where the mask does not keep them. */
static inline TT_ALWAYS tt_i32x4 tt_kept_errors_x4(
    tt_i32x4 errors, const void *mask, int32_t at, int32_t apart, tt_places places, tt_keep keep)
{
#if TT_HAS_MVE
    if (keep.kind == TT_KEPT_BY_VALUE) {
        const tt_i32x4 values = vldrbq_gather_offset_s32((const int8_t *)mask + at, places);
        if (keep.low >= -128) {
            TT_DROP_WHERE("le", errors, values, keep.low);
        }
        if (keep.high <= 127) {
            TT_DROP_WHERE("ge", errors, values, keep.high);
        }
        return errors;
    }
    if (apart % 8 > 0) {
        const uint32x4_t bits = vaddq_n_u32(places, (uint32_t)at);
        const uint32x4_t bytes = vldrbq_gather_offset_u32((const uint8_t *)mask, vshrq_n_u32(bits, 3));
        const uint32x4_t to_sign = vorrq_n_u32(vbicq_n_u32(vmvnq_u32(bits), 224u), 24u); /* 31 - bits % 8 */
        const uint32x4_t signs = vshlq_u32(bytes, vreinterpretq_s32_u32(to_sign));
        TT_DROP_WHERE("ge", errors, signs, 0);
        return errors;
    }
#else
    (void)places;
    if (keep.kind == TT_KEPT_BY_BITS && apart % 8 > 0) {
        return errors & tt_keep_x4(tt_is_kept(mask, at, keep), tt_is_kept(mask, at + apart, keep),
            tt_is_kept(mask, at + 2 * apart, keep), tt_is_kept(mask, at + 3 * apart, keep));
    }
#endif
    return errors & tt_kept_x4(mask, at, at % 8, apart, keep);
}

/* The weights of a channel and the windows of four pixels: the first and the third are pointed to. */
typedef struct tt_four_windows {
    const int8_t *weights, *at_0, *at_2;
} tt_four_windows;

#if TT_HAS_MVE
/* The pointers move on by `step` and `on`. */
#define TT_LINE_DOTS(with, kind, step, on)                                                                             \
    __asm__ volatile(TT_DOTS("vldrb.8", with, "[%[a]], %[next]", "[%[b]], %[next4]", "[%[b], %[at1]]",                 \
                         "[%[b2]], %[next4]", "[%[b2], %[at1]]")                                                       \
                     : TT_SUMS_OF(s.sum_, kind), [a] "+r"(of->weights), [b] "+r"(of->at_0), [b2] "+r"(of->at_2)        \
                     : [at1] "i"(column), [next] "i"(step), [next4] "i"(on)                                            \
                     : "q0", "q1", "q2", "memory")
#endif

/* Sums of products in four windows, each `column` after the one before. Then the next four windows are pointed to.
 * one: see tt_lines. */
static inline TT_ALWAYS tt_sums tt_four_windows8(tt_four_windows *of, int32_t column, int32_t window, bool one)
{
    tt_sums s = {0, 0, 0, 0};
#if TT_HAS_MVE
    const bool constants = one && TT_CONSTANT(window) && TT_CONSTANT(column);
    if (constants && window <= 80 && column <= 127 && 4 * column + 16 - window <= 127) {
        if (window == 16) {
            TT_LINE_DOTS("vmladav.s8", "=&Te", 0, 4 * column);
            return s;
        }
        TT_LINE_DOTS("vmladav.s8", "=&Te", 16, 16);
        if (window > 32) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        if (window > 48) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        if (window > 64) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        TT_LINE_DOTS("vmladava.s8", "+Te", 16 - window, 4 * column + 16 - window);
        return s;
    }
#endif
    tt_runs windows = tt_runs_of(of->at_0, column);
    tt_runs8_x4(&s, of->weights, &windows, column, window, true);
    of->at_0 += 4 * column;
    of->at_2 += 4 * column;
    (void)one;
    return s;
}

static inline TT_ALWAYS void tt_store_errors8(int8_t *y, tt_places places, tt_i32x4 errors)
{
#if TT_HAS_MVE
    vstrbq_scatter_offset_s32(y, places, errors);
#else
    tt_scatter8_x4(y, places, errors);
#endif
}

/* Pixels whose windows are `column` apart, and their errors `apart`: of a row, or of a column. window, one: see tt_lines. */
typedef struct tt_pixels {
    int32_t count, column, window, apart;
    bool one;
} tt_pixels;

/* Errors of pixels in a channel, four at least, from y on, which is `place` of all. The last four end with the last pixel.
 * windows: of the first four; lowers: the factor is below 1/2, a constant. */
static inline TT_ALWAYS void tt_pixels8_errors(int8_t *y, tt_four_windows windows, int32_t place, tt_places places,
    tt_pixels of, bool lowers, tt_error_ends ends)
{
    const int32_t back = (4 - of.count % 4) % 4, apart = of.apart;
    int32_t window = of.window;
    if (!lowers || !of.one) {
        TT_UNSEEN(window); /* a loop, which is less code */
    }
    for (int32_t fours = of.count / 4, rest = back > 0;; fours = 1, rest = 0) {
        for (; fours > 0; fours--, y += 4 * apart, place += 4 * apart) {
            const tt_sums s = tt_four_windows8(&windows, of.column, window, of.one);
            const tt_i32x4 sums = tt_lanes(s.sum_0, s.sum_1, s.sum_2, s.sum_3);
            tt_i32x4 errors = lowers ? tt_requantise_down_x4(sums, ends.factor, ends.by)
                                     : tt_requantise_x4(sums, ends.factor, ends.by);
            if (ends.keep.kind != TT_ALL_KEPT) {
                errors = tt_kept_errors_x4(errors, ends.mask, place, apart, places, ends.keep);
            }
            tt_store_errors8(y, places, tt_error_x4(errors, ends.peak));
        }
        if (rest == 0) {
            return;
        }
        windows.at_0 -= back * of.column;
        windows.at_2 -= back * of.column;
        y -= back * apart;
        place -= back * apart;
    }
}

/* Rows of a phase in all images: `high` in each, of which `strip` from row `first` on are laid together. */
typedef struct tt_strip {
    int32_t high, first, strip;
} tt_strip;

/* Pixels behind whole fours of each of `rows` that are computed with those of other rows of a strip: if that takes fewer
 * fours, though the last strip repeats rows, or there are no whole ones. */
static inline TT_ALWAYS int32_t tt_last_columns(int32_t pixels, int32_t rows, int32_t strip, tt_conv_shape of)
{
    const int32_t last = pixels % 4, strips = (rows + strip - 1) / strip;
    const int32_t down = strips * (strip * (pixels / 4) + last * ((strip + 3) / 4)), across = rows * ((pixels + 3) / 4);
    return (of.count == 1 && strip >= 4 && down < across) || pixels < 4 ? last : 0;
}

/* The errors of a strip of rows in a channel. place: of the first error of row 0. */
static inline TT_ALWAYS void tt_strip8_errors(int8_t *y, const int8_t *line, const int8_t *weights, int32_t place,
    tt_strip in, tt_lines lines, bool lowers, tt_error_ends ends, tt_conv_shape of)
{
    const int32_t row = of.down * of.width * of.channels;
    const tt_pixels across = {lines.pixels - lines.last, lines.column, lines.window, lines.apart, lines.one};
    const tt_pixels down = {in.strip, lines.pitch, lines.window, row, lines.one};
    const tt_places places = tt_places_of(lines.apart);
    for (int32_t i = in.first; i < in.first + in.strip && across.count > 0; i++) {
        const int8_t *const from = line + (i - in.first) * lines.pitch;
        const int32_t image = of.count == 1 ? 0 : i / in.high;
        const int32_t at = place + image * of.height * of.width * of.channels + (i - image * in.high) * row;
        const tt_four_windows windows = {weights, from, from + 2 * lines.column};
        tt_pixels8_errors(y + at, windows, at, places, across, lowers, ends);
    }
    if (lines.last == 0) {
        return;
    }
    const tt_places below = tt_places_of(row);
    for (int32_t i = across.count; i < lines.pixels; i++) {
        const int32_t at = place + in.first * row + i * lines.apart;
        const int8_t *const first = line + i * lines.column;
        const tt_four_windows windows = {weights, first, first + 2 * lines.pitch};
        tt_pixels8_errors(y + at, windows, at, below, down, lowers, ends);
    }
}

/* tt_reach_of, of a stride of 1 without loops: GCC then knows all constants early. */
static inline TT_ALWAYS tt_reach tt_line_reach(
    int32_t phase, int32_t pad, int32_t kernel, int32_t stride, int32_t dilation)
{
    if (stride == 1) {
        return (tt_reach){0, 1, kernel, dilation, pad - (kernel - 1) * dilation};
    }
    return tt_reach_of(phase, pad, kernel, stride, dilation);
}

/* tt_conv8_error over lines, if every phase has four pixels or more in a row, or in a column of a strip. scratch: the turned
 * weights of of.across channels, and the lines of of.strip rows. */
static inline TT_ALWAYS void tt_lines8_error(int8_t *y, int8_t *scratch, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    int32_t largest = *peak;
    if (tt_misses_pixels(of)) {
        memset(y, 0, (size_t)(of.count * of.height * of.width * of.channels));
    }
    for (int32_t turn = 0; turn < (of.channels + of.across - 1) / of.across * of.down * of.right; turn++) {
        const int32_t phase = turn % (of.down * of.right), first = turn / (of.down * of.right) * of.across;
        const int32_t channels = first + of.across <= of.channels ? of.across : of.channels - first;
        const tt_reach rows = tt_line_reach(phase / of.right, of.top, of.rows, of.down, of.dilation_rows);
        const tt_reach columns = tt_line_reach(phase % of.right, of.left, of.columns, of.right, of.dilation_columns);
        const int32_t high = (of.height - phase / of.right + of.down - 1) / of.down, all = of.count * high;
        if (rows.taps == 0 || columns.taps == 0 || high == 0) {
            continue;
        }
        const int32_t column = rows.taps * of.outputs, window = tt_whole(columns.taps * column);
        int8_t *const line = scratch + channels * window;
        /* whether the last strip is as high as the others, as its rows are computed together: of the longest or shortest */
        const int32_t step = of.right * columns.step, most = of.strip < all ? of.strip : all;
        const bool repeats = tt_last_columns((of.width + step - 1) / step, all, most, of) > 0
            || tt_last_columns(of.width / step, all, most, of) > 0;
        tt_lay_turned_columns8(scratch, w + first, channels, window, rows, columns, of);
        /* taps that are `step` apart: every step-th pixel */
        for (int32_t start = 0; start < columns.step; start++) {
            const int32_t left = phase % of.right + start * of.right, apart = of.right * columns.step;
            const int32_t pixels = (of.width - left + apart - 1) / apart, pitch = (pixels - 1) * column + window;
            const bool one = of.down * of.right == 1;
            const int32_t strip = all < of.strip ? all : of.strip, last = tt_last_columns(pixels, all, strip, of);
            const tt_lines lines = {column, window, pixels, last, pitch, apart * of.channels, one};
            tt_fill8(line, 0, of.strip * pitch);
            for (int32_t i = 0; i < all; i += strip) {
                const bool fits = all % strip == 0 || i + strip <= all;
                const int32_t top = fits || !repeats ? i : all - strip;
                const tt_strip in = {high, top, fits || repeats ? strip : all - top};
                for (int32_t j = top; j < top + in.strip; j++) {
                    const int32_t image = of.count == 1 ? 0 : j / high;
                    const int8_t *const error = g + image * of.high * of.wide * of.outputs;
                    tt_lay_line8(line + (j - top) * pitch, error, j - image * high, start, lines, rows, columns, of);
                }
                for (int32_t c = first; c < first + channels; c++) {
                    const int32_t place = (phase / of.right * of.width + left) * of.channels + c;
                    const int32_t by = tt_clamp(shift[c] + exponent, -31, 31);
                    const int8_t *const weights = scratch + (c - first) * window;
                    const tt_error_ends ends = {tt_all(multiplier[c]), tt_all(by), mask, keep, &largest};
                    if (TT_LIKELY(by < 0)) {
                        tt_strip8_errors(y, line, weights, place, in, lines, true, ends, of);
                    } else {
                        tt_strip8_errors(y, line, weights, place, in, lines, false, ends, of);
                    }
                }
            }
        }
    }
    *peak = largest;
}

#endif
