/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Weight gradients of convolutions over all channels on vectors (Helium), and what they do. Where there are no vectors, plain
 * C gives the same bits.
 *
 * A map of the error times the image under a tap. Both lie in scratch by channel, so that pixels are neighbours; the image
 * once for every column of taps, moved by it and thinned by the stride.
 */
#ifndef TT_MVE_WEIGHTS_H
#define TT_MVE_WEIGHTS_H

#include "tt_mve_gradients.h"

/* How a weight moves by its gradient, or what else becomes of it: see tt_ended_weights8. */
#define TT_BY_NOISE 0
#define TT_BY_FRACTION 1
#define TT_SUMMED 2
typedef struct tt_moves {
    int32_t kind;
    const int32_t *multiplier;
    const int8_t *shift;
    const int32_t *rate, *p;
    int8_t *fraction;
    int32_t noise, salt, limit, spare;
} tt_moves;

/* What a gradient goes through before its weight moves. velocity, if momentum is not 0 (2: weights move by the sign), and
 * its peak, state and salt: see tt_momentum. rows, if largest > 0: sums of squares of the channels' gradients, of which more
 * than +-largest does not count. */
typedef struct tt_through {
    int32_t momentum;
    int8_t *velocity;
    int32_t *peak;
    const int32_t *state;
    int32_t salt, *rows, largest;
} tt_through;

/* The low bytes of the lanes from `skip` on. */
static inline TT_ALWAYS void tt_store8_from(int8_t *to, tt_i32x4 lanes, int32_t skip)
{
    if (skip == 0) {
        tt_store8_x4(to, lanes);
        return;
    }
    for (int32_t i = skip; i < 4; i++) {
        to[i] = (int8_t)lanes[i];
    }
}

/* tt_momentum of four velocities from element `at` on, or the sign of tt_sign_momentum; the first `skip` are done already.
 * unit: exponent of the gradient. */
TT_SHARED tt_i32x4 tt_moved_velocities_x4(
    int8_t *velocity, tt_i32x4 gradient, int32_t *peak, const int32_t *rate, const int32_t *state, int32_t unit,
    tt_i32x4 noise, bool sign, int32_t skip)
{
    tt_i32x4 total = gradient;
    for (int32_t i = skip; i < 4; i++) {
        int32_t ahead = 0;
        if (sign) {
            ahead = tt_add(gradient[i], tt_scaled(velocity[i], rate[6], rate[7] - 31 + state[2] - unit));
        }
        total[i] = tt_momentum(velocity + i, gradient[i], peak, rate, state, unit, noise[i]);
        total[i] = !sign ? total[i] : (ahead > 0 ? 1 : 0) - (ahead < 0 ? 1 : 0);
    }
    return total;
}

#if TT_HAS_MVE
/* tt_scaled of four velocities by a factor whose exponent is quick: a velocity has 22 bits to spare. */
static inline TT_ALWAYS tt_i32x4 tt_kept_velocity_x4(tt_i32x4 velocity, int32_t multiplier, int32_t exponent)
{
    return tt_quick_x4(velocity, multiplier, exponent - 22, 22);
}
#endif

/* The same, in registers as long as no number is unusual. */
static inline TT_ALWAYS tt_i32x4 tt_velocities_x4(int8_t *velocity, tt_i32x4 gradient, int32_t *peak, const int32_t *rate,
    const int32_t *state, int32_t unit, tt_i32x4 noise, bool sign, int32_t skip)
{
#if TT_HAS_MVE
    const int32_t kept = rate[3] - 31 + state[2] - unit, ahead = sign ? rate[7] - 31 + state[2] - unit : kept;
    if (skip == 0 && tt_is_quick(kept - 22) && tt_is_quick(ahead - 22)) {
        const tt_i32x4 old = tt_load8_x4(velocity);
        const tt_i32x4 total = vqaddq_s32(gradient, tt_kept_velocity_x4(old, rate[2], kept));
        const int32_t spare = tt_spare_x4(total), stored = rate[5] - 23 + unit - state[0] - spare;
        if (tt_is_quick(stored)) {
            const tt_i32x4 fine = tt_quick_x4(total, rate[4], stored, spare);
            const int32_t least = spare < 30 || vmaxavq_s32(0, total) > 0 ? 1 : 0;
            const int32_t size = ((int32_t)vmaxavq_s32(0, fine) + 255) >> 8, magnitude = size < least ? least : size;
            *peak = magnitude > *peak ? magnitude : *peak;
            tt_store8_x4(velocity, tt_clamp_x4((fine + noise) >> 8, -127, 127));
            if (!sign) {
                return total;
            }
            const tt_i32x4 sum = vqaddq_s32(gradient, tt_kept_velocity_x4(old, rate[6], ahead));
            return vmaxq_s32(vminq_s32(sum, tt_all(1)), tt_all(-1));
        }
    }
#endif
    return tt_moved_velocities_x4(velocity, gradient, peak, rate, state, unit, noise, sign, skip);
}

/* Four gradients of channel o, from element `at` on, become what their weights move by. */
static inline TT_ALWAYS tt_i32x4 tt_through_x4(
    tt_i32x4 gradient, int32_t o, int32_t at, int32_t skip, tt_moves by, tt_through through)
{
    if (through.largest > 0) {
        int64_t squares;
        memcpy(&squares, through.rows + 2 * o, sizeof squares);
        for (int32_t i = skip; i < 4; i++) {
            const int32_t size = tt_clamp(gradient[i], -through.largest, through.largest);
            squares += (int64_t)size * size;
        }
        memcpy(through.rows + 2 * o, &squares, sizeof squares);
    }
    if (through.momentum == 0) {
        return gradient;
    }
    const int32_t unit = by.p[0] + (through.momentum == 2 ? by.shift[o] : by.shift[o] >> 1);
    return tt_velocities_x4(through.velocity + at, gradient, through.peak, by.rate, through.state, unit,
        tt_noise_x4(by.noise, through.salt, at), through.momentum == 2, skip);
}

/* What the gradients of four weights of a channel, from element `at` on, do to them; the first `skip` are done already.
 * words: of their noise. */
static inline TT_ALWAYS void tt_ended_weights8(
    void *w, int32_t at, tt_i32x4 gradient, int32_t skip, int32_t multiplier, int32_t exponent, tt_i32x4 words, tt_moves by)
{
    if (by.kind == TT_SUMMED) {
        int32_t *const total = (int32_t *)w + at;
        const tt_i32x4 sums = tt_add_x4(tt_load32_x4(total), gradient);
        if (skip == 0) {
            tt_store32_x4(total, sums);
        }
        for (int32_t i = skip; skip > 0 && i < 4; i++) {
            total[i] = sums[i];
        }
        return;
    }
    int8_t *const weight = (int8_t *)w + at;
    const tt_i32x4 old = tt_load8_x4(weight);
    if (by.kind == TT_BY_FRACTION) {
        int8_t *const fraction = by.fraction + at;
#if TT_HAS_MVE
        if (tt_is_quick(exponent - by.spare)) {
            const tt_i32x4 move = tt_quick_x4(gradient, multiplier, exponent - by.spare, by.spare);
            const tt_i32x4 fine = old * 256 + tt_load8_x4(fraction) - move;
            const tt_i32x4 value = tt_clamp_x4(fine, -by.limit * 256, by.limit * 256), rounded = vrshrq_n_s32(value, 8);
            tt_store8_from(weight, rounded, skip);
            tt_store8_from(fraction, value - rounded * 256, skip);
            return;
        }
#endif
        tt_store8_from(
            weight, tt_moved_fine_x4(fraction, old, gradient, multiplier, exponent, by.limit, skip), skip);
        return;
    }
    const tt_i32x4 noise = tt_mixed_x4(words);
    tt_store8_from(weight, tt_quick_move_x4(old, gradient, multiplier, exponent, noise, by.limit, by.spare), skip);
}

/* The sums of four maps, `apart` from each other, of which an image takes `map`. n: pixels of an image, or those and zeros. */
static inline TT_ALWAYS tt_i32x4 tt_map_sums_x4(
    const int8_t *error, const int8_t *from, int32_t count, int32_t map, int32_t pixels, int32_t n)
{
    tt_sums s = {0, 0, 0, 0};
    for (int32_t image = 0; image < count; image++) {
        tt_runs runs = tt_runs_of(from + image * map, count * map);
        tt_runs8_x4(&s, error + image * pixels, &runs, count * map, n, count == 1);
    }
    return tt_lanes(s.sum_0, s.sum_1, s.sum_2, s.sum_3);
}

/* A row of taps: the maps from `first` to `end` of `maps`, the first of which lies at `from` and steps the weight `at`. */
typedef struct tt_map_row {
    int32_t first, end, maps, at;
    const int8_t *from;
} tt_map_row;

/* How many of the four maps from j on have been summed up: they end with the last one. */
static inline TT_ALWAYS int32_t tt_skipped(int32_t j, tt_map_row row)
{
    return row.maps % 4 == 0 || j + 4 <= row.maps ? 0 : j + 4 - row.maps;
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

#define TT_HELD_DOT(with, i) "vldrb.8 q0, [%[from], %[at" #i "]]\n\t" with " %[s], %q[e" #i "], q0\n\t"
#define TT_HELD_FROM(i) [e##i] "w"(held.at_##i), [at##i] "i"(reach + i)
#define TT_HELD_SUM(dots, ...) __asm__ volatile(dots : [s] "=&Te"(sum) : [from] "h"(from), __VA_ARGS__ : "q0", "memory")

/* The sum of a map of n elements, which lies `ahead` of from; n and ahead are constants. */
static inline TT_ALWAYS int32_t tt_held_sum(tt_held held, const int8_t *from, int32_t ahead, int32_t n)
{
    const int32_t reach = TT_CONSTANT(ahead) ? ahead : 0; /* it is none at some levels of optimisation */
    int32_t sum;
    from += ahead - reach;
    if (n == 16) {
        TT_HELD_SUM(TT_HELD_DOT("vmladav.s8", 0), TT_HELD_FROM(0));
    } else if (n == 32) {
        TT_HELD_SUM(
            TT_HELD_DOT("vmladav.s8", 0) TT_HELD_DOT("vmladava.s8", 16), TT_HELD_FROM(0), TT_HELD_FROM(16));
    } else if (n == 48) {
        TT_HELD_SUM(TT_HELD_DOT("vmladav.s8", 0) TT_HELD_DOT("vmladava.s8", 16) TT_HELD_DOT("vmladava.s8", 32),
            TT_HELD_FROM(0), TT_HELD_FROM(16), TT_HELD_FROM(32));
    } else {
        TT_HELD_SUM(TT_HELD_DOT("vmladav.s8", 0) TT_HELD_DOT("vmladava.s8", 16) TT_HELD_DOT("vmladava.s8", 32)
                        TT_HELD_DOT("vmladava.s8", 48),
            TT_HELD_FROM(0), TT_HELD_FROM(16), TT_HELD_FROM(32), TT_HELD_FROM(48));
    }
    return sum;
}

/* The sums of four maps, `map` apart: those that the offset of a load reaches share a pointer. */
static inline TT_ALWAYS tt_i32x4 tt_held_sums_x4(tt_held held, const int8_t *from, int32_t map, int32_t n)
{
    const int32_t reached = (143 - n) / map < 3 ? (143 - n) / map + 1 : 4;
    const int32_t first = tt_held_sum(held, from, 0, n);
    const int32_t second = tt_held_sum(held, from + 1 / reached * map, 1 % reached * map, n);
    const int32_t third = tt_held_sum(held, from + 2 / reached * reached * map, 2 % reached * map, n);
    return tt_lanes(first, second, third, tt_held_sum(held, from + 3 / reached * reached * map, 3 % reached * map, n));
}

/* Numbers of tt_quick_x4 for the weights of a channel. lift: spare bits of gradients with what is kept of velocities; down,
 * kept, stored: shifts behind the products with the step's factor and, with momentum, with rate[2] and rate[4]. */
typedef struct tt_quick {
    int32_t lift, multiplier, down, kept, stored;
} tt_quick;

/* Those of channel o; exponent: of its steps. lift: 0 if a step or a velocity may need more than them. */
static inline TT_ALWAYS tt_quick tt_quick_of(int32_t multiplier, int32_t exponent, int32_t o, tt_moves by, tt_through through)
{
    int32_t lift = by.spare, kept = 0, stored = 0;
    bool quick = by.kind == TT_BY_NOISE && through.momentum < 2 && through.largest == 0;
    if (quick && through.momentum == 1) {
        const int32_t unit = by.p[0] + (by.shift[o] >> 1);
        kept = by.rate[3] - 53 + through.state[2] - unit;
        /* a gradient is below 2^(31 - spare), what is kept of a velocity at most 2^(60 + kept): their sum is below the
         * double of the larger one */
        lift = by.spare - 1 < -30 - kept ? by.spare - 1 : -30 - kept;
        stored = by.rate[5] - 23 + unit - through.state[0] - lift;
        quick = tt_is_quick(kept) && tt_is_quick(stored);
    }
    quick = quick && lift > 0 && tt_is_quick(exponent - lift);
    return (tt_quick){quick ? lift : 0, multiplier, exponent - lift + 32, kept + 32, stored + 32};
}

/* The upper half of a product with a number that is lifted by `lift` bits, at least one. */
static inline TT_ALWAYS tt_i32x4 tt_upper_x4(tt_i32x4 value, int32_t lift, int32_t multiplier)
{
    const tt_i32x4 lifted = __builtin_constant_p(lift) ? value << (lift - 1) : vshlq_r_s32(value, lift - 1);
    return vqdmulhq_n_s32(lifted, multiplier);
}

/* value = (255 - tt_mixed_x4(words)) + value, or - value. In one piece, because GCC would spill what it orders otherwise. */
#define TT_WITH_NOISE(value, words, with)                                                                              \
    __asm__("vshr.u32 q0, %q[by], #15\n\tveor q0, q0, %q[by]\n\tvmul.i32 q0, q0, %[a]\n\tvadd.i32 q0, q0, %[b]\n\t"       \
            "vshr.u32 q0, q0, #24\n\t" with " %q[to], q0, %q[to]"                                                       \
            : [to] "+w"(value)                                                                                         \
            : [by] "w"(words), [a] "r"(0u - 1664525u), [b] "r"(~1013904223u)                                           \
            : "q0")

/* Minus value / 256, rounded down and clamped to +-limit <= 127, in the low bytes of the lanes: in place, for which there
 * is no intrinsic. */
static inline TT_ALWAYS tt_i32x4 tt_minus8_x4(tt_i32x4 value, int32_t limit)
{
    __asm__("vqmovnb.s32 %q0, %q0\n\tvshr.s16 %q0, %q0, #8\n\tvqneg.s8 %q0, %q0" : "+w"(value));
    int8x16_t byte = vreinterpretq_s8_s32(value);
    if (limit < 127) {
        byte = vmaxq_s8(vminq_s8(byte, vdupq_n_s8((int8_t)limit)), vdupq_n_s8((int8_t)-limit));
    }
    return vreinterpretq_s32_s8(byte);
}

/* The low bytes of the lanes, or only of the own ones if there may be others. */
static inline TT_ALWAYS void tt_store8_own(int8_t *to, tt_i32x4 lanes, uint32_t own, int32_t maps)
{
    if (maps % 4 == 0) {
        tt_store8_x4(to, lanes);
    } else {
        vstrbq_p_s32(to, lanes, (mve_pred16_t)own);
    }
}

/* The weights of a row of taps, four by four, in which steps are those of `quick` and rounded by noise. n: see
 * tt_map_sums_x4. */
static inline TT_ALWAYS void tt_quick_row8(int8_t *w, const int8_t *error, tt_held held, tt_map_row row, int32_t map,
    int32_t n, int32_t correction, tt_quick quick, tt_moves by, tt_through through, tt_conv_shape of)
{
    const int32_t apart = of.count * map, lift = through.momentum == 0 ? by.spare : quick.lift;
    tt_i32x4 words = tt_words_x4(by.noise, by.salt, row.at);
    const int8_t *from = row.from;
    int8_t *velocity = through.velocity + (through.momentum == 0 ? 0 : row.at);
    uint32_t total = 0, size = 0;
    w += row.at;
    for (int32_t j = row.first; j < row.end; j += 4, w += 4, from += 4 * apart, words = tt_next_words_x4(words)) {
        const int32_t skip = tt_skipped(j, row);
        uint32_t own = 0xffffu << 4 * skip;
        TT_UNSEEN(own); /* GCC moves the constant 0xf000 of 16 bits in a way that the assembler refuses */
        if (skip > 0) {
            w -= skip;
            from -= skip * apart;
            velocity -= skip;
            words = tt_words_x4(by.noise, by.salt, row.at + j - row.first - skip);
        }
        tt_i32x4 sums = tt_is_held(of.count, n) ? tt_held_sums_x4(held, from, map, n)
                                                : tt_map_sums_x4(error, from, of.count, map, of.high * of.wide, n);
        sums = of.zero == 0 ? sums : vaddq_n_s32(sums, correction);
        if (through.momentum != 0) {
            sums += vrshlq_n_s32(tt_upper_x4(tt_load8_x4(velocity), 22, by.rate[2]), quick.kept);
            tt_i32x4 fine = vrshlq_n_s32(tt_upper_x4(sums, lift, by.rate[4]), quick.stored);
            const int32_t salts = (int32_t)((uint32_t)through.salt - (uint32_t)by.salt);
            total = row.maps % 4 == 0 ? vmaxavq_s32(total, sums) : vmaxavq_p_s32(total, sums, (mve_pred16_t)own);
            size = row.maps % 4 == 0 ? vmaxavq_s32(size, fine) : vmaxavq_p_s32(size, fine, (mve_pred16_t)own);
            TT_WITH_NOISE(fine, vaddq_n_s32(words, salts), "vsub.i32");
            tt_store8_own(velocity, tt_minus8_x4(fine, 127), own, row.maps);
            velocity += 4;
            __asm__ volatile("" : "+w"(sums) : : "memory"); /* velocities first: both at once take too many registers */
        }
        tt_i32x4 step = vrshlq_n_s32(tt_upper_x4(sums, lift, quick.multiplier), quick.down);
        TT_WITH_NOISE(step, words, "vadd.i32");
        tt_store8_own(w, tt_minus8_x4(vmlaq_n_s32(step, tt_load8_x4(w), -256), by.limit), own, row.maps);
    }
    if (through.momentum != 0) {
        const int32_t least = total > 0 ? 1 : 0, magnitude = ((int32_t)size + 255) >> 8;
        const int32_t larger = magnitude < least ? least : magnitude;
        *through.peak = larger > *through.peak ? larger : *through.peak;
    }
}
#endif

/* Elements of rows of `wide` in front of `low` and from `end` on. */
static inline TT_ALWAYS void tt_border8(int8_t *to, int32_t rows, int32_t wide, int32_t low, int32_t end, int32_t zero)
{
    for (int32_t r = 0; r < rows; r++, to += wide) {
        for (int32_t i = 0; i < low; i++) {
            to[i] = (int8_t)zero;
        }
        for (int32_t i = end; i < wide; i++) {
            to[i] = (int8_t)zero;
        }
    }
}

/* The image of a channel under a column of taps, thinned by the stride: for each phase of its rows, image_rows of them. */
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
        const int32_t rows = low < end ? last - first : 0;
        if (first > 0) {
            tt_fill8(to, of.zero, first * of.wide);
        }
        if (first + rows < image_rows) {
            tt_fill8(to + (first + rows) * of.wide, of.zero, (image_rows - first - rows) * of.wide);
        }
        if (rows == 0) {
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

/* Elements of a map of the error: small ones end with zeros, so that all its vectors are whole. */
static inline TT_ALWAYS int32_t tt_map_end(tt_conv_shape of)
{
    const int32_t pixels = of.high * of.wide;
    return of.count == 1 && pixels < 64 ? tt_whole(pixels) : pixels;
}

/* What four gradients of channel o, from element `at` on, do; the first `skip` are done already. exponent: of a step. */
static inline TT_ALWAYS void tt_end_weights8(void *w, tt_i32x4 sums, int32_t o, int32_t at, int32_t skip,
    int32_t multiplier, int32_t exponent, tt_moves by, tt_through through)
{
    sums = tt_through_x4(sums, o, at, skip, by, through);
    tt_moves own = by;
#if TT_HAS_MVE
    own.spare = through.momentum == 0 ? by.spare : tt_spare_x4(sums);
#endif
    tt_ended_weights8(w, at, sums, skip, multiplier, exponent, tt_words_x4(by.noise, by.salt, at), own);
}

/* The factor of channel o's steps: multiplier and exponent. */
typedef struct tt_step_factor {
    int32_t multiplier, exponent;
} tt_step_factor;

static inline TT_ALWAYS tt_step_factor tt_step_factor_of(int32_t o, tt_moves by, tt_through through)
{
    if (by.kind == TT_SUMMED) {
        return (tt_step_factor){0, 0};
    }
    const int32_t unit = through.momentum == 2 ? 0 : by.p[0];
    return (tt_step_factor){tt_high_multiply(by.multiplier[o], by.rate[0]), by.shift[o] + by.rate[1] + unit - 23};
}

/* All weights. scratch: maps of the image, of.across of them or less, and one of the error. A map of the image is one of a
 * channel for a column of taps; four of them, at least, lie together. */
static inline TT_ALWAYS void tt_weights8(
    void *w, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of, tt_moves by, tt_through through)
{
    const int32_t phases = of.dilation_rows == 1 && of.rows < of.down ? of.rows : of.down;
    const int32_t image_rows = of.high + (of.rows - 1) * of.dilation_rows / of.down;
    const int32_t pixels = of.high * of.wide, map = phases * image_rows * of.wide, maps = of.columns * of.channels;
    const int32_t n = tt_map_end(of);
    int8_t *const error = scratch + of.across * of.count * map;
    for (int32_t first = 0; first < maps; first += of.across) {
        const int32_t end = first + of.across < maps ? first + of.across : maps;
        const int32_t start = first + 4 <= maps ? first : maps - 4;
        for (int32_t j = start; j < end; j++) {
            tt_lay_image8(
                scratch + (j - start) * of.count * map, x + j % of.channels, j / of.channels, phases, image_rows, of);
        }
        for (int32_t o = 0; o < of.outputs; o++) {
            tt_gather8(error, g + o, of.outputs, of.count * pixels);
            for (int32_t i = pixels; i < n; i++) {
                error[i] = 0;
            }
            const int32_t correction = of.zero == 0 ? 0 : -of.zero * tt_sum8(0, error, of.count * pixels);
            const tt_step_factor factor = tt_step_factor_of(o, by, through);
#if TT_HAS_MVE
            const tt_quick quick = tt_quick_of(factor.multiplier, factor.exponent, o, by, through);
            const tt_held held = tt_hold(error, tt_is_held(of.count, n) ? n : 0);
#endif
            for (int32_t r = 0; r < of.rows; r++) {
                const int32_t tap = r * of.dilation_rows, under = (tap % of.down * image_rows + tap / of.down) * of.wide;
                const tt_map_row row = {first, end, maps, (o * of.rows + r) * maps + first,
                    scratch + (first - start) * of.count * map + under};
#if TT_HAS_MVE
                if (quick.lift > 0) {
                    tt_quick_row8((int8_t *)w, error, held, row, map, n, correction, quick, by, through, of);
                    continue;
                }
#endif
                for (int32_t j = first; j < end; j += 4) {
                    const int32_t skip = tt_skipped(j, row), at = row.at + j - first - skip;
                    const int8_t *const from = row.from + (j - first - skip) * of.count * map;
                    tt_i32x4 sums = tt_map_sums_x4(error, from, of.count, map, pixels, n);
                    sums = of.zero == 0 ? sums : sums + correction;
                    tt_end_weights8(w, sums, o, at, skip, factor.multiplier, factor.exponent, by, through);
                }
            }
        }
    }
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

/* All weights of a depthwise convolution of four taps or more. scratch: a sum of every tap, in whole vectors, and the maps of
 * a channel. */
static inline TT_ALWAYS void tt_depthwise8_weights(
    void *w, int8_t *scratch, const int8_t *x, const int8_t *g, tt_conv_shape of, tt_moves by, tt_through through)
{
    const tt_channel_maps maps = tt_channel_maps_of(of);
    const int32_t area = of.rows * of.columns, channels = of.channels, whole = (area + 3) / 4 * 4;
    const int32_t all = maps.phase_rows * maps.phase_columns * maps.rows * maps.pitch;
    int32_t *const totals = (int32_t *)(void *)scratch;
    int8_t *const error = scratch + 4 * whole, *const image = error + of.strip * maps.pitch;
    tt_fill8(error, 0, of.strip * maps.pitch);
    tt_fill8(image, of.zero, all);
    for (int32_t c = 0; c < channels; c++) {
        int32_t sum = 0;
        memset(totals, 0, (size_t)(4 * whole));
        for (int32_t b = 0; b < of.count; b++) {
            for (int32_t first = 0; first < of.high; first += of.strip) {
                const int32_t rows = of.high % of.strip == 0 || first + of.strip <= of.high ? of.strip : of.high - first;
                const int32_t n = (rows - 1) * maps.pitch + of.wide;
                for (int32_t r = 0; r < rows; r++) {
                    const int32_t place = ((b * of.high + first + r) * of.wide) * channels + c;
                    tt_gather8(error + r * maps.pitch, g + place, channels, of.wide);
                }
                tt_lay_channel8(image, x + b * of.height * of.width * channels + c, first, maps, of);
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

/* Those of any layer: strip > 0: depthwise. */
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
