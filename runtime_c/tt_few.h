/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Convolutions over all channels of small windows, or of few output channels. A window stays in registers while it meets the
 * weights of all channels, or the sums of all channels do while a window is read. So neither pixels nor channels are paired,
 * and no odd number of them is left over. The same bits on every core. */
#ifndef TT_FEW_H
#define TT_FEW_H

#include "tt_conv.h"

/* Most elements of a window. Its words: of four elements 0 and 2, then 1 and 3, as sxtb16 has them. */
#define TT_FEW_MOST 12
static inline TT_ALWAYS int32_t tt_few_words(int32_t n)
{
    return n / 4 * 2 + (n % 4 < 2 ? n % 4 : 2);
}

/* The words of the n weights of a run, `apart` behind each other; returns `sum` and all weights. */
static inline TT_ALWAYS int32_t tt_few_run(int32_t *to, const int8_t *w, int32_t n, int32_t apart, int32_t sum)
{
    int32_t k = 0;
#if TT_HAS_DSP
    for (; k + 4 <= n; k += 4, to += 2 * apart) {
        uint32_t four;
        memcpy(&four, w + k, sizeof four);
        to[0] = __sxtb16((int32_t)four);
        to[apart] = __sxtb16((int32_t)(four >> 8 | four << 24));
        sum = __smlad(to[apart], 65537, __smlad(to[0], 65537, sum));
    }
#endif
    for (; k < n; k += k % 4 == 0 ? 1 : 3, to += apart) {
        const int32_t next = k + 2 < n ? w[k + 2] : 0;
        *to = (int32_t)((uint32_t)next << 16 | ((uint32_t)w[k] & 65535u));
        sum += w[k] + next;
    }
    return sum;
}

/* Weight k of a run whose words are `apart` behind each other. */
static inline int32_t tt_few_weight(const int32_t *words, int32_t k, int32_t apart)
{
    const int32_t two = words[(k / 4 * 2 + k % 2) * apart];
    return k % 4 < 2 ? (int16_t)two : two >> 16;
}

/* 1 if a sum that begins with this bias may overflow. */
static inline uint32_t tt_is_far(int32_t bias)
{
    return (uint32_t)bias + (1u << 30) > 1u << 31 ? 1u : 0u;
}

/* A window of three by three elements is not copied: its words are made of its rows. So its elements, and the weights, have
 * an order of their own: the first and the last of every row, the middle ones of rows 0 and 2, that of row 1. */
#define TT_SQUARE 9
static inline TT_ALWAYS void tt_few_square(int8_t *to, const int8_t *from, int32_t pitch)
{
    const int8_t *const next = from + pitch, *const last = next + pitch;
    const int8_t own[TT_SQUARE] = {from[0], next[0], from[2], next[2], last[0], from[1], last[2], last[1], next[1]};
    memcpy(to, own, sizeof own);
}

/* The record of a channel: its bias less what the zero point adds to every sum, its words of weights, and of its end the
 * factor and the shift. The last shift is marked as negative; the first one has TT_FAR if a bias is near to overflow. */
#define TT_FAR 256
static inline TT_ALWAYS void tt_few_records(
    int32_t *to, const int8_t *w, int32_t n, bool square, int32_t outputs, int32_t x_zero, tt_dense_ends by)
{
    const int32_t words = tt_few_words(n);
    int32_t *const first = to + words + 2;
    uint32_t far = 0;
    for (int32_t o = 0; o < outputs; o++, w += n, to += words + 3) {
        int8_t own[TT_FEW_MOST];
        if (square) {
            tt_few_square(own, w, 3);
        }
        to[0] = (int32_t)((uint32_t)by.bias[o] - (uint32_t)(x_zero * tt_few_run(to + 1, square ? own : w, n, 1, 0)));
        to[words + 1] = tt_factor(by.multiplier[o]);
        to[words + 2] = -by.shift[o];
        far |= tt_is_far(by.bias[o]);
    }
    to[-1] = (int32_t)((uint32_t)to[-1] | 1u << 31);
    *first |= far != 0 ? TT_FAR : 0;
}

/* `count` windows of n elements, `step` behind each other, in all channels. pitch: from row to row of windows of three by
 * three; 0: a window is one run. */
TT_SHARED void tt_few_plain(int8_t *out, const int8_t *from, const int32_t *records, int32_t count, int32_t n,
    int32_t pitch, int32_t step, int32_t outputs, int32_t x_zero, int32_t zero)
{
    const int32_t words = tt_few_words(n);
    for (int32_t p = 0; p < count; p++, from += step) {
        const int32_t *own = records;
        int8_t window[TT_FEW_MOST]; /* y may lie over it */
        if (pitch > 0) {
            tt_few_square(window, from, pitch);
        } else {
            memcpy(window, from, (size_t)n);
        }
        for (int32_t o = 0; o < outputs; o++, own += words + 3) {
            int32_t sum = 0, weights = 0;
            for (int32_t k = 0; k < n; k++) {
                const int32_t weight = tt_few_weight(own + 1, k, 1);
                sum += (window[k] - x_zero) * weight;
                weights += weight;
            }
            const int32_t bias = (int32_t)((uint32_t)own[0] + (uint32_t)(x_zero * weights)), down = own[words + 2] & 255;
            *out++ = tt_requantise8_kept(sum, bias, own[words + 1], down, zero, -128, 127);
        }
    }
}

#if TT_HAS_DSP
/* The words of a window: of elements k to k + 3, or fewer at its end, in x##i and x##j; the first ones move on. */
#define TT_X_4(k, i, j)                                                                                                \
    "ldr %[x" #i "], [%[p], #" #k "]\n\tsxtb16 %[x" #j "], %[x" #i "], ror #8\n\tsxtb16 %[x" #i "], %[x" #i "]\n\t"
#define TT_X_3(k, i, j)                                                                                                \
    "ldr %[x" #i "], [%[p], #" #k " - 1]\n\tsxtb16 %[x" #j "], %[x" #i "], ror #16\n\tsxtb16 %[x" #i "], %[x" #i "], ror #8\n\t"
#define TT_X_2(k, i, j) "ldrsb %[x" #i "], [%[p], #" #k "]\n\tldrsb %[x" #j "], [%[p], #" #k " + 1]\n\t"
#define TT_X_1(k, i) "ldrsb %[x" #i "], [%[p], #" #k "]\n\t"
#define TT_FIRST_1 "ldrsb %[x0], [%[p]], %[step]\n\t"
#define TT_FIRST_2 "ldrsb %[x1], [%[p], #1]\n\t" TT_FIRST_1
#define TT_FIRST_3 "ldrsb r6, [%[p], #2]\n\t" TT_FIRST_2 "pkhbt %[x0], %[x0], r6, lsl #16\n\t"
#define TT_FIRST_4 "ldr %[x0], [%[p]], %[step]\n\tsxtb16 %[x1], %[x0], ror #8\n\tsxtb16 %[x0], %[x0]\n\t"
/* Those of three rows of three, in the order of tt_few_square. No byte before the first row or behind the last one is read. */
#define TT_FIRST_SQUARE                                                                                                \
    "ldr %[x1], [%[p], %[pitch]]\n\tldr %[x2], [%[p], #2 * %c[pitch] - 1]\n\tldr %[x0], [%[p]], %[step]\n\t"            \
    "sxtb16 %[x3], %[x0], ror #8\n\tsxtb16 %[x0], %[x0]\n\tsxtb16 %[x4], %[x1], ror #8\n\tsxtb16 %[x1], %[x1]\n\t"    \
    "sxtb16 r6, %[x2]\n\tpkhbt %[x3], %[x3], r6\n\tsxtb16 %[x2], %[x2], ror #8\n\t"
/* Those of two windows: where the second one has three elements, its word begins in the first one. */
#define TT_XX_1 "ldrsb %[x2], [%[p], %[step]]\n\tldrsb %[x0], [%[p]], %[two]\n\t"
#define TT_XX_2 "ldrsb %[x1], [%[p], #1]\n\tldrsb %[x3], [%[p], %[step] + 1]\n\t" TT_XX_1
#define TT_XX_OF(behind, second, first)                                                                                \
    "ldr %[x2], [%[p], %[step]" behind "]\n\tldr %[x0], [%[p]], %[two]\n\tsxtb16 %[x3], %[x2]" second                   \
    "\n\tsxtb16 %[x2], %[x2]" first "\n\tsxtb16 %[x1], %[x0], ror #8\n\tsxtb16 %[x0], %[x0]\n\t"
#define TT_XX_3 TT_XX_OF(" - 1", ", ror #16", ", ror #8")
#define TT_XX_4 TT_XX_OF("", ", ror #8", "")
/* The sum of a channel, in r6, from a record: bias, words, factor and shift. */
#define TT_FEW_DOT(x, w) "smlad r6, %[x" #x "], " w ", r6\n\t"
#define TT_FEW_DOTS TT_FEW_DOT(0, "r8") TT_FEW_DOT(1, "r9") TT_FEW_DOT(2, "r10") TT_FEW_DOT(3, "r11")
#define TT_W_1 "ldmia %[b]!, {r6, r8, r9, r10}\n\t" TT_FEW_DOT(0, "r8")
#define TT_W_2 "ldmia %[b]!, {r6, r8, r9, r10, r11}\n\t" TT_FEW_DOT(0, "r8") TT_FEW_DOT(1, "r9")
#define TT_W_3 "ldmia %[b]!, {r6, r8, r9, r10, r11, r12}\n\t" TT_FEW_DOT(0, "r8") TT_FEW_DOT(1, "r9") TT_FEW_DOT(2, "r10")
#define TT_W_4 "ldmia %[b]!, {r6, r8, r9, r10, r11, r12, r14}\n\t" TT_FEW_DOTS
#define TT_W_5 "ldmia %[b]!, {r6, r8, r9, r10, r11}\n\t" TT_FEW_DOTS "ldmia %[b]!, {r8, r9, r10}\n\t" TT_FEW_DOT(4, "r8")
#define TT_W_6                                                                                                         \
    "ldmia %[b]!, {r6, r8, r9, r10, r11}\n\t" TT_FEW_DOTS "ldmia %[b]!, {r8, r9, r10, r11}\n\t" TT_FEW_DOT(4, "r8")     \
        TT_FEW_DOT(5, "r9")
#define TT_WW_BEGIN "smlad %[y], %[x2], r8, r6\n\tsmlad r6, %[x0], r8, r6\n\t"
#define TT_WW_1 "ldmia %[b]!, {r6, r8, r9, r10}\n\t" TT_WW_BEGIN
#define TT_WW_2                                                                                                        \
    "ldmia %[b]!, {r6, r8, r9, r10, r11}\n\t" TT_WW_BEGIN "smlad %[y], %[x3], r9, %[y]\n\tsmlad r6, %[x1], r9, r6\n\t"
/* Its end, see tt_requantise_kept. (All code of .if counts for GCC, which then takes distances for longer than they are.) */
#define TT_FEW_END(sum, factor, down, place)                                                                           \
    "smmlar " sum ", " sum ", " factor ", " sum "\n\t.if %c[zero] + 128\n\tadd " sum ", " sum ", " sum                  \
    ", asr #31\n\t.endif\n\tasrs " sum ", " sum ", " down "\n\t.if %c[zero] < 0\n\tsbc " sum ", " sum                   \
    ", #-1 - %c[zero]\n\t.else\n\tadc " sum ", " sum ", #%c[zero]\n\t.endif\n\tssat " sum ", #8, " sum                  \
    "\n\tstrb " sum ", " place "\n\t"
#define TT_END_AT(factor, down) TT_FEW_END("r6", factor, down, "[%[out]], #1")
#define TT_CHANNEL_1 TT_W_1 TT_END_AT("r9", "r10")
#define TT_CHANNEL_2 TT_W_2 TT_END_AT("r10", "r11")
#define TT_CHANNEL_3 TT_W_3 TT_END_AT("r11", "r12")
#define TT_CHANNEL_4 TT_W_4 TT_END_AT("r12", "r14")
#define TT_CHANNEL_5 TT_W_5 TT_END_AT("r9", "r10")
#define TT_CHANNEL_6 TT_W_6 TT_END_AT("r10", "r11")
#define TT_TWO_ENDS(factor, down) TT_FEW_END("%[y]", factor, down, "[%[out], %[outputs]]") TT_END_AT(factor, down)
#define TT_CHANNEL_11 TT_WW_1 TT_TWO_ENDS("r9", "r10")
#define TT_CHANNEL_22 TT_WW_2 TT_TWO_ENDS("r10", "r11")
#define TT_LAST_1 "r10"
#define TT_LAST_2 "r11"
#define TT_LAST_3 "r12"
#define TT_LAST_4 "r14"
#define TT_LAST_5 "r10"
#define TT_LAST_6 "r11"
#define TT_LAST_11 TT_LAST_1
#define TT_LAST_22 TT_LAST_2
#define TT_X_WORD(n) [x##n] "=&r"(x##n)
#define TT_REGISTERS_1 TT_X_WORD(0), TT_X_WORD(1)
#define TT_REGISTERS_2 TT_REGISTERS_1
#define TT_REGISTERS_4 TT_REGISTERS_1, TT_X_WORD(2), TT_X_WORD(3)
#define TT_REGISTERS_3 TT_REGISTERS_4
#define TT_REGISTERS_5 TT_REGISTERS_4, TT_X_WORD(4)
#define TT_REGISTERS_6 TT_REGISTERS_5, TT_X_WORD(5)
#define TT_REGISTERS_11 TT_REGISTERS_4, [y] "=&r"(y)
#define TT_REGISTERS_22 TT_REGISTERS_11
#define TT_USES_1 "r6", "r8", "r9", "r10", "r11"
#define TT_USES_2 TT_USES_1
#define TT_USES_3 TT_USES_1, "r12"
#define TT_USES_4 TT_USES_3, "r14"
#define TT_USES_5 TT_USES_1
#define TT_USES_6 TT_USES_1
#define TT_USES_11 TT_USES_1
#define TT_USES_22 TT_USES_1
/* Windows until `end`, which is in memory, as `records` is: the first channel of an odd number, then two at a time. */
#define TT_FEW_ASM(words, load, on)                                                                                    \
    __asm__ volatile("1:\n\t" load "ldr %[b], %[records]\n\t.if %c[outputs] & 1\n\t" TT_CHANNEL_##words ".endif\n\t"      \
                     ".if %c[outputs] > 1\n2:\n\t" TT_CHANNEL_##words TT_CHANNEL_##words "cmp " TT_LAST_##words            \
                     ", #0\n\tbge 2b\n\t.endif\n\t" on "ldr %[b], %[end]\n\tcmp %[p], %[b]\n\tbne 1b"                   \
            : [p] "+&r"(from), [out] "+&r"(out), [b] "=&r"(b), TT_REGISTERS_##words                                     \
            : [records] "m"(records), [end] "m"(end), [zero] "i"(zero), [step] "i"(step), [two] "i"(2 * step),           \
            [pitch] "i"(pitch), [outputs] "i"(outputs)                                                                 \
            : TT_USES_##words, "memory", "cc")
#define TT_SKIP "add %[out], %[out], %[outputs]\n\t"
#endif

/* y of `count` windows of n elements, `step` behind each other, in all channels; pitch as for tt_few_plain. */
static inline TT_ALWAYS void tt_few_windows(int8_t *out, const int8_t *from, const int32_t *records, int32_t count,
    int32_t n, int32_t pitch, int32_t step, int32_t outputs, int32_t x_zero, int32_t zero)
{
#if TT_HAS_DSP
    if (TT_ARE_CONSTANT(n, outputs, zero) && TT_ARE_CONSTANT(step, pitch, zero) &&
        (records[tt_few_words(n) + 2] & TT_FAR) == 0) {
        uint32_t x0, x1, x2, x3, x4, x5, y;
        const int32_t *b;
        if (n <= 4 && count > 1) {
            const int8_t *const end = from + count / 2 * 2 * step;
            if (n == 1) {
                TT_FEW_ASM(11, TT_XX_1, TT_SKIP);
            } else if (n == 2) {
                TT_FEW_ASM(22, TT_XX_2, TT_SKIP);
            } else if (n == 3) {
                TT_FEW_ASM(22, TT_XX_3, TT_SKIP);
            } else {
                TT_FEW_ASM(22, TT_XX_4, TT_SKIP);
            }
        }
        if (n <= 4 && count % 2 == 0) {
            return;
        }
        const int8_t *const end = from + (n <= 4 ? 1 : count) * step;
        if (n == 1) {
            TT_FEW_ASM(1, TT_FIRST_1, "");
        } else if (n == 2) {
            TT_FEW_ASM(2, TT_FIRST_2, "");
        } else if (n == 3) {
            TT_FEW_ASM(2, TT_FIRST_3, "");
        } else if (n == 4) {
            TT_FEW_ASM(2, TT_FIRST_4, "");
        } else if (n == 5) {
            TT_FEW_ASM(3, TT_X_1(4, 2) TT_FIRST_4, "");
        } else if (n == 6) {
            TT_FEW_ASM(4, TT_X_2(4, 2, 3) TT_FIRST_4, "");
        } else if (n == 7) {
            TT_FEW_ASM(4, TT_X_3(4, 2, 3) TT_FIRST_4, "");
        } else if (n == 8) {
            TT_FEW_ASM(4, TT_X_4(4, 2, 3) TT_FIRST_4, "");
        } else if (pitch > 0) {
            TT_FEW_ASM(5, TT_FIRST_SQUARE, "");
        } else if (n == 9) {
            TT_FEW_ASM(5, TT_X_4(4, 2, 3) TT_X_1(8, 4) TT_FIRST_4, "");
        } else if (n == 10) {
            TT_FEW_ASM(6, TT_X_4(4, 2, 3) TT_X_2(8, 4, 5) TT_FIRST_4, "");
        } else if (n == 11) {
            TT_FEW_ASM(6, TT_X_4(4, 2, 3) TT_X_3(8, 4, 5) TT_FIRST_4, "");
        } else {
            TT_FEW_ASM(6, TT_X_4(4, 2, 3) TT_X_4(8, 4, 5) TT_FIRST_4, "");
        }
        return;
    }
#endif
    tt_few_plain(out, from, records, count, n, pitch, step, outputs, x_zero, zero);
}

/* ---- few channels ---------------------------------------------------------------------------------------------------- */

/* Most output channels whose sums stay in registers while a window is read, row by row, where it lies. */
#define TT_FEW_CHANNELS 7

/* The biases of all channels, less what the zero point adds; of every word of a window, row by row, the weights of all
 * channels; of each, factor and shift, the first of which has TT_FAR as above. */
static inline TT_ALWAYS void tt_sums_records(int32_t *to, const int8_t *w, int32_t rows, int32_t run, int32_t outputs,
    int32_t x_zero, tt_dense_ends by)
{
    const int32_t words = tt_few_words(run), all = rows * words;
    int32_t *const ends = to + (1 + all) * outputs;
    uint32_t far = 0;
    for (int32_t o = 0; o < outputs; o++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rows; r++, w += run) {
            sum = tt_few_run(to + (1 + r * words) * outputs + o, w, run, outputs, sum);
        }
        to[o] = (int32_t)((uint32_t)by.bias[o] - (uint32_t)(x_zero * sum));
        ends[2 * o] = tt_factor(by.multiplier[o]);
        ends[2 * o + 1] = -by.shift[o];
        far |= tt_is_far(by.bias[o]);
    }
    ends[1] |= far != 0 ? TT_FAR : 0;
}

TT_SHARED void tt_sums_plain(int8_t *out, const int8_t *from, const int32_t *records, int32_t count, int32_t rows,
    int32_t run, int32_t pitch, int32_t step, int32_t outputs, int32_t x_zero, int32_t zero)
{
    const int32_t words = tt_few_words(run);
    const int32_t *const ends = records + (1 + rows * words) * outputs;
    for (int32_t p = 0; p < count; p++, from += step, out += outputs) {
        int8_t pixel[TT_FEW_CHANNELS]; /* y may lie over the window */
        for (int32_t o = 0; o < outputs; o++) {
            int32_t sum = 0, weights = 0;
            for (int32_t r = 0; r < rows; r++) {
                for (int32_t k = 0; k < run; k++) {
                    const int32_t weight = tt_few_weight(records + (1 + r * words) * outputs + o, k, outputs);
                    sum += (from[r * pitch + k] - x_zero) * weight;
                    weights += weight;
                }
            }
            const int32_t bias = (int32_t)((uint32_t)records[o] + (uint32_t)(x_zero * weights));
            pixel[o] = tt_requantise8_kept(sum, bias, ends[2 * o], ends[2 * o + 1] & 255, zero, -128, 127);
        }
        memcpy(out, pixel, (size_t)outputs);
    }
}

#if TT_HAS_DSP
/* Sums are in r0 to r6; x and x_next are words of the window. */
#define TT_TO(sum, x, w) "smlad " sum ", %[" x "], " w ", " sum "\n\t"
#define TT_WORD_1(x) "ldr r8, [%[b]], #4\n\t" TT_TO("r0", x, "r8")
#define TT_WORD_2(x) "ldmia %[b]!, {r8, r9}\n\t" TT_TO("r0", x, "r8") TT_TO("r1", x, "r9")
#define TT_WORD_3(x) "ldmia %[b]!, {r8, r9, r10}\n\t" TT_TO("r0", x, "r8") TT_TO("r1", x, "r9") TT_TO("r2", x, "r10")
#define TT_DOTS_4(x) TT_TO("r0", x, "r8") TT_TO("r1", x, "r9") TT_TO("r2", x, "r10") TT_TO("r3", x, "r11")
#define TT_WORD_4(x) "ldmia %[b]!, {r8, r9, r10, r11}\n\t" TT_DOTS_4(x)
#define TT_WORD_5(x) "ldmia %[b]!, {r8, r9, r10, r11, r12}\n\t" TT_DOTS_4(x) TT_TO("r4", x, "r12")
#define TT_WORDS_1 "ldmia %[b]!, {r8, r9}\n\t" TT_TO("r0", "x", "r8") TT_TO("r0", "x_next", "r9")
#define TT_WORDS_2                                                                                                     \
    "ldmia %[b]!, {r8, r9, r10, r11}\n\t" TT_TO("r0", "x", "r8") TT_TO("r1", "x", "r9") TT_TO("r0", "x_next", "r10")     \
        TT_TO("r1", "x_next", "r11")
#define TT_WORDS_3                                                                                                     \
    "ldmia %[b]!, {r6, r8, r9, r10, r11, r12}\n\t" TT_TO("r0", "x", "r6") TT_TO("r1", "x", "r8") TT_TO("r2", "x", "r9")   \
        TT_TO("r0", "x_next", "r10") TT_TO("r1", "x_next", "r11") TT_TO("r2", "x_next", "r12")
#define TT_WORDS_4 TT_WORD_4("x") TT_WORD_4("x_next")
#define TT_WORDS_5 TT_WORD_5("x") TT_WORD_5("x_next")
#define TT_WORD_6(x) TT_WORD_4(x) "ldmia %[b]!, {r8, r9}\n\t" TT_TO("r4", x, "r8") TT_TO("r5", x, "r9")
#define TT_WORDS_6                                                                                                     \
    TT_WORD_4("x") "ldmia %[b]!, {r8, r9, r10, r11}\n\t" TT_TO("r4", "x", "r8") TT_TO("r5", "x", "r9")                   \
        TT_TO("r0", "x_next", "r10") TT_TO("r1", "x_next", "r11") "ldmia %[b]!, {r8, r9, r10, r11}\n\t"                \
        TT_TO("r2", "x_next", "r8") TT_TO("r3", "x_next", "r9") TT_TO("r4", "x_next", "r10") TT_TO("r5", "x_next", "r11")
#define TT_SIX_OF_7(x)                                                                                                 \
    TT_WORD_3(x) "ldmia %[b]!, {r8, r9, r10}\n\t" TT_TO("r3", x, "r8") TT_TO("r4", x, "r9") TT_TO("r5", x, "r10")
#define TT_WORD_7(x) TT_SIX_OF_7(x) "ldr r8, [%[b]], #4\n\t" TT_TO("r6", x, "r8")
#define TT_WORDS_7                                                                                                     \
    TT_SIX_OF_7("x") "ldmia %[b]!, {r8, r9, r10}\n\t" TT_TO("r6", "x", "r8") TT_TO("r0", "x_next", "r9")               \
        TT_TO("r1", "x_next", "r10") "ldmia %[b]!, {r8, r9, r10}\n\t" TT_TO("r2", "x_next", "r8")                      \
        TT_TO("r3", "x_next", "r9") TT_TO("r4", "x_next", "r10") "ldmia %[b]!, {r8, r9}\n\t"                           \
        TT_TO("r5", "x_next", "r8") TT_TO("r6", "x_next", "r9")
#define TT_BIASES_1 "ldr r0, [%[b]], #4\n\t"
#define TT_BIASES_2 "ldmia %[b]!, {r0, r1}\n\t"
#define TT_BIASES_3 "ldmia %[b]!, {r0, r1, r2}\n\t"
#define TT_BIASES_4 "ldmia %[b]!, {r0, r1, r2, r3}\n\t"
#define TT_BIASES_5 "ldmia %[b]!, {r0, r1, r2, r3, r4}\n\t"
#define TT_BIASES_6 "ldmia %[b]!, {r0, r1, r2, r3, r4, r5}\n\t"
#define TT_BIASES_7 "ldmia %[b]!, {r0, r1, r2, r3, r4, r5, r6}\n\t"
#define TT_SUM_END(sum, factor, down) TT_FEW_END(sum, factor, down, "[%[x]], #1")
#define TT_TWO_SUM_ENDS(sum, next)                                                                                     \
    "ldmia %[b]!, {r8, r9, r10, r11}\n\t" TT_SUM_END(sum, "r8", "r9") TT_SUM_END(next, "r10", "r11")
#define TT_LAST_SUM_END(sum) "ldmia %[b]!, {r8, r9}\n\t" TT_SUM_END(sum, "r8", "r9")
#define TT_SUM_ENDS_1 TT_LAST_SUM_END("r0")
#define TT_SUM_ENDS_2 TT_TWO_SUM_ENDS("r0", "r1")
#define TT_SUM_ENDS_3 TT_SUM_ENDS_2 TT_LAST_SUM_END("r2")
#define TT_SUM_ENDS_4 TT_SUM_ENDS_2 TT_TWO_SUM_ENDS("r2", "r3")
#define TT_SUM_ENDS_5 TT_SUM_ENDS_4 TT_LAST_SUM_END("r4")
#define TT_SUM_ENDS_6 TT_SUM_ENDS_4 TT_TWO_SUM_ENDS("r4", "r5")
#define TT_SUM_ENDS_7                                                                                                  \
    TT_LAST_SUM_END("r0") TT_LAST_SUM_END("r1") TT_LAST_SUM_END("r2") TT_LAST_SUM_END("r3") TT_LAST_SUM_END("r4")        \
        TT_LAST_SUM_END("r5") TT_LAST_SUM_END("r6")
#define TT_SUM_USES_1 "r0", "r8", "r9"
#define TT_SUM_USES_2 TT_SUM_USES_1, "r1", "r10", "r11"
#define TT_SUM_USES_3 TT_SUM_USES_2, "r2", "r6", "r12"
#define TT_SUM_USES_4 TT_SUM_USES_2, "r2", "r3"
#define TT_SUM_USES_5 TT_SUM_USES_4, "r4", "r12"
#define TT_SUM_USES_6 TT_SUM_USES_4, "r4", "r5"
#define TT_SUM_USES_7 "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r8", "r9", "r10"
#define TT_FOUR_ELEMENTS(outputs)                                                                                      \
    "ldr %[x], [%[p]], #4\n\tsxtb16 %[x_next], %[x], ror #8\n\tsxtb16 %[x], %[x]\n\t" TT_WORDS_##outputs
#define TT_SIXTEEN(outputs)                                                                                            \
    TT_FOUR_ELEMENTS(outputs) TT_FOUR_ELEMENTS(outputs) TT_FOUR_ELEMENTS(outputs) TT_FOUR_ELEMENTS(outputs)
/* Pixels until `end`, rows of a window until the weights' end: what is compared is in memory, since all registers have another
 * use. */
#define TT_SUMS_CODE(outputs)                                                                                          \
    __asm__ volatile("1:\n\tldr %[b], %[records]\n\t" TT_BIASES_##outputs "2:\n\t"                                         \
                     ".if %c[blocks] >= 8\n\tmov %[x], #%c[blocks] / 4\n\tstr %[x], %[turns]\n3:\n\t.endif\n\t"          \
                     ".if %c[blocks] >= 4\n\t" TT_SIXTEEN(outputs) ".endif\n\t"                                         \
                     ".if %c[blocks] >= 8\n\tldr %[x], %[turns]\n\tsubs %[x], %[x], #1\n\tstr %[x], %[turns]\n\tbne 3b\n\t" \
                     ".endif\n\t.if %c[blocks] & 2\n\t" TT_FOUR_ELEMENTS(outputs) TT_FOUR_ELEMENTS(outputs)              \
                     ".endif\n\t.if %c[blocks] & 1\n\t" TT_FOUR_ELEMENTS(outputs) ".endif\n\t"                           \
                     ".if %c[rest] == 1\n\tldrsb %[x], [%[p]]\n\t" TT_WORD_##outputs("x") ".endif\n\t"                   \
                     ".if %c[rest] == 2\n\tldrsb %[x], [%[p]]\n\tldrsb %[x_next], [%[p], #1]\n\t" TT_WORDS_##outputs     \
                     ".endif\n\t.if %c[rest] == 3\n\tldr %[x], [%[p], #-1]\n\tsxtb16 %[x_next], %[x], ror #16\n\t"        \
                     "sxtb16 %[x], %[x], ror #8\n\t" TT_WORDS_##outputs ".endif\n\t"                                    \
                     ".if %c[rows] > 1\n\tadd %[p], %[p], %[down]\n\tldr %[x], %[last]\n\tcmp %[b], %[x]\n\tbne 2b\n\t"   \
                     ".endif\n\tldr %[x], %[out]\n\t" TT_SUM_ENDS_##outputs "str %[x], %[out]\n\t"                       \
                     ".if %c[on] < 0\n\tsub %[p], %[p], #-(%c[on])\n\t.else\n\tadd %[p], %[p], %[on]\n\t.endif\n\t"      \
                     "ldr %[x], %[end]\n\tcmp %[p], %[x]\n\tbne 1b"                                                     \
            : [p] "+&r"(from), [b] "=&r"(b), [x] "=&r"(x), [x_next] "=&r"(x_next), [out] "+m"(out), [turns] "=m"(turns)   \
            : [records] "m"(records), [last] "m"(last), [end] "m"(end), [blocks] "i"(run / 4), [rest] "i"(run % 4),      \
            [rows] "i"(rows), [down] "i"(down), [on] "i"(on), [zero] "i"(zero)                                           \
            : TT_SUM_USES_##outputs, "memory", "cc")
#endif

/* y of `count` windows of `rows` rows of `run` elements, `pitch` behind each other; windows are `step` behind each other. */
static inline TT_ALWAYS void tt_sums_windows(int8_t *out, const int8_t *from, const int32_t *records, int32_t count,
    int32_t rows, int32_t run, int32_t pitch, int32_t step, int32_t outputs, int32_t x_zero, int32_t zero)
{
#if TT_HAS_DSP
    const int32_t down = pitch - run / 4 * 4, on = step - (rows > 1 ? rows * pitch : run / 4 * 4);
    const int32_t *const last = records + (1 + rows * tt_few_words(run)) * outputs;
    if (TT_ARE_CONSTANT(run, on, zero) && TT_ARE_CONSTANT(rows, down, outputs) && (last[1] & TT_FAR) == 0) {
        const int8_t *const end = from + count * step;
        const int32_t *b;
        uint32_t x, x_next, turns;
        if (outputs == 1) {
            TT_SUMS_CODE(1);
        } else if (outputs == 2) {
            TT_SUMS_CODE(2);
        } else if (outputs == 3) {
            TT_SUMS_CODE(3);
        } else if (outputs == 4) {
            TT_SUMS_CODE(4);
        } else if (outputs == 5) {
            TT_SUMS_CODE(5);
        } else if (outputs == 6) {
            TT_SUMS_CODE(6);
        } else {
            TT_SUMS_CODE(7);
        }
        return;
    }
#endif
    tt_sums_plain(out, from, records, count, rows, run, pitch, step, outputs, x_zero, zero);
}

/* A turn of a QConv with such windows, as tt_conv16 has it. held: windows that are copied together, if they do not lie in rows
 * of the image. scratch, from turn to turn: records; these windows, each in whole words; the rows of a strip. */
static inline TT_ALWAYS void tt_conv_few(int8_t *y, int32_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_conv_shape of, int32_t held, int32_t sums, tt_dense_ends by)
{
    const int32_t run = of.columns * of.channels, n = of.rows * run;
    const int32_t words = sums != 0 ? of.rows * tt_few_words(run) : tt_few_words(n);
    const int32_t slot = (n + 3) / 4 * 4, taps = of.dilation_columns > 1 ? of.columns : 1; /* runs of a row of a window */
    const int32_t pitch = ((of.wide - 1) * of.right + (of.columns - 1) * of.dilation_columns + 1) * of.channels;
    const bool in_place = of.strip == 0;
    const int32_t deep = in_place ? 0 : (of.strip - 1) * of.down + of.rows;
    const int32_t all = of.high * of.wide, most = in_place ? TT_TURN : of.strip * of.wide;
    const int32_t parts = (all + most - 1) / most, begin = turn % parts * most, line = begin / of.wide;
    const int32_t top = line * of.down - of.top, row = in_place ? of.width * of.channels : pitch;
    const int32_t on = of.right * of.channels;
    const bool runs = in_place && n == of.channels && of.right == 1; /* windows lie one after the other */
    const int32_t step = held == 0 || runs ? on : slot;
    const bool square = held == 0 && of.rows == 3;
    const int8_t *const image = x + turn / parts * of.height * of.width * of.channels;
    int8_t *const windows = (int8_t *)(scratch + (words + 3) * of.outputs), *const rows = windows + held * slot;
    int8_t *out = y + (turn / parts * all + begin) * of.outputs;
    if (turn == 0 && sums != 0) {
        tt_sums_records(scratch, w, of.rows, run, of.outputs, of.zero, by);
    } else if (turn == 0) {
        tt_few_records(scratch, w, n, square, of.outputs, of.zero, by);
    }
    for (int32_t r = 0; r < deep; r++) {
        const int32_t from = top + r * of.dilation_rows;
        const bool there = from >= 0 && from < of.height;
        tt_row8(rows + r * pitch, there ? image + from * of.width * of.channels : NULL, pitch, of);
    }
    const int32_t at = begin - line * of.wide, column = at * of.right - (in_place ? of.left : 0);
    tt_corner p = {in_place ? image + top * row + column * of.channels : rows, top, column};
    const tt_way next = {on, 0, of.right}, wrap = {of.down * row - of.wide * on, of.down, -of.wide * of.right};
    int32_t to_do = all - begin < most ? all - begin : most, in_row = of.wide - at;
    while (to_do > 0) {
        int32_t some = to_do < in_row ? to_do : in_row;
        if (sums != 0) {
            tt_sums_windows(out, p.at, scratch, some, of.rows, run, row, on, of.outputs, of.zero, by.zero);
            p = tt_behind(p, (tt_way){some * on, 0, some * of.right});
        } else if (held == 0) {
            tt_few_windows(out, p.at, scratch, some, n, square ? pitch : 0, step, of.outputs, of.zero, by.zero);
            p = tt_behind(p, (tt_way){some * on, 0, some * of.right});
        } else {
            some = some < held ? some : held;
            if (runs) {
                memcpy(windows, p.at, (size_t)(some * n));
                p = tt_behind(p, (tt_way){some * on, 0, some});
            }
            for (int32_t i = 0; !runs && i < some; i++, p = tt_behind(p, next)) {
                if (in_place) {
                    tt_window8(windows + i * slot, p, of);
                    continue;
                }
                TT_UNROLL
                for (int32_t r = 0; r < of.rows; r++) {
                    TT_UNROLL
                    for (int32_t j = 0; j < taps; j++) {
                        const int8_t *const from = p.at + r * pitch + j * of.dilation_columns * of.channels;
                        memcpy(windows + i * slot + r * run + j * (run / taps), from, (size_t)(run / taps));
                    }
                }
            }
            tt_few_windows(out, windows, scratch, some, n, 0, step, of.outputs, of.zero, by.zero);
        }
        out += some * of.outputs;
        to_do -= some;
        in_row -= some;
        if (in_row == 0) {
            p = tt_behind(p, wrap);
            in_row = of.wide;
        }
    }
}

#endif
