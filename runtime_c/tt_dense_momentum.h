/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* tt_dense_update.h with a velocity: it keeps a part of itself and adds the gradient; weights then move by it, or by a sign.
 * A row has one number by which inputs enter its velocities, and the tensor one for what they keep of themselves. Sums are
 * velocities with 7 fraction bits, in 16 bits; rows whose sums may have more are moved weight by weight (tt_momentum).
 * Twin: `velocity_rows` in compiler/tinytrain_compile/ops/int8/steps.py.
 */
#ifndef TT_DENSE_MOMENTUM_H
#define TT_DENSE_MOMENTUM_H

#include "tt_dense_update.h"

#define TT_SIGN_BITS 14 /* a sign is +-2^14, so that most steps have room above it */

/* By what inputs, velocities, and velocities in a sign are multiplied, as tt_part does; the unit of a gradient. seen: bits
 * of the new velocities. */
typedef struct {
    int32_t gradient, kept, ahead, unit;
    uint32_t seen;
} tt_velocities;

static inline int32_t tt_part(int32_t factor, int32_t value)
{
    return (int32_t)((int64_t)factor * value >> 16);
}

/* Whether sums may have more than 16 bits above the 16 that are rounded off; largest: magnitude of the inputs. */
static inline bool tt_sums_are_large(int32_t gradient, int32_t kept, int32_t largest)
{
    const uint32_t magnitude = gradient < 0 ? 0u - (uint32_t)gradient : (uint32_t)gradient;
    const uint32_t sums = ((magnitude >> 9) + 1u) * (uint32_t)largest + (((uint32_t)kept >> 8) + 1u) * 127u + 65536u;
    return kept == INT32_MAX || magnitude >= INT32_MAX || sums > INT32_MAX; /* the first two may be cut */
}

/* tt_scaled of a number that is not negative, times 1. */
static inline int32_t tt_scaled_one(int32_t value, int32_t exponent)
{
    if (exponent >= 0) {
        return tt_shift_left(value, exponent);
    }
    return exponent < -32 ? 0 : ((value >> (-exponent - 1)) + 1) >> 1;
}

/* The next word of noise (Marsaglia's xorshift): it needs no register but its own. */
static inline TT_ALWAYS uint32_t tt_next_word(uint32_t word)
{
    word ^= word << 13;
    word ^= word >> 17;
    return word ^ word << 5;
}

/* The byte of a word that rounds weight i; a velocity has that of the weight after the next one. */
static inline int32_t tt_byte_of(uint32_t word, int32_t i)
{
    return (int32_t)(word >> i % 4 * 8 & 255u);
}

/* Moves the velocities of a row from element i on, which `word` is for. f: for what its weights move by; null if they
 * move as well. */
static inline void tt_move_velocities(tt_velocities *by, const tt_dense_row *row, int8_t *velocity, int16_t *f,
    const int16_t *x, int32_t i, uint32_t word, bool signs)
{
    for (; i < row->count; i++) {
        const int32_t old = velocity[i], part = tt_part(by->gradient, x[i]);
        const int32_t fine = (part + tt_part(by->kept, old * 256) + (1 << 15)) >> 16;
        const int32_t ahead = part + tt_part(by->ahead, old * 256);
        const int32_t moved = tt_clamp((fine * 2 + tt_byte_of(word, i + 2)) >> 8, -127, 127);
        const int32_t sign = (ahead > 0 ? 1 : 0) - (ahead < 0 ? 1 : 0);
        const int32_t sum = !signs ? tt_clamp(fine * 2, INT16_MIN, INT16_MAX) : sign * (1 << TT_SIGN_BITS);
        by->seen |= (uint32_t)(moved < 0 ? ~moved : moved);
        velocity[i] = (int8_t)moved;
        if (f != NULL) {
            f[i] = (int16_t)sum;
        } else {
            const int32_t weight = row->w[i] * 256 + tt_byte_of(word, i) - ((tt_part(row->step, sum) + (1 << 15)) >> 16);
            row->w[i] = (int8_t)tt_clamp(weight >> 8, -row->limit, row->limit);
        }
        word = i % 4 == 3 ? tt_next_word(word) : word;
    }
}

#if TT_HAS_DSP
/* Sums of four weights, as halves of words: of weights 0 and 2, of 1 and 3. four: their velocities. */
static inline TT_ALWAYS void tt_sums4(
    uint32_t *even, uint32_t *odd, const int16_t **x, uint32_t four, int32_t gradient, int32_t kept, int32_t half)
{
    int32_t m0, m1, m2, m3;
    uint32_t x01, x23;
    const uint32_t q02 = four << 8 & TT_ODD_BYTES, q13 = four & TT_ODD_BYTES;
    __asm__ volatile("smlawb %0, %1, %2, %3" : "=r"(m0) : "r"(kept), "r"(q02), "r"(half));
    __asm__ volatile("smlawt %0, %1, %2, %3" : "=r"(m2) : "r"(kept), "r"(q02), "r"(half));
    __asm__ volatile("smlawb %0, %1, %2, %3" : "=r"(m1) : "r"(kept), "r"(q13), "r"(half));
    __asm__ volatile("smlawt %0, %1, %2, %3" : "=r"(m3) : "r"(kept), "r"(q13), "r"(half));
    __asm__ volatile("ldr %0, [%1], #4" : "=r"(x01), "+r"(*x) : : "memory");
    __asm__ volatile("smlawb %0, %1, %2, %0" : "+r"(m0) : "r"(gradient), "r"(x01));
    __asm__ volatile("smlawt %0, %1, %2, %0" : "+r"(m1) : "r"(gradient), "r"(x01));
    __asm__ volatile("ldr %0, [%1], #4" : "=r"(x23), "+r"(*x) : : "memory");
    __asm__ volatile("smlawb %0, %1, %2, %0" : "+r"(m2) : "r"(gradient), "r"(x23));
    __asm__ volatile("smlawt %0, %1, %2, %0" : "+r"(m3) : "r"(gradient), "r"(x23));
    __asm__ volatile("pkhtb %0, %1, %2, asr #16" : "=r"(*even) : "r"(m2), "r"(m0));
    __asm__ volatile("pkhtb %0, %1, %2, asr #16" : "=r"(*odd) : "r"(m3), "r"(m1));
}

/* Four velocities of their sums, rounded by noise; then the sums are twice what they were, as far as 16 bits hold it. */
static inline TT_ALWAYS uint32_t tt_velocities4(uint32_t *even, uint32_t *odd, uint32_t noise)
{
    uint32_t v02, v13;
    __asm__ volatile("uxtb16 %0, %1, ror #16" : "=r"(v02) : "r"(noise));
    __asm__ volatile("qadd16 %0, %0, %0" : "+r"(*even));
    __asm__ volatile("qadd16 %0, %0, %1" : "+r"(v02) : "r"(*even));
    __asm__ volatile("uxtb16 %0, %1, ror #24" : "=r"(v13) : "r"(noise));
    __asm__ volatile("qadd16 %0, %0, %0" : "+r"(*odd));
    __asm__ volatile("qadd16 %0, %0, %1" : "+r"(v13) : "r"(*odd));
    return tt_within4(tt_with_upper_bytes(v13 & TT_ODD_BYTES, v02), 127);
}

/* What comes of four velocities: a bit for each that they have, see tt_seen. */
static inline TT_ALWAYS uint32_t tt_bits_of4(uint32_t four)
{
    return four ^ four << 1;
}

/* The bits of numbers (of one below 0, of the others) whose tt_bits_of4 are these: the highest is right. */
static inline uint32_t tt_seen(uint32_t bits)
{
    bits = bits >> 1 & 0x7f7f7f7fu;
    bits |= bits >> 16;
    return (bits | bits >> 8) & 0x7fu;
}

/* Moves velocities four at a time; f: for what their weights move by. */
static inline uint32_t tt_move_velocities4(
    tt_velocities *by, const tt_dense_row *row, int8_t *velocity, int16_t *f, const int16_t *x, uint32_t word)
{
    uint32_t bits = 0;
    for (int32_t i = 0; i + 4 <= row->count; i += 4) {
        uint32_t four, even, odd, halves[2];
        memcpy(&four, velocity + i, sizeof four);
        tt_sums4(&even, &odd, &x, four, by->gradient, by->kept, 1 << 15);
        four = tt_velocities4(&even, &odd, word);
        memcpy(velocity + i, &four, sizeof four);
        bits |= tt_bits_of4(four);
        __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(halves[0]) : "r"(even), "r"(odd));
        __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(halves[1]) : "r"(odd), "r"(even));
        memcpy(f + i, halves, sizeof halves);
        word = tt_next_word(word);
    }
    by->seen |= tt_seen(bits);
    return word;
}

/* Four velocities and weights: loads, what is kept of velocities and what inputs add, velocities of these sums rounded by
 * noise, moves by twice the sums, weights less these rounded by noise, both within their limits. `held`: of weights. */
#define TT_MOVE_BOTH4(held) \
    "ldr %[a], [%[v]]\n\tlsl %[b], %[a], #8\n\tand %[b], %[b], #0xff00ff00\n\tand %[a], %[a], #0xff00ff00\n\t" \
    "smlawb %[c], %[kept], %[b], %[half]\n\tsmlawt %[b], %[kept], %[b], %[half]\n\t" \
    "smlawb %[d], %[kept], %[a], %[half]\n\tsmlawt %[a], %[kept], %[a], %[half]\n\t" \
    "ldr %[e], [%[x]], #4\n\tsmlawb %[c], %[gradient], %[e], %[c]\n\tsmlawt %[d], %[gradient], %[e], %[d]\n\t" \
    "ldr %[e], [%[x]], #4\n\tsmlawb %[b], %[gradient], %[e], %[b]\n\tsmlawt %[a], %[gradient], %[e], %[a]\n\t" \
    "pkhtb %[c], %[b], %[c], asr #16\n\tpkhtb %[d], %[a], %[d], asr #16\n\t" \
    "uxtb16 %[a], %[word], ror #16\n\tqadd16 %[c], %[c], %[c]\n\tqadd16 %[a], %[a], %[c]\n\t" \
    "uxtb16 %[b], %[word], ror #24\n\tqadd16 %[d], %[d], %[d]\n\tqadd16 %[b], %[b], %[d]\n\t" \
    "and %[b], %[b], #0xff00ff00\n\tuxtab16 %[b], %[b], %[a], ror #8\n\t" \
    "smlawb %[a], %[step], %[c], %[half]\n\tsmlawt %[c], %[step], %[c], %[half]\n\tpkhtb %[c], %[c], %[a], asr #16\n\t" \
    "smlawb %[a], %[step], %[d], %[half]\n\tsmlawt %[d], %[step], %[d], %[half]\n\tpkhtb %[d], %[d], %[a], asr #16\n\t" \
    "ldr %[a], [%[w]]\n\tlsl %[e], %[a], #8\n\tand %[e], %[e], #0xff00ff00\n\tuxtab16 %[e], %[e], %[word]\n\t" \
    "qsub16 %[e], %[e], %[c]\n\tand %[a], %[a], #0xff00ff00\n\tuxtab16 %[a], %[a], %[word], ror #8\n\t" \
    "qsub16 %[a], %[a], %[d]\n\tand %[a], %[a], #0xff00ff00\n\tuxtab16 %[a], %[a], %[e], ror #8\n\t" \
    "mov %[c], #0x81818181\n\tssub8 %[d], %[b], %[c]\n\tsel %[b], %[b], %[c]\n\tstr %[b], [%[v]], #4\n\t" held \
    "str %[a], [%[w]], #4\n\teor %[b], %[b], %[b], lsl #1\n\torr %[seen], %[seen], %[b]\n\t" \
    "eor %[word], %[word], %[word], lsl #13\n\teor %[word], %[word], %[word], lsr #17\n\t" \
    "eor %[word], %[word], %[word], lsl #5\n\t"
#define TT_HELD_BY_127 "ssub8 %[d], %[a], %[c]\n\tsel %[a], %[a], %[c]\n\t"
#define TT_HELD_BY_LIMIT \
    "ldr %[c], %[low]\n\t" TT_HELD_BY_127 "ldr %[c], %[high]\n\tssub8 %[d], %[c], %[a]\n\tsel %[a], %[a], %[c]\n\t"
/* Eight in a turn; the first turn may be the second half of one. */
#define TT_MOVE_BOTH(held) \
    __asm__ volatile("cmp %[a], #0\n\tbne 2f\n\t1:\n\t" TT_MOVE_BOTH4(held) "2:\n\t" TT_MOVE_BOTH4(held) \
                     "ldr %[a], %[end]\n\tcmp %[x], %[a]\n\tbne 1b" \
                     : [a] "+&r"(a), [b] "=&r"(b), [c] "=&r"(c), [d] "=&r"(d), [e] "=&r"(e), [w] "+&r"(w), \
                     [v] "+&r"(velocity), [x] "+&r"(x), [word] "+&r"(word), [seen] "+&r"(seen) \
                     : [gradient] "r"(by->gradient), [kept] "r"(by->kept), [step] "r"(row->step), [half] "r"(1 << 15), \
                     [end] "m"(end), [low] "m"(low), [high] "m"(high) \
                     : "cc", "memory")

/* Moves velocities and weights, four at a time, but for those that are not a multiple of four. The word of these. */
static inline uint32_t tt_move_both(
    tt_velocities *by, const tt_dense_row *row, int8_t *velocity, const int16_t *x, int32_t limit)
{
    const int16_t *const end = x + (row->count & ~3);
    const uint32_t high = (uint32_t)limit * TT_EACH_BYTE, low = (uint32_t)(256 - limit) * TT_EACH_BYTE;
    int8_t *w = row->w;
    uint32_t word = row->word, seen = 0, a = (uint32_t)row->count & 4u, b, c, d, e;
    if (x == end) {
        return word;
    }
    if (limit == 127) {
        TT_MOVE_BOTH(TT_HELD_BY_127);
    } else {
        TT_MOVE_BOTH(TT_HELD_BY_LIMIT);
    }
    by->seen |= tt_seen(seen);
    return word;
}
#endif

/* A row whose sums are large, or its step. */
static inline void tt_move_large(const tt_dense_row *row, int8_t *fraction, int8_t *velocity, int32_t *peak,
    const int32_t *rate, const int32_t *state, int32_t unit, bool signs)
{
    uint32_t word = row->word;
    for (int32_t i = 0; i < row->count; i++) {
        const int32_t gradient = row->g * (row->x[i] >> TT_LIFT), noise = tt_byte_of(word, i + 2);
        const int32_t ahead = signs ? tt_scaled(velocity[i], rate[6], rate[7] - 31 + state[2] - unit) : 0;
        const int32_t sum = tt_momentum(&velocity[i], gradient, peak, rate, state, unit, noise);
        const int32_t sign = tt_add(gradient, ahead), by = !signs ? sum : (sign > 0 ? 1 : 0) - (sign < 0 ? 1 : 0);
        if (fraction != NULL) {
            row->w[i] = tt_moved_fine(&fraction[i], row->w[i], by, row->size, row->exponent, row->limit);
        } else {
            row->w[i] = tt_moved_weight(row->w[i], by, row->size, row->exponent, tt_byte_of(word, i), row->limit);
        }
        word = i % 4 == 3 ? tt_next_word(word) : word;
    }
}

static inline bool tt_any(const int8_t *values, int32_t count)
{
    int32_t any = 0;
    for (int32_t i = 0; i < count && any == 0; i++) {
        any = values[i];
    }
    return any != 0;
}

/* What a velocity keeps of itself where the exponent changes by `up`; at: of the factor in the rate. */
static inline int32_t tt_kept_part(const int32_t *rate, int32_t at, int32_t up)
{
    return tt_scaled_one(tt_high_multiply(rate[at], rate[4]), rate[at + 1] + rate[5] + up);
}

/* The step of all weights; fraction: null if noise rounds them. x: inputs in scratch as in tt_dense_update, with as much
 * room, in words of four, behind them; rate, state, peak: as in tt_momentum. signs: weights move by signs. Returns weight 0. */
TT_SHARED int8_t tt_dense_momentum_fine(int8_t *w, int8_t *fraction, int8_t *velocity, int32_t *peak, int16_t *x,
    const int8_t *g, const int32_t *multiplier, const int8_t *shift, const int32_t *rate, const int32_t *state, int32_t p,
    int32_t seed, int32_t outputs, int32_t inputs, int32_t limit, bool signs)
{
    const int32_t largest = tt_largest_input(x, inputs), up = state[2] - state[0];
    const int32_t share = rate[4] < 1 << 30 ? 1 << 30 : rate[4]; /* 1 / N */
    const int64_t whole = ((int64_t)1 << 61) / share;
    const int32_t samples = whole > INT32_MAX ? INT32_MAX : (int32_t)whole;
    tt_velocities by = {0, tt_kept_part(rate, 2, up), signs ? tt_kept_part(rate, 6, up) : 0, 0, 0u};
    bool moved = false;
    int16_t *const f = x + (inputs + 3) / 4 * 4;
    for (int32_t o = 0; o < outputs; o++, velocity += inputs) {
        const uint32_t word = tt_noise_of((uint32_t)seed + (uint32_t)o * TT_GOLDEN, TT_GOLDEN) | 1u; /* 0 has no next */
        int8_t *const rest = fraction == NULL ? NULL : fraction + o * inputs;
        const int32_t size = tt_high_multiply(multiplier[o], rate[0]);
        const int32_t exponent = shift[o] + rate[1] + (signs ? 0 : p) + 8 - 31;
        tt_dense_row row = {w + o * inputs, f, inputs, limit, 0, false, g[o], size, exponent, word};
        by.unit = p + (signs ? shift[o] : shift[o] >> 1);
        const int32_t lifted = g[o] * (1 << 22); /* often 0, of which nothing has to be scaled */
        by.gradient = lifted == 0 ? 0 : tt_scaled(lifted, rate[4], rate[5] - 31 + by.unit - state[0] + 10);
        int32_t step = signs
            ? tt_scaled(1, size, exponent)
            : tt_scaled_one(tt_high_multiply(size, samples), exponent - rate[5] - by.unit + state[0] + 25);
        row.large = step > (signs ? (1 << (27 - TT_SIGN_BITS)) - 1 : INT32_MAX - 1);
        row.step = row.large || !signs ? step : step * (1 << (32 - TT_SIGN_BITS));
        row.large = row.large || tt_sums_are_large(by.gradient, by.kept, largest);
        row.large = row.large || (signs && tt_sums_are_large(by.gradient, by.ahead, largest));
        if (row.large) {
            row.x = x;
            tt_move_large(&row, rest, velocity, peak, rate, state, by.unit, signs);
            continue;
        }
        moved = moved || (g[o] != 0 && largest != 0) || tt_any(velocity, inputs);
        uint32_t next = word; /* of the weights that are not moved four at a time */
        int32_t done = 0;
#if TT_HAS_DSP
        if (!signs) {
            next = rest == NULL ? tt_move_both(&by, &row, velocity, x, limit)
                                : tt_move_velocities4(&by, &row, velocity, f, x, word);
            done = inputs & ~3;
        }
#endif
        tt_move_velocities(&by, &row, velocity, rest == NULL ? NULL : f, x, done, next, signs);
        if (rest != NULL) {
            tt_move_row_fine(&row, rest, tt_moves_nothing(&row, 255));
        }
    }
    int32_t found = moved ? 1 : 0;
    while (by.seen > 1u) { /* the power of two in the largest */
        found *= 2;
        by.seen >>= 1;
    }
    *peak = found > *peak ? found : *peak;
    return w[0];
}

static inline int8_t tt_dense_momentum(int8_t *w, int8_t *velocity, int32_t *peak, int16_t *x, const int8_t *g,
    const int32_t *multiplier, const int8_t *shift, const int32_t *rate, const int32_t *state, int32_t p, int32_t seed,
    int32_t outputs, int32_t inputs, int32_t limit, bool signs)
{
    return tt_dense_momentum_fine(
        w, NULL, velocity, peak, x, g, multiplier, shift, rate, state, p, seed, outputs, inputs, limit, signs);
}

#endif
