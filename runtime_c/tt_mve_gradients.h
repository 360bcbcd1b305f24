/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Data gradients of convolutions over all channels on vectors (Helium). Where there are no vectors, plain C gives the same
 * bits.
 *
 * The window of the error under a pixel, times the turned weights of four channels of the image, which lie in scratch.
 */
#ifndef TT_MVE_GRADIENTS_H
#define TT_MVE_GRADIENTS_H

#include "tt_mve_conv.h"
#include "tt_mve_errors.h"

/* Four runs of elements, `apart` from each other. */
typedef struct tt_runs {
    const int8_t *at_0, *at_1, *at_2, *at_3;
} tt_runs;

static inline TT_ALWAYS tt_runs tt_runs_of(const int8_t *at, int32_t apart)
{
    return (tt_runs){at, at + apart, at + 2 * apart, at + 3 * apart};
}

/* Elements of a run of n with the rest of its last vector. */
static inline TT_ALWAYS int32_t tt_whole(int32_t n)
{
    return (n + 15) / 16 * 16;
}

/* Sums of four channels. */
typedef struct tt_sums {
    int32_t sum_0, sum_1, sum_2, sum_3;
} tt_sums;

#if TT_HAS_MVE
#define TT_NEAR_RUNS [a] "+r"(a), [b] "+r"(b->at_0), [b2] "+r"(b->at_2)
/* Two in high registers: GCC reloads "r" into the low ones only, of which sums take four, and a frame pointer one. */
#define TT_FAR_RUNS [a] "+h"(a), [b] "+r"(b->at_0), [b1] "+r"(b->at_1), [b2] "+r"(b->at_2), [b3] "+h"(b->at_3)
#define TT_CONSTANT(n) __builtin_constant_p(n)
#endif

/* s += a . b_i of n elements, n > 0, for the four runs of b, `apart` from each other, which move on by tt_whole(n).
 * begin: s is 0, a constant. */
static inline TT_ALWAYS void tt_runs8_x4(
    tt_sums *s, const int8_t *a, tt_runs *b, int32_t apart, int32_t n, bool begin)
{
#if TT_HAS_MVE
    if (TT_CONSTANT(n) && n % 16 == 0 && n <= 64) {
#pragma GCC unroll 4
        for (int32_t i = 0; i < n; i += 16) {
            if (TT_CONSTANT(apart) && apart <= 127 && begin && i == 0) {
                __asm__ volatile(TT_NEAR_DOTS("vmladav.s8")
                                 : TT_SUMS_OF(s->sum_, "=&Te"), TT_NEAR_RUNS
                                 : [at1] "i"(apart)
                                 : "q0", "q1", "q2", "memory");
            } else if (TT_CONSTANT(apart) && apart <= 127) {
                __asm__ volatile(TT_NEAR_DOTS("vmladava.s8")
                                 : TT_SUMS_OF(s->sum_, "+Te"), TT_NEAR_RUNS
                                 : [at1] "i"(apart)
                                 : "q0", "q1", "q2", "memory");
            } else if (begin && i == 0) {
                __asm__ volatile(TT_FAR_DOTS("vmladav.s8")
                                 : TT_SUMS_OF(s->sum_, "=&Te"), TT_FAR_RUNS
                                 :
                                 : "q0", "q1", "q2", "memory");
            } else {
                __asm__ volatile(TT_FAR_DOTS("vmladava.s8")
                                 : TT_SUMS_OF(s->sum_, "+Te"), TT_FAR_RUNS
                                 :
                                 : "q0", "q1", "q2", "memory");
            }
        }
    } else if (TT_CONSTANT(n) && n % 16 == 0) {
        if (n % 32 == 16) {
            __asm__ volatile(TT_FAR_DOTS("vmladava.s8")
                             : TT_SUMS_OF(s->sum_, "+Te"), TT_FAR_RUNS
                             :
                             : "q0", "q1", "q2", "memory");
        }
        __asm__ volatile("dls lr, %[n]\n"
                         "1:\n\t" TT_FAR_DOTS("vmladava.s8") TT_FAR_DOTS("vmladava.s8") "le lr, 1b"
                         : TT_SUMS_OF(s->sum_, "+Te"), TT_FAR_RUNS
                         : [n] "r"(n / 32)
                         : "lr", "q0", "q1", "q2", "memory");
    } else {
        /* fixed, so that GCC finds registers for all: see TT_FAR_RUNS */
        register int32_t left __asm__("lr") = n;
        register int32_t s_0 __asm__("r0") = s->sum_0, s_1 __asm__("r2") = s->sum_1;
        register int32_t s_2 __asm__("r4") = s->sum_2, s_3 __asm__("r6") = s->sum_3;
        __asm__ volatile("dlstp.8 lr, lr\n"
                         "1:\n\t" TT_FAR_DOTS("vmladava.s8") "letp lr, 1b"
                         : TT_SUMS_OF(s_, "+r"), TT_FAR_RUNS, "+r"(left)
                         :
                         : "q0", "q1", "q2", "memory");
        *s = (tt_sums){s_0, s_1, s_2, s_3};
    }
#else
    for (int32_t k = 0; k < n; k++) {
        s->sum_0 += a[k] * b->at_0[k];
        s->sum_1 += a[k] * b->at_1[k];
        s->sum_2 += a[k] * b->at_2[k];
        s->sum_3 += a[k] * b->at_3[k];
    }
    (void)begin;
    (void)apart;
    const int32_t on = tt_whole(n);
    *b = (tt_runs){b->at_0 + on, b->at_1 + on, b->at_2 + on, b->at_3 + on};
#endif
}

/* Whether there are elements of the image that no tap reaches. */
static inline TT_ALWAYS bool tt_misses_pixels(tt_conv_shape of)
{
    bool misses = false;
    for (int32_t i = 0; i < of.down; i++) {
        misses |= tt_reach_of(i, of.top, of.rows, of.down, of.dilation_rows).taps == 0;
    }
    for (int32_t i = 0; i < of.right; i++) {
        misses |= tt_reach_of(i, of.left, of.columns, of.right, of.dilation_columns).taps == 0;
    }
    return misses;
}

/* Runs of elements under a row of taps: one if the taps are neighbours. */
static inline TT_ALWAYS int32_t tt_runs_in(tt_reach columns)
{
    return columns.step == 1 ? 1 : columns.taps;
}

/* The turned weights of a phase for four channels of the image, one after the other: runs, each of whole vectors. w: those
 * of the first channel. */
static inline TT_ALWAYS void tt_lay_turned8(
    int8_t *to, const int8_t *w, tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t pitch = of.rows * of.columns * of.channels, runs = tt_runs_in(columns);
    const int32_t n = columns.taps / runs * of.outputs;
    for (int32_t i = 0; i < 4 * rows.taps; i++) {
        const int32_t row = rows.tap + (rows.taps - 1 - i % rows.taps) * rows.apart;
        for (int32_t s = 0; s < columns.taps; s++) {
            const int32_t tap = row * of.columns + columns.tap + (columns.taps - 1 - s) * columns.apart;
            int8_t *const place = to + (runs == 1 ? s * of.outputs : s * tt_whole(n));
            tt_gather8(place, w + tap * of.channels + i / rows.taps, pitch, of.outputs);
        }
        to += runs * tt_whole(n);
    }
}

/* Adds the products of a pixel to s. at: the first place of the error under its taps; weights: those of the first tap;
 * down: rows of taps inside the error. */
static inline TT_ALWAYS void tt_add_whole_x4(
    tt_sums *s, const int8_t *at, const int8_t *weights, int32_t down, tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t runs = tt_runs_in(columns), n = columns.taps / runs * of.outputs, row = runs * tt_whole(n);
    const int32_t deep = rows.taps * row, line = rows.step * of.wide * of.outputs, on = columns.step * of.outputs;
    tt_runs under = tt_runs_of(weights, deep);
    for (int32_t r = 0; r < down; r++, at += line) {
#pragma GCC unroll 4
        for (int32_t run = 0; run < runs; run++) {
            tt_runs8_x4(s, at + run * on, &under, deep, n, false);
        }
    }
}

/* The same of a pixel of which only `across` columns of taps are inside. */
static inline TT_ALWAYS void tt_add_part_x4(tt_sums *s, const int8_t *at, const int8_t *weights, int32_t down,
    int32_t across, tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t runs = tt_runs_in(columns), n = columns.taps / runs * of.outputs, row = runs * tt_whole(n);
    const int32_t deep = rows.taps * row, line = rows.step * of.wide * of.outputs, on = columns.step * of.outputs;
    int32_t part = n;
    if (runs == 1) {
        part = across * of.outputs;
        TT_UNSEEN(part); /* a loop, which is less code */
    }
    for (int32_t r = 0; r < down; r++, at += line, weights += row) {
        tt_runs under = tt_runs_of(weights, deep);
        for (int32_t run = 0; run < (runs == 1 ? 1 : across); run++) {
            tt_runs8_x4(s, at + run * on, &under, deep, part, false);
        }
    }
}

/* -1 where the errors of four neighbours from element `at` on are kept. whole: they do not cross the end of a byte. */
static inline TT_ALWAYS tt_i32x4 tt_kept_four(const void *mask, int32_t at, bool whole, tt_keep keep)
{
    if (keep.kind == TT_KEPT_BY_VALUE) {
        return tt_passes_x4(tt_load8_x4((const int8_t *)mask + at), keep.low, keep.high);
    }
    const uint8_t *const from = (const uint8_t *)mask + at / 8;
    const int32_t next = whole || at % 8 <= 4 ? 0 : from[1];
    return tt_bits_x4((from[0] | next << 8) >> at % 8);
}

/* Four errors at y, which is `place` of all: those that the mask keeps. */
static inline TT_ALWAYS void tt_end_error_x4(int8_t *y, int32_t *largest, tt_sums s, tt_i32x4 factor, tt_i32x4 by,
    const void *mask, int32_t place, bool whole, tt_keep keep)
{
    tt_i32x4 sums = tt_requantise_x4(tt_lanes(s.sum_0, s.sum_1, s.sum_2, s.sum_3), factor, by);
    if (keep.kind != TT_ALL_KEPT) {
        sums &= tt_kept_four(mask, place, whole, keep);
    }
    tt_store8_x4(y, tt_error_x4(sums, largest));
}

/* The error of the image, a QConvGradInput over all channels. scratch: turned weights of four channels.
 * exponent: of the incoming error less that of what comes out; of: the layer; mask: see tt_keep. */
static inline TT_ALWAYS void tt_conv8_error(int8_t *y, int8_t *scratch, int32_t *peak, const int8_t *g, const int8_t *w,
    const int32_t *multiplier, const int8_t *shift, const void *mask, int32_t exponent, tt_conv_shape of, tt_keep keep)
{
    int32_t largest = *peak;
    if (tt_misses_pixels(of)) {
        memset(y, 0, (size_t)(of.count * of.height * of.width * of.channels));
    }
    for (int32_t turn = 0; turn < (of.channels + 3) / 4 * of.down * of.right; turn++) {
        const int32_t phase = turn % (of.down * of.right), first = turn / (of.down * of.right) * 4;
        const int32_t c = first + 4 <= of.channels ? first : of.channels - 4;
        const tt_reach rows = tt_reach_of(phase / of.right, of.top, of.rows, of.down, of.dilation_rows);
        const tt_reach columns = tt_reach_of(phase % of.right, of.left, of.columns, of.right, of.dilation_columns);
        if (rows.taps == 0 || columns.taps == 0) {
            continue;
        }
        const int32_t runs = tt_runs_in(columns), n = columns.taps / runs * of.outputs;
        tt_lay_turned8(scratch, w + c, rows, columns, of);
        const tt_i32x4 factor = tt_load32_x4(multiplier + c);
        const tt_i32x4 by = tt_clamp_x4(tt_load8_x4(shift + c) + exponent, -31, 31);
        const int32_t high = (of.height - phase / of.right + of.down - 1) / of.down;
        const int32_t across = (of.width - phase % of.right + of.right - 1) / of.right;
        /* pixels of a row from `low` on, `span` of them, have all their columns of taps on the error */
        const int32_t low = columns.from < 0 ? -columns.from : 0;
        const int32_t room = of.wide - (columns.taps - 1) * columns.step - columns.from - low;
        const uint32_t span = room > 0 ? (uint32_t)room : 0u;
        for (int32_t line = 0; line < of.count * high; line++) {
            const int32_t image = line / high;
            const tt_inside down = tt_inside_of(rows, line % high, of.high);
            const int32_t row = image * of.high + rows.from + line % high + down.first * rows.step;
            const int8_t *const map = g + (row * of.wide + columns.from) * of.outputs;
            const int8_t *const weights = scratch + down.first * runs * tt_whole(n);
            int32_t place = ((image * of.height + phase / of.right + line % high * of.down) * of.width + phase % of.right)
                * of.channels + c;
            for (int32_t i = 0; i < across;) {
                const bool all = (uint32_t)(i - low) < span;
                const int32_t end = !all || low + room > across ? i + 1 : low + room;
                const tt_inside inside = all ? (tt_inside){0, columns.taps} : tt_inside_of(columns, i, of.wide);
                const int8_t *at = map + (i + inside.first * columns.step) * of.outputs;
                if (all) {
                    for (; i < end; i++, at += of.outputs, place += of.right * of.channels) {
                        tt_sums s = {0, 0, 0, 0};
                        tt_add_whole_x4(&s, at, weights, down.taps, rows, columns, of);
                        tt_end_error_x4(y + place, &largest, s, factor, by, mask, place, of.channels % 4 == 0, keep);
                    }
                } else {
                    tt_sums s = {0, 0, 0, 0};
                    tt_add_part_x4(&s, at, weights + inside.first * (runs == 1 ? of.outputs : tt_whole(n)), down.taps,
                        inside.taps, rows, columns, of);
                    tt_end_error_x4(y + place, &largest, s, factor, by, mask, place, of.channels % 4 == 0, keep);
                    i++;
                    place += of.right * of.channels;
                }
            }
        }
    }
    *peak = largest;
}

/* ---- lines of the error -------------------------------------------------------------------------------------------
 *
 * A line is the error under pixels of a row, column by column: of each column the rows of taps, one after the other. So
 * the window of a pixel is one run of elements, and that of the next pixel begins one column later. */

#if TT_HAS_MVE
#define TT_STEP_RUN "vldrbt.8 q0, [%[from]], %[apart]\n\tvstrbt.8 q0, [%[to]], %[on]\n\t"
#endif

/* Copies `count` runs of n elements, `apart` from each other, to places `on` apart; n and count > 0. */
static inline TT_ALWAYS void tt_copy_runs8(
    int8_t *to, const int8_t *from, int32_t on, int32_t apart, int32_t n, int32_t count)
{
#if TT_HAS_MVE
    for (int32_t i = 0; i < n; i += 16) {
        const mve_pred16_t few = vctp8q((uint32_t)(n - i));
        int8_t *place = to + i;
        const int8_t *source = from + i;
        if (!TT_CONSTANT(on) || !TT_CONSTANT(apart) || on > 127 || apart > 127) {
            __asm__ volatile("dls lr, %[count]\n"
                             "1:\n\tvpstt\n\tvldrbt.8 q0, [%[from]]\n\tvstrbt.8 q0, [%[to]]\n\t"
                             "add %[from], %[apart]\n\tadd %[to], %[on]\n\tle lr, 1b"
                             : [to] "+r"(place), [from] "+r"(source)
                             : [count] "r"(count), [few] "Up"(few), [on] "r"(on), [apart] "r"(apart)
                             : "lr", "q0", "memory");
            continue;
        }
        if (count % 2 == 1) {
            __asm__ volatile("vpstt\n\t" TT_STEP_RUN
                             : [to] "+r"(place), [from] "+r"(source)
                             : [few] "Up"(few), [on] "i"(on), [apart] "i"(apart)
                             : "q0", "memory");
        }
        if (count > 1) {
            __asm__ volatile("dls lr, %[twice]\n1:\n\tvpstttt\n\t" TT_STEP_RUN TT_STEP_RUN "le lr, 1b"
                             : [to] "+r"(place), [from] "+r"(source)
                             : [twice] "r"(count / 2), [few] "Up"(few), [on] "i"(on), [apart] "i"(apart)
                             : "lr", "q0", "memory");
        }
    }
#else
    for (int32_t i = 0; i < count; i++) {
        memcpy(to + i * on, from + i * apart, (size_t)n);
    }
#endif
}

/* Lays the line under `pixels` pixels of row y of a phase, from pixel `start` on. image: the error; the border of the line
 * is 0 already. */
static inline TT_ALWAYS void tt_lay_line8(int8_t *line, const int8_t *image, int32_t y, int32_t start, int32_t pixels,
    tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t deep = rows.taps * of.outputs, apart = columns.step * of.outputs;
    const tt_inside down = tt_inside_of(rows, y, of.high);
    tt_reach under = columns;
    under.taps += pixels - 1;
    const tt_inside across = tt_inside_of(under, start, of.wide);
    if (down.taps < rows.taps) {
        tt_fill8(line, 0, under.taps * deep);
    }
    if (down.taps <= 0 || across.taps <= 0) {
        return;
    }
    const int32_t row = rows.from + y + down.first * rows.step;
    const int32_t column = columns.from + start + across.first * columns.step;
    const int8_t *const from = image + (row * of.wide + column) * of.outputs;
    int8_t *const to = line + across.first * deep + down.first * of.outputs;
    if (rows.taps == 1 && columns.step == 1) {
        tt_copy8(to, from, across.taps * apart);
        return;
    }
    for (int32_t r = 0; r < down.taps; r++) {
        tt_copy_runs8(to + r * of.outputs, from + r * rows.step * of.wide * of.outputs, deep, apart, of.outputs, across.taps);
    }
}

/* tt_gather8, short for at most eight elements; n is a constant. */
static inline TT_ALWAYS void tt_gather_few8(int8_t *to, const int8_t *from, int32_t pitch, int32_t n)
{
#if TT_HAS_MVE
    if (n <= 8) {
        const uint16x8_t places = vmulq_n_u16(vidupq_n_u16(0u, 1), (uint16_t)pitch);
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

/* The turned weights of a phase for `channels` channels of the image, in the order of a line: n of each, with zeros at the
 * end. w: those of the first channel. */
static inline TT_ALWAYS void tt_lay_turned_columns8(
    int8_t *to, const int8_t *w, int32_t channels, int32_t n, tt_reach rows, tt_reach columns, tt_conv_shape of)
{
    const int32_t pitch = of.rows * of.columns * of.channels;
    tt_fill8(to, 0, channels * n);
    for (int32_t s = columns.taps - 1; s >= 0; s--) {
        for (int32_t r = rows.taps - 1; r >= 0; r--, to += of.outputs) {
            const int32_t tap = (rows.tap + r * rows.apart) * of.columns + columns.tap + s * columns.apart;
            for (int32_t c = 0; c < channels; c++) {
                tt_gather_few8(to + c * n, w + tap * of.channels + c, pitch, of.outputs);
            }
        }
    }
}

/* -1 where the errors from element `at` on, any `step` apart, are kept. */
static inline TT_ALWAYS tt_i32x4 tt_kept_apart_x4(const void *mask, int32_t at, int32_t step, tt_keep keep)
{
    if (keep.kind == TT_KEPT_BY_VALUE || step % 8 == 0) {
        return tt_kept_x4(mask, at, at % 8, step, keep);
    }
#if TT_HAS_MVE
    const uint32x4_t places = vaddq_n_u32(vmulq_n_u32(vidupq_n_u32(0u, 1), (uint32_t)step), (uint32_t)at);
    const uint32x4_t bytes = vldrbq_gather_offset_u32((const uint8_t *)mask, vshrq_n_u32(places, 3));
    const int32x4_t to_sign = vbicq_s32(tt_all(31), vreinterpretq_s32_u32(vbicq_n_u32(places, 24u)));
    return vshrq_n_s32(vreinterpretq_s32_u32(vshlq_u32(bytes, to_sign)), 31);
#else
    return tt_keep_x4(tt_is_kept(mask, at, keep), tt_is_kept(mask, at + step, keep), tt_is_kept(mask, at + 2 * step, keep),
        tt_is_kept(mask, at + 3 * step, keep));
#endif
}

/* The places of four errors, `apart` from each other. */
#if TT_HAS_MVE
typedef uint32x4_t tt_places;
#else
typedef int32_t tt_places;
#endif

static inline TT_ALWAYS tt_places tt_places_of(int32_t apart)
{
#if TT_HAS_MVE
    uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0u, 1), (uint32_t)apart);
    __asm__("" : "+w"(places)); /* stays in a register: GCC would compute it for each four */
    return places;
#else
    return apart;
#endif
}

/* The windows of four pixels, of which the first and the third are pointed to, and the weights of a channel. */
typedef struct tt_four_windows {
    const int8_t *weights, *at_0, *at_2;
} tt_four_windows;

#if TT_HAS_MVE
#define TT_LINE_DOTS(with, kind, step, on)                                                                           \
    __asm__ volatile(TT_DOTS("vldrb.8", with, "[%[a]], %[next]", "[%[b]], %[next4]", "[%[b], %[at1]]",                 \
        "[%[b2]], %[next4]", "[%[b2], %[at1]]")                                                                        \
                     : TT_SUMS_OF(s.sum_, kind), [a] "+r"(of->weights), [b] "+r"(of->at_0), [b2] "+r"(of->at_2)        \
                     : [at1] "i"(deep), [next] "i"(step), [next4] "i"(on)                                              \
                     : "q0", "q1", "q2", "memory")
#endif

/* Products of four windows, `deep` apart, of n elements, whole vectors; then those of the next four are pointed to. */
static inline TT_ALWAYS tt_sums tt_four_windows8(tt_four_windows *of, int32_t deep, int32_t n)
{
    tt_sums s = {0, 0, 0, 0};
#if TT_HAS_MVE
    if (TT_CONSTANT(n) && TT_CONSTANT(deep) && n <= 80 && deep <= 127 && 4 * deep + 16 - n <= 127) {
        if (n == 16) {
            TT_LINE_DOTS("vmladav.s8", "=&Te", 0, 4 * deep);
            return s;
        }
        TT_LINE_DOTS("vmladav.s8", "=&Te", 16, 16);
        if (n > 32) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        if (n > 48) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        if (n > 64) {
            TT_LINE_DOTS("vmladava.s8", "+Te", 16, 16);
        }
        TT_LINE_DOTS("vmladava.s8", "+Te", 16 - n, 4 * deep + 16 - n);
        return s;
    }
#endif
    tt_runs windows = tt_runs_of(of->at_0, deep);
    tt_runs8_x4(&s, of->weights, &windows, deep, n, true);
    of->at_0 += 4 * deep;
    of->at_2 += 4 * deep;
    return s;
}

/* The errors of `pixels` pixels in a channel, `apart` from each other from y on, which is `place` of all: four at a time, of
 * which the last four end with the last pixel. deep: elements from window to window; n: of a window, in whole vectors;
 * lowers: the factor is below 1/2, a constant. */
static inline TT_ALWAYS void tt_line8_errors(int8_t *y, tt_four_windows windows, int32_t place, int32_t apart, tt_places places,
    int32_t pixels, int32_t deep, int32_t n, bool lowers, tt_error_ends ends)
{
    const int32_t back = (4 - pixels % 4) % 4;
    if (!lowers) {
        TT_UNSEEN(n); /* a loop, which is less code */
    }
    for (int32_t fours = pixels / 4, rest = back > 0;; fours = 1, rest = 0) {
        for (; fours > 0; fours--) {
            const tt_sums s = tt_four_windows8(&windows, deep, n);
            const tt_i32x4 sums = tt_lanes(s.sum_0, s.sum_1, s.sum_2, s.sum_3);
            tt_i32x4 errors = lowers ? tt_requantise_down_x4(sums, ends.factor, ends.by)
                                     : tt_requantise_x4(sums, ends.factor, ends.by);
            if (ends.keep.kind != TT_ALL_KEPT) {
                errors &= tt_kept_apart_x4(ends.mask, place, apart, ends.keep);
            }
            errors = tt_error_x4(errors, ends.peak);
#if TT_HAS_MVE
            vstrbq_scatter_offset_s32(y, places, errors);
#else
            tt_scatter8_x4(y, places, errors);
#endif
            y += 4 * apart;
            place += 4 * apart;
        }
        if (rest == 0) {
            break;
        }
        windows.at_0 -= back * deep;
        windows.at_2 -= back * deep;
        y -= back * apart;
        place -= back * apart;
    }
}

/* The errors of a channel in `strip` rows of a phase, from row i of all images on; their lines are `pitch` apart. place: that of the first error of row 0. */
static inline TT_ALWAYS void tt_lines8_errors(int8_t *y, const int8_t *line, int32_t pitch, const int8_t *weights, int32_t place,
    int32_t apart, int32_t i, int32_t strip, int32_t high, int32_t pixels, int32_t deep, int32_t n, bool lowers, tt_error_ends ends, tt_conv_shape of)
{
    const tt_places places = tt_places_of(apart);
    for (int32_t j = i; j < i + strip; j++, line += pitch) {
        const int32_t at = place + (j / high * of.height + j % high * of.down) * of.width * of.channels;
        tt_line8_errors(y + at, (tt_four_windows){weights, line, line + 2 * deep}, at, apart, places, pixels, deep, n, lowers, ends);
    }
}

/* tt_conv8_error over lines; every phase has four pixels or more in a row. scratch: turned weights of of.across channels,
 * and lines of of.strip rows. */
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
        const tt_reach rows = tt_reach_of(phase / of.right, of.top, of.rows, of.down, of.dilation_rows);
        const tt_reach columns = tt_reach_of(phase % of.right, of.left, of.columns, of.right, of.dilation_columns);
        if (rows.taps == 0 || columns.taps == 0) {
            continue;
        }
        const int32_t deep = rows.taps * of.outputs, n = tt_whole(columns.taps * deep);
        const int32_t high = (of.height - phase / of.right + of.down - 1) / of.down;
        const int32_t apart = of.right * columns.step;
        int8_t *const line = scratch + channels * n;
        tt_lay_turned_columns8(scratch, w + first, channels, n, rows, columns, of);
        for (int32_t start = 0; start < columns.step; start++) {
            const int32_t left = phase % of.right + start * of.right, pixels = (of.width - left + apart - 1) / apart;
            const int32_t pitch = (pixels - 1) * deep + n;
            tt_fill8(line, 0, of.strip * pitch);
            for (int32_t i = 0; i < of.count * high; i += of.strip) {
                const int32_t strip = i + of.strip <= of.count * high ? of.strip : of.count * high - i;
                for (int32_t j = 0; j < strip; j++) {
                    const int8_t *const image = g + (i + j) / high * of.high * of.wide * of.outputs;
                    tt_lay_line8(line + j * pitch, image, (i + j) % high, start, pixels, rows, columns, of);
                }
                for (int32_t c = 0; c < channels; c++) {
                    const int32_t by = tt_clamp(shift[first + c] + exponent, -31, 31);
                    const tt_error_ends ends = {tt_all(multiplier[first + c]), tt_all(by), mask, keep, &largest};
                    const int32_t place = (phase / of.right * of.width + left) * of.channels + first + c;
                    const int8_t *const own = scratch + c * n;
                    if (TT_LIKELY(by < 0)) {
                        tt_lines8_errors(y, line, pitch, own, place, apart * of.channels, i, strip, high, pixels, deep, n, true, ends, of);
                    } else {
                        tt_lines8_errors(y, line, pitch, own, place, apart * of.channels, i, strip, high, pixels, deep, n, false, ends, of);
                    }
                }
            }
        }
    }
    *peak = largest;
}

#endif
