/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What weight gradients of convolutions over all channels do, on vectors (Helium): steps, velocities, sums of several. Where
 * there are no vectors, plain C gives the same bits.
 *
 * Four gradients at a time, or eight if all numbers fit into words, which a channel's exponents tell (tt_quick).
 */
#ifndef TT_MVE_STEPS_H
#define TT_MVE_STEPS_H

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

/* Whether steps are those of tt_quick_steps8 if their numbers fit: sums of a row of taps then go through scratch. */
static inline TT_ALWAYS bool tt_may_be_quick(tt_moves by, tt_through through)
{
    return by.kind == TT_BY_NOISE && through.momentum < 2 && through.largest == 0;
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

/* See tt_see_peak. */
typedef struct tt_largest {
    uint32_t total, size;
} tt_largest;

#if TT_HAS_MVE
/* Numbers of tt_quick_x4 for the weights of a channel. lift: spare bits of gradients with what is kept of velocities; down,
 * kept, stored: shifts behind the products with the step's factor and, with momentum, with rate[2] and rate[4]. */
typedef struct tt_quick {
    int32_t lift, multiplier, down, kept, stored;
} tt_quick;

/* Those of channel o. lift: 0 if a step or a velocity may need more than them. */
static inline TT_ALWAYS tt_quick tt_quick_of(int32_t o, tt_moves by, tt_through through)
{
    const tt_step_factor factor = tt_step_factor_of(o, by, through);
    int32_t lift = by.spare, kept = 0, stored = 0;
    bool quick = true;
    if (!tt_may_be_quick(by, through)) {
        return (tt_quick){0, 0, 0, 0, 0};
    }
    if (through.momentum == 1) {
        const int32_t unit = by.p[0] + (by.shift[o] >> 1);
        kept = by.rate[3] - 53 + through.state[2] - unit;
        /* a gradient is below 2^(31 - spare), what is kept of a velocity at most 2^(60 + kept): their sum is below the
         * double of the larger one */
        lift = by.spare - 1 < -30 - kept ? by.spare - 1 : -30 - kept;
        stored = by.rate[5] - 23 + unit - through.state[0] - lift;
        quick = tt_is_quick(kept) && tt_is_quick(stored);
    }
    quick = quick && lift > 0 && tt_is_quick(factor.exponent - lift);
    return (tt_quick){quick ? lift : 0, factor.multiplier, factor.exponent - lift + 32, kept + 32, stored + 32};
}

/* Two vectors of words / 256 as one of 16 bits, halves rounded up: in place, for which there is no intrinsic. (The assembler
 * of binutils 2.40 takes VQSHRN for this, too.) */
static inline TT_ALWAYS int16x8_t tt_halves16(tt_i32x4 even, tt_i32x4 odd)
{
    __asm__("vqrshrnb.s32 %q0, %q0, #8\n\tvqrshrnt.s32 %q0, %q1, #8" : "+w"(even) : "w"(odd));
    return vreinterpretq_s16_s32(even);
}

/* 127 less the noise of words; factor: minus that of tt_mixed_x4. */
static inline TT_ALWAYS tt_i32x4 tt_less_noise_x4(tt_i32x4 words, uint32x4_t factor)
{
    const uint32x4_t mixed = (uint32x4_t)words ^ vshrq_n_u32((uint32x4_t)words, 15);
    return vshrq_n_s32((tt_i32x4)vmlasq_n_u32(mixed, factor, ~1013904223u ^ 1u << 31), 24);
}

/* Minus value, clamped to +-limit <= 127, in the low bytes of the lanes. */
static inline TT_ALWAYS int16x8_t tt_minus8(int16x8_t value, int32_t limit)
{
    __asm__("vqmovnb.s16 %q0, %q0\n\tvqneg.s8 %q0, %q0" : "+w"(value));
    int8x16_t byte = vreinterpretq_s8_s16(value);
    if (limit < 127) {
        byte = vmaxq_s8(vminq_s8(byte, vdupq_n_s8((int8_t)limit)), vdupq_n_s8((int8_t)-limit));
    }
    return vreinterpretq_s16_s8(byte);
}

/* old - step, clamped to +-limit, in the low bytes of the lanes. */
static inline TT_ALWAYS int16x8_t tt_stepped8(int16x8_t old, int16x8_t step, int32_t limit)
{
    if (limit == 64) { /* the largest number of 16 bits is 63.998 at this scale, which is rounded to 64 */
        return vrshrq_n_s16(vqshlq_n_s16(vqsubq_s16(old, step), 9), 9);
    }
    return tt_minus8(vqsubq_s16(step, old), limit);
}

/* The words (tt_words_x4) of weights `at`, `at` + 2 and so on. */
static inline TT_ALWAYS tt_i32x4 tt_even_words_x4(int32_t state, int32_t salt, int32_t at)
{
    const uint32_t first = (uint32_t)state + (uint32_t)salt + (uint32_t)at * 0x9e3779b1u;
    return (tt_i32x4)vaddq_n_u32(vmulq_n_u32(tt_count_x4(), 2u * 0x9e3779b1u), first);
}

static inline TT_ALWAYS tt_i32x4 tt_words_behind_x4(tt_i32x4 words, uint32_t places)
{
    return (tt_i32x4)vaddq_n_u32((uint32x4_t)words, places * 0x9e3779b1u);
}

/* Eight bytes, or those that are the own ones if others may follow. */
static inline TT_ALWAYS int16x8_t tt_load_own8(const int8_t *from, bool whole, mve_pred16_t own)
{
    return whole ? vldrbq_s16(from) : vldrbq_z_s16(from, own);
}

static inline TT_ALWAYS void tt_store_own8(int8_t *to, int16x8_t lanes, bool whole, mve_pred16_t own)
{
    if (whole) {
        vstrbq_s16(to, lanes);
    } else {
        vstrbq_p_s16(to, lanes, own);
    }
}

/* Steps of n weights from element `at` on, eight by eight: those of `quick`, rounded by noise. lift: bits by which sums and
 * correction are lifted yet; whole: n are whole pairs of vectors. */
static inline TT_ALWAYS void tt_quick_steps8(int8_t *w, const int32_t *sums, int32_t half, int32_t n, bool whole,
    int32_t at, int32_t correction, int32_t lift, tt_quick quick, tt_moves by)
{
    const uint32x4_t factor = vdupq_n_u32(0u - 1664525u);
    const tt_i32x4 by_lift = vdupq_n_s32(1 << lift);
    const int32_t lifted = (int32_t)((uint32_t)correction << lift);
    tt_i32x4 words = tt_even_words_x4(by.noise, by.salt, at);
    w += at;
    for (int32_t j = 0; j < n; j += 8, sums += 4, w += 8) {
        const mve_pred16_t own = whole ? 0xffffu : vctp16q((uint32_t)(n - j));
        tt_i32x4 odd = vldrwq_s32(sums + half), even = vldrwq_s32(sums);
        odd = lift == 0 ? odd : vmlasq_n_s32(odd, by_lift, lifted);
        even = lift == 0 ? even : vmlasq_n_s32(even, by_lift, lifted);
        even = vrshlq_n_s32(vqdmulhq_n_s32(even, quick.multiplier), quick.down) + tt_less_noise_x4(words, factor);
        words = tt_words_behind_x4(words, 1);
        odd = vrshlq_n_s32(vqdmulhq_n_s32(odd, quick.multiplier), quick.down) + tt_less_noise_x4(words, factor);
        words = tt_words_behind_x4(words, 7);
        const int16x8_t step = tt_halves16(even, odd), old = tt_load_own8(w, whole, own);
        tt_store_own8(w, tt_stepped8(old, step, by.limit), whole, own);
    }
}

/* Velocities of n weights likewise; their gradients become what the weights move by, lifted. Sums behind the last one are
 * overwritten unless n is whole. */
static inline TT_ALWAYS void tt_quick_velocities8(int32_t *sums, int32_t half, int32_t n, bool whole, int32_t at,
    int32_t correction, tt_quick quick, tt_moves by, tt_through through, tt_largest *seen)
{
    const uint32x4_t factor = vdupq_n_u32(0u - 1664525u);
    tt_i32x4 words = tt_even_words_x4(by.noise, through.salt, at), others = tt_words_behind_x4(words, 1);
    int8_t *velocity = through.velocity + at;
    int32_t *odds = sums + half;
    uint32_t total = seen->total, size = seen->size;
    if (!whole && n % 8 != 0) { /* no velocities, so that they are no peaks */
        const tt_i32x4 none = vdupq_n_s32(-correction);
        vstrwq_p_s32(sums + n / 8 * 4, none, (mve_pred16_t)~vctp32q((uint32_t)(n % 8 + 1) / 2));
        vstrwq_p_s32(odds + n / 8 * 4, none, (mve_pred16_t)~vctp32q((uint32_t)(n % 8) / 2));
    }
    TT_UNSEEN(odds);
    for (int32_t j = 0; j < n; j += 8, sums += 4, odds += 4, velocity += 8) {
        const mve_pred16_t own = whole ? 0xffffu : vctp16q((uint32_t)(n - j));
        const int16x8_t old = vshlq_n_s16(tt_load_own8(velocity, whole, own), 5);
        tt_i32x4 odd = vaddq_n_s32(vldrwq_s32(odds), correction), even = vaddq_n_s32(vldrwq_s32(sums), correction);
        odd += vrshlq_n_s32(vqdmulhq_n_s32(vshlltq_n_s16(old, 16), by.rate[2]), quick.kept);
        even += vrshlq_n_s32(vqdmulhq_n_s32(vshllbq_n_s16(old, 16), by.rate[2]), quick.kept);
        odd = vshlq_r_s32(odd, quick.lift - 1);
        even = vshlq_r_s32(even, quick.lift - 1);
        vstrwq_s32(odds, odd);
        vstrwq_s32(sums, even);
        total = vmaxavq_s32(vmaxavq_s32(total, even), odd);
        even = vrshlq_n_s32(vqdmulhq_n_s32(even, by.rate[4]), quick.stored);
        odd = vrshlq_n_s32(vqdmulhq_n_s32(odd, by.rate[4]), quick.stored);
        size = vmaxavq_s32(vmaxavq_s32(size, even), odd);
        even = tt_less_noise_x4(words, factor) - even;
        odd = tt_less_noise_x4(others, factor) - odd;
        words = tt_words_behind_x4(words, 8);
        others = tt_words_behind_x4(others, 8);
        tt_store_own8(velocity, tt_minus8(tt_halves16(even, odd), 127), whole, own);
    }
    *seen = (tt_largest){total, size};
}
#endif

/* The largest gradients and velocities of quick rows: those are lifted, these 256 times as large. */
static inline TT_ALWAYS void tt_see_peak(tt_largest seen, tt_through through)
{
    const int32_t least = seen.total > 0 ? 1 : 0, magnitude = ((int32_t)seen.size + 255) >> 8;
    const int32_t larger = magnitude < least ? least : magnitude;
    if (through.momentum == 1 && larger > *through.peak) {
        *through.peak = larger;
    }
}

#endif
