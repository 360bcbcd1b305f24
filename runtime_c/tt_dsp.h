/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of integer kernels that have an instruction on some cores: what becomes of a sum (requantisation to int8, a
 * weight's step). Each gives the same bits on every core and on a host: where the instructions are missing, plain C does
 * the same. Twins: compiler/tinytrain_compile/ops/fixed_point.py.
 */
#ifndef TT_DSP_H
#define TT_DSP_H

#include "tt_dsp_direct.h"
#include "tt_dsp_sums.h"

/* tt_add: one instruction where there is one. */
static inline int32_t tt_quick_add(int32_t a, int32_t b)
{
#if TT_HAS_DSP
    int32_t sum;
    __asm__("qadd %0, %1, %2" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
#else
    return tt_add(a, b);
#endif
}

/* tt_shift_right by a constant from 1 to 31. */
static inline int32_t tt_halve(int32_t value, int32_t times)
{
#if TT_HAS_DSP
    int32_t y;
    __asm__("asrs %0, %1, %2\n\tadc %0, %0, #0" : "=r"(y) : "r"(tt_quick_add(value, value >> 31)), "rI"(times) : "cc");
    return y;
#else
    return tt_shift_right(value, times);
#endif
}

/* tt_halve of a value within +-2^30, plus `zero` (an int8), which is a part of the constant that rounds. A negative value
 * less one is rounded half away from zero. times <= 22. */
static inline int32_t tt_quick_halve(int32_t value, int32_t times, int32_t zero)
{
    return (value + (value >> 31) + zero * (1 << times) + (1 << (times - 1))) >> times;
}

/* y, which `sum` was rounded to; at least 1 where `sum` is positive. */
static inline int32_t tt_above(int32_t y, int32_t sum)
{
#if TT_HAS_THUMB2
    __asm__("cmp %0, #0\n\tit eq\n\tusateq %0, #1, %1" : "+r"(y) : "r"(sum) : "cc");
    return y;
#else
    return y == 0 && sum > 0 ? 1 : y;
#endif
}

/* The same of tt_halve. */
static inline int32_t tt_halve_above(int32_t value, int32_t times)
{
    return tt_above(tt_halve(value, times), value);
}

/* How a kernel keeps a factor (multiplier, shift) that is known when it runs: tt_factor, and by how many bits the factor
 * shifts right: 1 to 31 (more count as 31); 0 and less (minus the bits to the left) also stand for multiplier 0. */
static inline int32_t tt_factor(int32_t multiplier)
{
    return TT_HAS_DSP || TT_HAS_MULH ? (int32_t)((uint32_t)multiplier << 1) : multiplier;
}

static inline int32_t tt_multiplier(int32_t factor)
{
    return TT_HAS_DSP || TT_HAS_MULH ? (int32_t)((uint32_t)factor >> 1) : factor;
}

static inline int32_t tt_down(int32_t multiplier, int32_t shift)
{
    return multiplier == 0 ? 0 : shift < -31 ? 31 : -shift;
}

#if TT_HAS_THUMB2 || TT_HAS_MULH
#define TT_KNOWN(condition) (__builtin_constant_p(condition) && (condition))
/* The nearest int8 from low to high: one instruction, and a few more for every bound that is not an end of int8. (What
 * comes of it stays an int32 until both are met: GCC does not know that it fits a byte.) */
static inline int8_t tt_clamp8(int32_t value, int32_t low, int32_t high)
{
#if TT_HAS_MULH
    return (int8_t)tt_clamp(value, low, high);
#else
    int32_t y;
    __asm__("ssat %0, #8, %1" : "=r"(y) : "r"(value));
    y = low > -128 && y < low ? low : y;
    return (int8_t)(high < 127 && y > high ? high : y);
#endif
}

/* tt_requantise of a factor below 1/2 that is not 0, kept as tt_factor and by how many bits (1 to 31) it shifts right, plus
 * `zero`, a constant that fits an instruction; what is below `low` may be anything below it. Twice the multiplier is 2^32
 * and a word: the high half of acc times it is acc and that of acc times the word, rounded up. Without that instruction,
 * the product's bit 30 is the carry of a shift by 31, and rounds it up. Dividing, the last bit that is shifted out rounds
 * up; a negative number less one is thereby rounded half away from zero. (Where negative numbers give `low` or less, this
 * does not matter.) */
static inline int32_t tt_requantise_kept(int32_t acc, int32_t factor, int32_t down, int32_t zero, int32_t low)
{
#if TT_HAS_MULH
    const int64_t product = (int64_t)acc * (uint32_t)factor;
    int32_t y = (int32_t)(product >> 32) + (int32_t)((uint32_t)product >> 31);
    if (!TT_KNOWN(zero <= low)) {
        y += y >> 31;
    }
    return (((y >> (down - 1)) + 1) >> 1) + zero;
#else
    int32_t y;
#if TT_HAS_DSP
    __asm__("smmlar %0, %1, %2, %1" : "=r"(y) : "r"(acc), "r"(factor));
#else
    int32_t high;
    __asm__("smull %0, %1, %2, %3" : "=&r"(y), "=&r"(high) : "r"(acc), "r"(factor));
    __asm__("lsrs %0, %0, #31\n\tadc %0, %0, %1, lsl #1" : "+r"(y) : "r"(high) : "cc");
#endif
    if (!TT_KNOWN(zero <= low)) {
        y += y >> 31;
    }
    if (TT_KNOWN(zero < 0)) { /* the carry is what a subtraction does not borrow */
        __asm__("asrs %0, %0, %1\n\tsbc %0, %0, %2" : "+r"(y) : "r"(down), "rI"(-1 - zero) : "cc");
    } else {
        __asm__("asrs %0, %0, %1\n\tadc %0, %0, %2" : "+r"(y) : "r"(down), "rI"(zero) : "cc");
    }
    return y;
#endif
}
#endif

/* tt_requantise by a multiplier that is not 0, short where the factor is below 1/2. */
static inline int32_t tt_rescale_by(int32_t acc, int32_t multiplier, int32_t shift)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    if (shift < 0) {
        return tt_requantise_kept(acc, tt_factor(multiplier), shift < -31 ? 31 : -shift, 0, INT32_MIN);
    }
#endif
    return tt_requantise(acc, multiplier, shift);
}

/* The same by any multiplier. */
static inline int32_t tt_rescale(int32_t acc, int32_t multiplier, int32_t shift)
{
    return multiplier != 0 ? tt_rescale_by(acc, multiplier, shift) : tt_requantise(acc, multiplier, shift);
}

/* The same, at least 1 where acc is positive. */
static inline int32_t tt_rescale_above(int32_t acc, int32_t multiplier, int32_t shift)
{
    return tt_above(tt_rescale(acc, multiplier, shift), acc);
}

/* tt_requantise by a kept factor. */
static inline int32_t tt_rescaled(int32_t acc, int32_t factor, int32_t down)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    if (TT_LIKELY(down > 0)) {
        return tt_requantise_kept(acc, factor, down, 0, INT32_MIN);
    }
#endif
    return tt_requantise(acc, tt_multiplier(factor), -down);
}

/* tt_error. A magnitude below the peak and 127 changes neither. */
static inline int32_t tt_quick_error(int32_t value, int32_t *peak)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
#if TT_HAS_MULH
    const int32_t limit = *peak < 127 ? *peak : 127;
#else
    int32_t limit;
    __asm__("usat %0, #7, %1" : "=r"(limit) : "r"(*peak));
#endif
    if (TT_LIKELY((value ^ (value >> 31)) < limit)) {
        return value;
    }
#endif
    return tt_error(value, peak);
}

/* tt_error of a sum by a kept factor, or 0 if it is not kept. */
static inline int8_t tt_rescaled_error(bool keep, int32_t acc, int32_t factor, int32_t down, int32_t *peak)
{
    return (int8_t)(keep ? tt_quick_error(tt_rescaled(acc, factor, down), peak) : 0);
}

/* tt_aligned of an error: `lift` is what tt_lift gives for the exponent, the bits to the left, or -1 if these do not do. */
static inline int32_t tt_lift(int32_t exponent)
{
    return exponent >= -8 && exponent <= 14 ? exponent + 8 : -1;
}

static inline int32_t tt_lifted(int32_t error, int32_t exponent, int32_t lift)
{
    return TT_LIKELY(lift >= 0) ? (int32_t)((uint32_t)error << lift) : tt_aligned(error, exponent);
}

/* The error that the halved sum (within +-2^30) of two lifted errors is, or 0 if it is not kept. */
static inline int8_t tt_summed_error(bool keep, int32_t sum, int32_t bits, int32_t *peak)
{
    return (int8_t)(keep ? tt_quick_error(tt_quick_halve(sum, bits, 0), peak) : 0);
}

/* What tt_noise takes of a tensor for its state and 0 for its salt. */
static inline int32_t tt_noise_seed(int32_t state, int32_t salt)
{
    return (int32_t)((uint32_t)state + (uint32_t)salt);
}

/* How a kernel keeps the exponent of a step whose gradients, times 2^spare, do not overflow: by how many bits the high word
 * of their product with the multiplier is shifted right, which tells the move if it is positive. Without the instructions
 * for that, as it is. */
static inline int32_t tt_step_down(int32_t exponent, int32_t spare)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    const int32_t most = spare > 0 ? 31 : 30; /* then all moves are 0, or see tt_scaled */
    int32_t down = spare - 32 - exponent > most ? most : spare - 32 - exponent;
    __asm__("" : "+r"(down)); /* is kept, rather than what it is made of */
    return down;
#else
    (void)spare;
    return exponent;
#endif
}

/* tt_moved_weight by a kept exponent. (What comes of it stays an int32 until both ways meet: no sign is extended.) */
static inline int8_t tt_kept_move(int32_t weight, int32_t gradient, int32_t multiplier, int32_t down, int32_t noise,
    int32_t limit, int32_t spare)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    int32_t moved;
    if (TT_LIKELY(down > 0)) {
        const int32_t lifted = (int32_t)((uint32_t)gradient << spare);
        int32_t move = (int32_t)(((int64_t)lifted * multiplier) >> 32);
#if TT_HAS_MULH
        move = ((move >> (down - 1)) + 1) >> 1;
        moved = weight + ((noise - move) >> 8);
        if (!TT_LIKELY((uint32_t)(moved + limit) <= 2u * (uint32_t)limit)) {
            moved = tt_clamp(moved, -limit, limit);
        }
#else
        __asm__("asrs %0, %0, %1\n\tadc %0, %0, #0" : "+r"(move) : "r"(down) : "cc"); /* below 2^30 */
        __asm__("ssat %0, #8, %1, asr #8" : "=r"(moved) : "r"(weight * 256 + noise - move));
        if (TT_LIKELY(limit == 127)) {
            __asm__("cmn %0, #127\n\tit lt\n\tmvnlt %0, #126" : "+r"(moved) : : "cc");
        } else {
            moved = tt_clamp(moved, -limit, limit);
        }
#endif
    } else {
        moved = tt_moved_weight(weight, gradient, multiplier, spare - 32 - down, noise, limit);
    }
#if TT_HAS_MULH
    __asm__("" : "+r"(moved)); /* is no byte before it is stored */
#endif
    return (int8_t)moved;
#else
    (void)spare;
    return tt_moved_weight(weight, gradient, multiplier, down, noise, limit);
#endif
}

/* tt_moved_weight, short for all but large steps: of a gradient that, times 2^spare, does not overflow. */
static inline int8_t tt_quick_move(int32_t weight, int32_t gradient, int32_t multiplier, int32_t exponent,
    int32_t noise, int32_t limit, int32_t spare)
{
    return tt_kept_move(weight, gradient, multiplier, tt_step_down(exponent, spare), noise, limit, spare);
}

/* Bit 7 of every byte tells whether this byte of `bytes`, without sign, is at least `bound` <= 255: bit 7 of a difference
 * tells it of the other seven bits. */
static inline uint32_t tt_at_least(uint32_t bytes, uint32_t bound)
{
    const uint32_t rest = (bytes | 0x80808080u) - (bound & 127u) * 0x01010101u;
    return bound > 127u ? bytes & rest : bytes | rest;
}

/* Bit i is set where low < from[i] < high, for i < 8; -129 <= low < high <= 128, and 255 numbers pass at most. */
static inline uint8_t tt_passed8(const int8_t *from, int32_t low, int32_t high)
{
    uint32_t bits = 0;
#if TT_HAS_DSP
    /* of four bytes, those are chosen from the bits' own numbers whose distance from the least that passes is below the
     * count of these, without sign */
    const uint32_t least = (uint8_t)-(low + 1) * 0x01010101u, count = (uint8_t)(high - low - 1) * 0x01010101u;
    for (uint32_t half = 0; half < 8u; half += 4u) {
        uint32_t bytes;
        memcpy(&bytes, from + half, sizeof bytes);
        __asm__("uadd8 %0, %0, %1\n\tusub8 %0, %0, %2\n\tsel %0, %4, %3"
                : "+&r"(bytes)
                : "r"(least), "r"(count), "r"(0x08040201u << half), "r"(0));
        __asm__("usada8 %0, %1, %2, %0" : "+r"(bits) : "r"(bytes), "r"(0));
    }
#else
    for (uint32_t half = 0; half < 8u; half += 4u) {
        uint32_t bytes;
        memcpy(&bytes, from + half, sizeof bytes);
        bytes ^= 0x80808080u;
        const uint32_t inside = tt_at_least(bytes, (uint32_t)(low + 129)) &
            ~(high > 127 ? 0u : tt_at_least(bytes, (uint32_t)(high + 128)));
        /* the multiplication brings bit 0 of byte i to bit 24 + i */
        bits |= ((((inside >> 7) & 0x01010101u) * 0x01020408u) >> 24 & 15u) << half;
    }
#endif
    return (uint8_t)bits;
}

/* The upper half of a product of 64 bits, rounded half up, plus acc. */
static inline int32_t tt_upper(int32_t acc, int32_t x, int32_t multiplier)
{
#if TT_HAS_DSP
    int32_t y;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(y) : "r"(x), "r"(multiplier), "r"(acc));
    return y;
#else
    return acc + (int32_t)(((int64_t)x * multiplier + ((int64_t)1 << 31)) >> 32);
#endif
}

/* tt_quick_halve, plus zero (an int8), in [low, high], as int8: the end of an addition. */
static inline int8_t tt_halve8(int32_t sum, int32_t times, int32_t zero, int32_t low, int32_t high)
{
#if TT_HAS_THUMB2
    if (TT_KNOWN(times == 8) && low == -128 && high == 127) {
        int32_t byte;
        __asm__("ssat %0, #8, %1, asr #8" : "=r"(byte) : "r"(sum + (sum >> 31) + zero * 256 + 128)); /* tt_quick_halve */
        return (int8_t)byte;
    }
#endif
    const int32_t y = tt_quick_halve(sum, times, zero);
#if TT_HAS_THUMB2
    if (low == -128 || high == 127) {
        return tt_clamp8(y, low, high);
    }
#endif
    return (int8_t)tt_clamp(y, low, high);
}

/* acc + bias by a kept factor, plus zero, in [low, high], as int8: the end of a convolution. */
static inline int8_t tt_requantise8(
    int32_t acc, int32_t bias, int32_t factor, int32_t down, int32_t zero, int32_t low, int32_t high)
{
    return tt_saturate8(tt_rescaled(tt_quick_add(acc, bias), factor, down), zero, low, high);
}

#if TT_HAS_THUMB1
/* acc + bias, saturated, by a factor that shifts right by 1 to 31, plus zero, as int8; place: 256 zero + bits. */
#define TT_END(test, narrow, wide)                                                                                      \
    __asm__(".syntax unified\n\tadds %[a], %[b]\n\tbvs 3f\n\t" test "\n\tbne 1f\n\t" narrow "b 2f\n"                   \
            "3:\n\tasrs %[b], #31\n\tmovs %[a], #1\n\tlsls %[a], #31\n\tsubs %[a], #1\n\teors %[a], %[b]\n"           \
            "1:\n\t" wide "2:\n\tsxtb %[a], %[m]\n\tcmp %[a], %[m]\n\tbeq 4f\n\t"                                     \
            "asrs %[m], #31\n\tmovs %[a], #127\n\teors %[a], %[m]\n4:"                                                   \
            : [a] "+l"(acc), [b] "+l"(bias), [m] "+l"(factor), [n] "+l"(place), [h] "=&l"(h), [t] "=&l"(t), [u] "=&l"(u)  \
            :                                                                                                          \
            : "cc")
#define TT_LOWEST(to) "movs " to ", #127\n\tmvns " to ", " to "\n\t"
#define TT_PLACED_ZERO "asrs %[h], %[n], #8\n\t"
TT_SHARED int32_t tt_end(int32_t acc, int32_t bias, int32_t factor, int32_t place)
{
    int32_t h, t, u;
    TT_END("sxth %[h], %[a]\n\tcmp %[h], %[a]", TT_NARROW_PRODUCT("asrs", TT_SIGNED_ROUND, TT_PLACED_ZERO),
        TT_WIDE_PRODUCT(TT_SIGNED_ROUND, TT_PLACED_ZERO));
    return acc;
}

/* The same for zero = -128, which all sums up to 0 give. */
TT_SHARED int32_t tt_end_of_positive(int32_t acc, int32_t bias, int32_t factor, int32_t place)
{
    int32_t h, t, u;
    TT_END("bgt 5f\n\t" TT_LOWEST("%[a]") "b 4f\n5:\n\tlsrs %[h], %[a], #16", TT_NARROW_PRODUCT("lsrs", TT_POSITIVE_ROUND, TT_LOWEST("%[h]")),
        TT_WIDE_PRODUCT(TT_POSITIVE_ROUND, TT_LOWEST("%[h]")));
    return acc;
}
#endif

/* The same for a kept factor that is not 0 and shifts right. */
static inline int8_t tt_requantise8_kept(
    int32_t acc, int32_t bias, int32_t factor, int32_t down, int32_t zero, int32_t low, int32_t high)
{
#if TT_HAS_THUMB2 || TT_HAS_MULH
    const int32_t y = tt_requantise_kept(tt_quick_add(acc, bias), factor, down, zero, low);
    return low == -128 || high == 127 ? tt_clamp8(y, low, high) : (int8_t)tt_clamp(y, low, high);
#else
#if TT_HAS_THUMB1
    if (low == -128 && high == 127) {
        if (zero == -128) {
            return (int8_t)tt_end_of_positive(acc, bias, factor, down);
        }
        return (int8_t)tt_end(acc, bias, factor, 256 * zero + down);
    }
#endif
    return tt_saturate8(tt_requantise(tt_add(acc, bias), tt_multiplier(factor), -down), zero, low, high);
#endif
}

/* The end of a dense layer: tt_requantise8, but rounded once; above: see tt_requantise8_above. */
static inline int8_t tt_requantise8_once(
    int32_t acc, int32_t bias, int32_t factor, int32_t down, int32_t zero, int32_t low, int32_t high, bool above)
{
    const int32_t sum = tt_quick_add(acc, bias);
#if TT_HAS_DSP || TT_HAS_MULH
    if (TT_LIKELY(down > 0)) {
        const int32_t more = TT_HAS_DSP ? sum : 0; /* as in tt_requantise_kept */
        const int64_t by = TT_HAS_DSP ? (int64_t)factor : (int64_t)(uint32_t)factor;
        const int32_t product = more + (int32_t)((sum * by) >> 32);
        const int32_t y = ((product >> (down - 1)) + 1) >> 1, stored = (above ? tt_above(y, sum) : y) + zero;
        return low == -128 || high == 127 ? tt_clamp8(stored, low, high) : (int8_t)tt_clamp(stored, low, high);
    }
#endif
    const int32_t y = tt_requantise_once(sum, tt_multiplier(factor), -down);
    return tt_saturate8(above ? tt_above(y, sum) : y, zero, low, high);
}

/* Both: a positive sum is stored above `zero`, also if it rounds to that. */
static inline int8_t tt_requantise8_above(
    int32_t acc, int32_t bias, int32_t factor, int32_t down, int32_t zero, int32_t low, int32_t high)
{
    const int32_t sum = tt_quick_add(acc, bias);
    return tt_saturate8(tt_above(tt_rescaled(sum, factor, down), sum), zero, low, high);
}

static inline int8_t tt_requantise8_kept_above(
    int32_t acc, int32_t bias, int32_t factor, int32_t down, int32_t zero, int32_t low, int32_t high)
{
    const int32_t sum = tt_quick_add(acc, bias);
#if TT_HAS_THUMB2 || TT_HAS_MULH
    const int32_t y = tt_above(tt_requantise_kept(sum, factor, down, 0, low - zero), sum) + zero;
    return low == -128 || high == 127 ? tt_clamp8(y, low, high) : (int8_t)tt_clamp(y, low, high);
#else
    return tt_saturate8(tt_above(tt_requantise(sum, tt_multiplier(factor), -down), sum), zero, low, high);
#endif
}

#endif
