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
#define TT_FAR_SUMS(with, kind)                                                                                        \
    __asm__ volatile(TT_FAR_DOTS(with)                                                                                 \
                     : TT_SUMS_OF(s->sum_, kind), TT_FAR_RUNS                                                          \
                     :                                                                                                 \
                     : "q0", "q1", "q2", "memory")
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
                TT_FAR_SUMS("vmladav.s8", "=&Te");
            } else {
                TT_FAR_SUMS("vmladava.s8", "+Te");
            }
        }
    } else if (TT_CONSTANT(n) && n % 16 == 0) {
        if (n % 32 == 16) {
            TT_FAR_SUMS("vmladava.s8", "+Te");
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

#endif
