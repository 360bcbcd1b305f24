/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of integer products that read the int8 of one operand as it lies in memory. Each gives the same bits on every
 * core and on a host: where the instructions are missing, plain C does the same. */
#ifndef TT_DSP_DIRECT_H
#define TT_DSP_DIRECT_H

#include "tt_dsp_sums.h"

/* Sums of products of rows of int16, as tt_widen_two or (one row) tt_widen4 make them, and rows of int8 as they lie in
 * memory, `pitch` behind each other, 4 * blocks elements each. What is used for one or two rows is widened on the way:
 * that is less work than to store it and to load it again. tt_dot_direct adds to one sum, the others to four. */
#if TT_HAS_DSP
#define TT_SPREAD_ROW(load) load "sxtb16 %[even], %[odd]\n\tsxtb16 %[odd], %[odd], ror #8\n\t"
#define TT_FIRST_OF(rows) TT_SPREAD_ROW("ldr %[odd], [%[" #rows "]], #4\n\t")
#define TT_NEXT_OF(rows) TT_SPREAD_ROW("ldr %[odd], [%[" #rows "], %[back]]\n\t")
#define TT_PRODUCTS(sum, k, k_next)                                                                                    \
    "smlad %[s" #sum "], %[even], %[" #k "], %[s" #sum "]\n\tsmlad %[s" #sum "], %[odd], %[" #k_next "], %[s" #sum "]\n\t"
#define TT_LOAD_ONE_ROW "ldrd %[x], %[x_next], [%[a]], #8\n\t"
#define TT_DIRECT_2X2                                                                                                  \
    "ldmia %[a]!, {%[x0], %[x1], %[x2], %[x3]}\n\t" TT_FIRST_OF(b) TT_PRODUCTS(00, x0, x1) TT_PRODUCTS(10, x2, x3)     \
        TT_NEXT_OF(b) TT_PRODUCTS(01, x0, x1) TT_PRODUCTS(11, x2, x3)
#define TT_DIRECT_1X4                                                                                                  \
    TT_LOAD_ONE_ROW TT_FIRST_OF(b) TT_PRODUCTS(00, x, x_next) TT_NEXT_OF(b) TT_PRODUCTS(01, x, x_next) TT_FIRST_OF(c)  \
        TT_PRODUCTS(10, x, x_next) TT_NEXT_OF(c) TT_PRODUCTS(11, x, x_next)
#define TT_DIRECT_4X1                                                                                                  \
    "ldmia %[a]!, {%[x0], %[x1], %[x2], %[x3]}\n\t" TT_FIRST_OF(b) TT_PRODUCTS(00, x0, x1) TT_PRODUCTS(01, x2, x3)     \
        "ldmia %[a]!, {%[x0], %[x1], %[x2], %[x3]}\n\t" TT_PRODUCTS(10, x0, x1) TT_PRODUCTS(11, x2, x3)
#define TT_DIRECT_1X1 TT_LOAD_ONE_ROW TT_FIRST_OF(b) TT_PRODUCTS(00, x, x_next)
/* No operand is an input alone: nothing can share a register with what is changed before it is read, so none needs `&`,
 * with which GCC finds no registers in some functions at -Os. */
#define TT_DIRECT(block, outputs)                                                                                      \
    do {                                                                                                               \
        uint32_t even, odd;                                                                                            \
        if (blocks >= 8) {                                                                                             \
            int32_t turns = blocks / 4;                                                                                \
            __asm__ volatile("1:\n\t" block block block block "subs %[turns], #1\n\tbne 1b"                            \
                    : outputs, [even] "=r"(even), [odd] "=r"(odd), [a] "+r"(a), [b] "+r"(b), [turns] "+r"(turns)       \
                    :                                                                                                  \
                    : "memory", "cc");                                                                                 \
            blocks %= 4;                                                                                               \
        }                                                                                                              \
        for (; blocks > 0; blocks--) {                                                                                 \
            __asm__ volatile(block                                                                                     \
                    : outputs, [even] "=r"(even), [odd] "=r"(odd), [a] "+r"(a), [b] "+r"(b)                            \
                    :                                                                                                  \
                    : "memory");                                                                                       \
        }                                                                                                              \
    } while (0)
#endif
#if TT_HAS_THUMB1
#define TT_MADD(sum, x, y) "muls %[" #x "], %[" #y "]\n\tadd %[s" #sum "], %[" #x "]\n\t"
#define TT_TAKE(turn_a, turn_b, products)                                                                              \
    "ldrh %[x], [%[a]]\n\tsxth %[x], %[x]\n\tldrb %[y], [%[b]]\n\tsxtb %[y], %[y]\n\t" products                      \
        "adds %[a], #" #turn_a "\n\t" turn_b "\n\t"
#define TT_SQUARE_OF_ONE                                                                                               \
    "movs %[t], %[x]\n\t" TT_MADD(00, t, y) "ldrsb %[t], [%[b], %[p1]]\n\t" TT_MADD(01, x, t)                         \
        "ldrsh %[x], [%[a], %[p2]]\n\t" TT_MADD(10, y, x) TT_MADD(11, t, x)
#define TT_ROW_OF_ONE                                                                                                  \
    TT_MADD(00, y, x) "ldrsb %[y], [%[b], %[p1]]\n\t" TT_MADD(01, y, x) "ldrsb %[y], [%[b], %[p2]]\n\t"               \
        TT_MADD(10, y, x) "ldrsb %[y], [%[b], %[t]]\n\t" TT_MADD(11, y, x)
#define TT_COLUMN_OF_ONE                                                                                               \
    TT_MADD(00, x, y) "ldrsh %[x], [%[a], %[p1]]\n\t" TT_MADD(01, x, y) "ldrsh %[x], [%[a], %[p2]]\n\t"               \
        TT_MADD(10, x, y) "ldrsh %[x], [%[a], %[t]]\n\t" TT_MADD(11, x, y)
/* Of a block the elements 0, 2, 1 and 3 of a row of b, whose order that of a is. */
#define TT_BLOCK_OF(products, rest)                                                                                    \
    TT_TAKE(2, "adds %[b], #2", products) TT_TAKE(2, "subs %[b], #1", products)                                        \
    TT_TAKE(2, "adds %[b], #2", products) TT_TAKE(rest, "adds %[b], #1", products)
#define TT_BLOCKS_UNTIL(end_of_a, blocks, third)                                                                       \
    __asm__ volatile(".syntax unified\n1:\n\t" blocks "cmp %[a], %[end]\n\tbne 1b"                                    \
            : [s00] "+h"(*sum_00), [s01] "+h"(*sum_01), [s10] "+h"(*sum_10), [s11] "+h"(*sum_11), [a] "+&l"(a),        \
            [b] "+&l"(b), [x] "=&l"(x), [y] "=&l"(y), third                                                            \
            : [p1] "l"(p1), [p2] "l"(p2), [end] "h"(end_of_a)                                                          \
            : "memory", "cc")
#endif
static inline TT_ALWAYS void tt_dot_direct_2x2(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int8_t *b, int32_t pitch, int32_t blocks)
{
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
    int32_t back = pitch - 4;
    TT_DIRECT(TT_DIRECT_2X2, TT_LIST(TT_SUMS("+r"), TT_FOUR, [back] "+r"(back)));
#elif TT_HAS_THUMB1
    const int32_t p1 = pitch, p2 = 8;
    int32_t x, y, t;
    TT_BLOCKS_UNTIL(a + 8 * blocks, TT_BLOCK_OF(TT_SQUARE_OF_ONE, 10), [t] "=&l"(t));
#else
    const int8_t *b_1 = b + pitch;
    for (int32_t i = 0; i < blocks; i++, a += 8, b += 4, b_1 += 4) {
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            const int32_t place = (k & 1) * 2 + (k >> 1), x_0 = a[place], x_1 = a[place + 4];
            *sum_00 += x_0 * b[k];
            *sum_01 += x_0 * b_1[k];
            *sum_10 += x_1 * b[k];
            *sum_11 += x_1 * b_1[k];
        }
    }
#endif
}

static inline TT_ALWAYS void tt_dot_direct_1x4(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int8_t *b, int32_t pitch, int32_t blocks)
{
#if TT_HAS_DSP
    uint32_t x, x_next;
    const int8_t *c = b + 2 * pitch;
    int32_t back = pitch - 4;
    TT_DIRECT(TT_DIRECT_1X4,
        TT_LIST(TT_SUMS("+r"), [x] "=r"(x), [x_next] "=r"(x_next), [c] "+r"(c), [back] "+r"(back)));
#elif TT_HAS_THUMB1
    const int32_t p1 = pitch, p2 = 2 * pitch;
    int32_t x, y, t = 3 * pitch;
    TT_BLOCKS_UNTIL(a + 4 * blocks, TT_BLOCK_OF(TT_ROW_OF_ONE, 2), [t] "+&l"(t));
#else
    for (int32_t i = 0; i < blocks; i++, a += 4, b += 4) {
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            const int32_t x = a[(k & 1) * 2 + (k >> 1)];
            *sum_00 += x * b[k];
            *sum_01 += x * b[k + pitch];
            *sum_10 += x * b[k + 2 * pitch];
            *sum_11 += x * b[k + 3 * pitch];
        }
    }
#endif
}

static inline TT_ALWAYS void tt_dot_direct_4x1(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int8_t *b, int32_t pitch, int32_t blocks)
{
    (void)pitch;
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
    TT_DIRECT(TT_DIRECT_4X1, TT_LIST(TT_SUMS("+r"), TT_FOUR));
#elif TT_HAS_THUMB1
    const int32_t p1 = 8, p2 = 16;
    int32_t x, y, t = 24;
    TT_BLOCKS_UNTIL(a + 16 * blocks, TT_BLOCK_OF(TT_COLUMN_OF_ONE, 26), [t] "+&l"(t));
#else
    for (int32_t i = 0; i < blocks; i++, a += 16, b += 4) {
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            const int32_t place = (k & 1) * 2 + (k >> 1), y = b[k];
            *sum_00 += a[place] * y;
            *sum_01 += a[place + 4] * y;
            *sum_10 += a[place + 8] * y;
            *sum_11 += a[place + 12] * y;
        }
    }
#endif
}

static inline TT_ALWAYS int32_t tt_dot_direct(int32_t sum, const int16_t *a, const int8_t *b, int32_t blocks)
{
#if TT_HAS_DSP
    uint32_t x, x_next;
    TT_DIRECT(TT_DIRECT_1X1, TT_LIST([s00] "+r"(sum), [x] "=r"(x), [x_next] "=r"(x_next)));
#else
    for (int32_t i = 0; i < blocks; i++, a += 4, b += 4) {
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            sum += a[(k & 1) * 2 + (k >> 1)] * b[k];
        }
    }
#endif
    return sum;
}

/* The same of one row of int16 and four neighbouring columns of int8, whose elements are `pitch` behind each other. */
static inline TT_ALWAYS void tt_dot_columns_1x4(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int8_t *b, int32_t pitch, int32_t blocks)
{
#if TT_HAS_DSP
    int32_t s0 = *sum_00, s1 = *sum_01, s2 = *sum_10, s3 = *sum_11;
    for (const int16_t *const end = a + 4 * blocks; a < end; a += 4, b += 4 * pitch) {
        uint64_t x;
        memcpy(&x, __builtin_assume_aligned(a, 8), sizeof x);
        for (int32_t odd = 0; odd < 2; odd++) { /* rows 0 and 2, then 1 and 3: the order of a */
            const int32_t both = (int32_t)(uint32_t)(x >> 32 * odd);
            uint32_t upper, lower, pair;
            int32_t part;
            memcpy(&upper, b + odd * pitch, sizeof upper);
            memcpy(&lower, b + (odd + 2) * pitch, sizeof lower);
            /* columns 0 and 1 of both rows, then 2 and 3: the lower byte of each half, then the upper one */
            __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(pair) : "r"(upper), "r"(lower));
            __asm__("sxtb16 %0, %1" : "=r"(part) : "r"(pair));
            s0 = __smlad(part, both, s0);
            __asm__("sxtb16 %0, %1, ror #8" : "=r"(part) : "r"(pair));
            s1 = __smlad(part, both, s1);
            __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(pair) : "r"(lower), "r"(upper));
            __asm__("sxtb16 %0, %1" : "=r"(part) : "r"(pair));
            s2 = __smlad(part, both, s2);
            __asm__("sxtb16 %0, %1, ror #8" : "=r"(part) : "r"(pair));
            s3 = __smlad(part, both, s3);
        }
    }
    *sum_00 = s0;
    *sum_01 = s1;
    *sum_10 = s2;
    *sum_11 = s3;
#else
    for (int32_t i = 0; i < blocks; i++, a += 4, b += 4 * pitch) {
        TT_UNROLL
        for (int32_t k = 0; k < 4; k++) {
            const int32_t x = a[(k & 1) * 2 + (k >> 1)];
            const int8_t *const row = b + k * pitch;
            *sum_00 += x * row[0];
            *sum_01 += x * row[1];
            *sum_10 += x * row[2];
            *sum_11 += x * row[3];
        }
    }
#endif
}

#endif
