/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of integer kernels that have an instruction on some cores: sums of products of int16, and what makes int16 of
 * int8. Each gives the same bits on every core and on a host: where the instructions are missing, plain C does the same.
 */
#ifndef TT_DSP_SUMS_H
#define TT_DSP_SUMS_H

#include "tt_fixed.h"

#if TT_HAS_DSP
#include <arm_acle.h>
#endif

/* Of ascending numbers, as one instruction takes them that loads or stores all; high ones leave GCC those that short
 * instructions need (with others it finds no registers at -Os). */
#if TT_HAS_DSP
#define TT_FOUR_REGISTERS                                                                                              \
    register uint32_t x0 __asm__("r10");                                                                                \
    register uint32_t x1 __asm__("r11");                                                                                \
    register uint32_t x2 __asm__("r12");                                                                                \
    register uint32_t x3 __asm__("r14");
#define TT_FOUR [x0] "=&r"(x0), [x1] "=&r"(x1), [x2] "=&r"(x2), [x3] "=&r"(x3)
#define TT_LIST(...) __VA_ARGS__
#endif

/* acc + a[0] b[0] + ... + a[3] b[3]; a and b are aligned to 8 bytes. */
static inline int32_t tt_dot4(int32_t acc, const int16_t *a, const int16_t *b)
{
#if TT_HAS_DSP
    uint64_t x, y;
    memcpy(&x, __builtin_assume_aligned(a, 8), sizeof x);
    memcpy(&y, __builtin_assume_aligned(b, 8), sizeof y);
    acc = __smlad((int32_t)(uint32_t)x, (int32_t)(uint32_t)y, acc);
    return __smlad((int32_t)(uint32_t)(x >> 32), (int32_t)(uint32_t)(y >> 32), acc);
#else
    acc += a[0] * b[0];
    acc += a[1] * b[1];
    acc += a[2] * b[2];
    return acc + a[3] * b[3];
#endif
}

/* Armv6-M: rows 0 and 1 of a times those of b, whose sums stay in high registers, as a C compiler does not keep them: only
 * additions reach these. a runs to `end`, by as many elements as `products` has, or in blocks; b_0, b_1 and a_1 are by how
 * many bytes rows of b and row 1 of a are behind row 0 of a. (Not for -O0 and -Os: there GCC has too few registers left.) */
#if TT_HAS_THUMB1
#define TT_ONE(step)                                                                                                   \
    "ldrh %[x], [%[a]]\n\tsxth %[x], %[x]\n\tldrsh %[y], [%[a], %[b_0]]\n\t"                                         \
    "movs %[t], %[x]\n\tmuls %[t], %[y]\n\tadd %[s00], %[t]\n\t"                                                     \
    "ldrsh %[t], [%[a], %[b_1]]\n\tmuls %[x], %[t]\n\tadd %[s01], %[x]\n\t"                                          \
    "ldrsh %[x], [%[a], %[a_1]]\n\tmuls %[y], %[x]\n\tadd %[s10], %[y]\n\t"                                          \
    "muls %[t], %[x]\n\tadd %[s11], %[t]\n\tadds %[a], #" #step "\n\t"
#define TT_TWO TT_ONE(2) TT_ONE(2)
#define TT_FOUR TT_TWO TT_TWO
#define TT_FOUR_OF_BLOCK TT_TWO TT_ONE(2) TT_ONE(10)
#define TT_UNTIL(end_of_a, products)                                                                                   \
    __asm__ volatile(".syntax unified\n1:\n\t" products "cmp %[a], %[end]\n\tbne 1b"                                \
            : [s00] "+h"(*sum_00), [s01] "+h"(*sum_01), [s10] "+h"(*sum_10), [s11] "+h"(*sum_11), [a] "+&l"(a),        \
            [x] "=&l"(x), [y] "=&l"(y), [t] "=&l"(t)                                                                   \
            : [a_1] "l"(a_1), [b_0] "l"(b_0), [b_1] "l"(b_1), [end] "h"(end_of_a)                                      \
            : "memory", "cc")
#endif

/* Four sums of products of two rows of a and two rows of b, 4 * blocks elements each: sum_ij += a_i . b_j. A block is
 * four elements of row 0, then four of row 1; a and b are aligned to 8 bytes, blocks is a constant. */
#if TT_HAS_DSP
#define TT_BLOCK_WITH(first, dots)                                                                                     \
    "ldmia %[a]!, {%[x0], %[x1], %[x2], %[x3]}\n\t"                                                                    \
    "ldrd %[y], %[y_next], [%[b]], #8\n\t" first " %[s00], %[x0], %[y]" dots(00) first " %[s10], %[x2], %[y]" dots(10) \
    "smlad %[s00], %[x1], %[y_next], %[s00]\n\t"                                                                       \
    "smlad %[s10], %[x3], %[y_next], %[s10]\n\t"                                                                       \
    "ldrd %[y], %[y_next], [%[b]], #8\n\t" first " %[s01], %[x0], %[y]" dots(01) first " %[s11], %[x2], %[y]" dots(11) \
    "smlad %[s01], %[x1], %[y_next], %[s01]\n\t"                                                                       \
    "smlad %[s11], %[x3], %[y_next], %[s11]\n\t"
#define TT_ADDED(sum) ", %[s" #sum "]\n\t"
#define TT_ALONE(sum) "\n\t"
#define TT_BLOCK TT_BLOCK_WITH("smlad", TT_ADDED)
#define TT_FIRST_BLOCK TT_BLOCK_WITH("smuad", TT_ALONE)
#define TT_IS_ZERO(sum) (__builtin_constant_p(sum) && (sum) == 0)
#define TT_SUMS(kind) [s00] kind(*sum_00), [s01] kind(*sum_01), [s10] kind(*sum_10), [s11] kind(*sum_11)
#define TT_PAIRS                                                                                                       \
    TT_FOUR, [y] "=&r"(y), [y_next] "=&r"(y_next), [a] "+r"(a), [b] "+r"(b)
#define TT_WINDOWS                                                                                                     \
    [x] "=&r"(x), [x_next] "=&r"(x_next), [y] "=&r"(y), [y_next] "=&r"(y_next), [z] "=&r"(z),                          \
        [z_next] "=&r"(z_next), [a] "+r"(a), [b] "+r"(b)
#endif
static inline TT_ALWAYS void tt_dot_2x2(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int16_t *b, int32_t blocks)
{
#if TT_HAS_DSP
    /* "memory": it reads a and b; besides, what comes after is not loaded before, and kept on the stack. volatile: GCC
     * may take a block whose operands do not change out of a loop that writes what they point to. */
    TT_FOUR_REGISTERS
    uint32_t y, y_next;
    if (blocks >= 8) {
        int32_t turns = blocks / 4;
        __asm__ volatile("1:\n\t" TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK "subs %[turns], #1\n\tbne 1b"
                : TT_SUMS("+r"), TT_PAIRS, [turns] "+r"(turns)
                :
                : "memory", "cc");
        blocks %= 4;
    } else if (TT_IS_ZERO(*sum_00) && TT_IS_ZERO(*sum_01) && TT_IS_ZERO(*sum_10) && TT_IS_ZERO(*sum_11)) {
        __asm__ volatile(TT_FIRST_BLOCK : TT_SUMS("=&r"), TT_PAIRS : : "memory");
        blocks -= 1;
    }
    if (blocks >= 4) {
        __asm__ volatile(TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK : TT_SUMS("+r"), TT_PAIRS : : "memory");
        blocks -= 4;
    }
    if (blocks >= 2) {
        __asm__ volatile(TT_BLOCK TT_BLOCK : TT_SUMS("+r"), TT_PAIRS : : "memory");
        blocks -= 2;
    }
    if (blocks == 1) {
        __asm__ volatile(TT_BLOCK : TT_SUMS("+r"), TT_PAIRS : : "memory");
    }
#elif TT_HAS_THUMB1
    const uint32_t a_1 = 8, b_0 = (uint32_t)(uintptr_t)b - (uint32_t)(uintptr_t)a, b_1 = b_0 + 8u;
    int32_t x, y, t;
    TT_UNTIL(a + 8 * blocks, TT_FOUR_OF_BLOCK);
#else
    for (int32_t i = 0; i < 8 * blocks; i += 8) {
        *sum_00 = tt_dot4(*sum_00, a + i, b + i);
        *sum_01 = tt_dot4(*sum_01, a + i, b + i + 4);
        *sum_10 = tt_dot4(*sum_10, a + i + 4, b + i);
        *sum_11 = tt_dot4(*sum_11, a + i + 4, b + i + 4);
    }
#endif
}

/* The same of two rows of a and one of b, whose four elements of a block lie together. */
static inline TT_ALWAYS void tt_dot_2x1(int32_t *sum_0, int32_t *sum_1, const int16_t *a, const int16_t *b, int32_t blocks)
{
#if TT_HAS_DSP
#define TT_BLOCK_2X1_WITH(first, dots)                                                                                 \
    "ldmia %[a]!, {%[x0], %[x1], %[x2], %[x3]}\n\t"                                                                    \
    "ldrd %[y], %[y_next], [%[b]], #8\n\t" first " %[s00], %[x0], %[y]" dots(00) first " %[s10], %[x2], %[y]" dots(10) \
    "smlad %[s00], %[x1], %[y_next], %[s00]\n\tsmlad %[s10], %[x3], %[y_next], %[s10]\n\t"
#define TT_BLOCK_2X1 TT_BLOCK_2X1_WITH("smlad", TT_ADDED)
#define TT_TWO_SUMS(kind) [s00] kind(*sum_0), [s10] kind(*sum_1)
    TT_FOUR_REGISTERS
    uint32_t y, y_next;
    if (TT_IS_ZERO(*sum_0) && TT_IS_ZERO(*sum_1)) {
        __asm__ volatile(TT_BLOCK_2X1_WITH("smuad", TT_ALONE) : TT_TWO_SUMS("=&r"), TT_PAIRS : : "memory");
        blocks -= 1;
    }
    if (blocks >= 7) {
        int32_t turns = blocks / 2;
        __asm__ volatile("1:\n\t" TT_BLOCK_2X1 TT_BLOCK_2X1 "subs %[turns], #1\n\tbne 1b"
                : TT_TWO_SUMS("+r"), TT_PAIRS, [turns] "+r"(turns)
                :
                : "memory", "cc");
        blocks %= 2;
    }
    if (blocks >= 4) {
        __asm__ volatile(TT_BLOCK_2X1 TT_BLOCK_2X1 TT_BLOCK_2X1 TT_BLOCK_2X1 : TT_TWO_SUMS("+r"), TT_PAIRS : : "memory");
        blocks -= 4;
    }
    if (blocks >= 2) {
        __asm__ volatile(TT_BLOCK_2X1 TT_BLOCK_2X1 : TT_TWO_SUMS("+r"), TT_PAIRS : : "memory");
        blocks -= 2;
    }
    if (blocks == 1) {
        __asm__ volatile(TT_BLOCK_2X1 : TT_TWO_SUMS("+r"), TT_PAIRS : : "memory");
    }
#else
    for (int32_t i = 0; i < blocks; i++, a += 8, b += 4) {
        *sum_0 = tt_dot4(*sum_0, a, b);
        *sum_1 = tt_dot4(*sum_1, a + 4, b);
    }
#endif
}

/* acc + a[0] b[0] + a[1] b[1]; of any alignment. */
static inline int32_t tt_dot2(int32_t acc, const int16_t *a, const int16_t *b)
{
#if TT_HAS_DSP
    int32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return __smlad(x, y, acc);
#else
    acc += a[0] * b[0];
    return acc + a[1] * b[1];
#endif
}

/* Four sums of products of two windows of a and two of b: `rows` rows of `run` elements, an even number; sum_ij += a_i . b_j.
 * a_1 is `next` elements behind a_0, and a row of either `pitch` behind the last; b_1 is `b_next` behind b_0: behind all of
 * its rows, or rows * run, or behind every row of it, or run. a and b are aligned to 4 bytes, so pitch is even; the numbers
 * are constants, next and b_next at most 514. */
#if TT_HAS_DSP
#define TT_LOAD(other)                                                                                                 \
    "ldrd %[x], %[x_next], [%[a]], #8\n\t"                                                                             \
    "ldrd %[y], %[y_next], [%[b]], #8\n\t"                                                                             \
    "ldrd %[z], %[z_next], [%[b], %[b_1] - 8]\n\t"                                                                     \
    "smlad %[s00], %[x], %[y], %[s00]\n\tsmlad %[s01], %[x], %[z], %[s01]\n\t"                                         \
    "smlad %[s00], %[x_next], %[y_next], %[s00]\n\tsmlad %[s01], %[x_next], %[z_next], %[s01]\n\t" other               \
    "smlad %[s10], %[x], %[y], %[s10]\n\tsmlad %[s11], %[x], %[z], %[s11]\n\t"                                         \
    "smlad %[s10], %[x_next], %[y_next], %[s10]\n\tsmlad %[s11], %[x_next], %[z_next], %[s11]\n\t"
#define TT_EVEN TT_LOAD("ldrd %[x], %[x_next], [%[a], %[a_1] - 8]\n\t")
#define TT_ODD TT_LOAD("ldr %[x], [%[a], %[a_1] - 8]\n\tldr %[x_next], [%[a], %[a_1] - 4]\n\t") /* on 2 bytes only */
#define TT_PAIR                                                                                                        \
    "ldr %[x], [%[a]], #4\n\tldr %[y], [%[b]], #4\n\tldr %[z], [%[b], %[b_1] - 4]\n\t"                                \
    "ldr %[x_next], [%[a], %[a_1] - 4]\n\t"                                                                            \
    "smlad %[s00], %[x], %[y], %[s00]\n\tsmlad %[s01], %[x], %[z], %[s01]\n\t"                                         \
    "smlad %[s10], %[x_next], %[y], %[s10]\n\tsmlad %[s11], %[x_next], %[z], %[s11]\n\t"
#define TT_DO(block)                                                                                                   \
    __asm__ volatile(block : TT_SUMS("+r"), TT_WINDOWS : [a_1] "i"(2 * next), [b_1] "i"(2 * b_next) : "memory")
#endif
static inline TT_ALWAYS void tt_dot_windows(int32_t *sum_00, int32_t *sum_01, int32_t *sum_10, int32_t *sum_11,
    const int16_t *a, const int16_t *b, int32_t rows, int32_t run, int32_t pitch, int32_t next, int32_t b_next)
{
    const int32_t b_pitch = b_next == run ? 2 * run : run;
#if TT_HAS_DSP
    uint32_t x, x_next, y, y_next, z, z_next;
    for (int32_t row = 0; row < rows; row++) {
        for (int32_t turns = run / 8; turns > 0; turns--) {
            if (next % 2 == 0) {
                TT_DO(TT_EVEN TT_EVEN);
            } else {
                TT_DO(TT_ODD TT_ODD);
            }
        }
        if (run % 8 >= 4) {
            if (next % 2 == 0) {
                TT_DO(TT_EVEN);
            } else {
                TT_DO(TT_ODD);
            }
        }
        if (run % 4 == 2) {
            TT_DO(TT_PAIR);
        }
        a += pitch - run;
        b += b_pitch - run;
    }
#elif TT_HAS_THUMB1
    const uint32_t a_1 = 2u * (uint32_t)next;
    uint32_t b_0 = (uint32_t)(uintptr_t)b - (uint32_t)(uintptr_t)a, b_1 = b_0 + 2u * (uint32_t)b_next;
    int32_t x, y, t;
    for (int32_t row = 0; row < rows; row++) {
        if (run % 4 == 0) {
            TT_UNTIL(a + run, TT_FOUR);
        } else {
            TT_UNTIL(a + run, TT_TWO);
        }
        a += pitch - run;
        b_0 -= 2u * (uint32_t)(pitch - b_pitch);
        b_1 -= 2u * (uint32_t)(pitch - b_pitch);
    }
#else
    for (int32_t row = 0; row < rows; row++) {
        const int16_t *const a_row = a + row * pitch;
        const int16_t *const b_row = b + row * b_pitch;
        TT_UNROLL
        for (int32_t k = 0; k < run; k += 2) {
            *sum_00 = tt_dot2(*sum_00, a_row + k, b_row + k);
            *sum_01 = tt_dot2(*sum_01, a_row + k, b_row + b_next + k);
            *sum_10 = tt_dot2(*sum_10, a_row + next + k, b_row + k);
            *sum_11 = tt_dot2(*sum_11, a_row + next + k, b_row + b_next + k);
        }
    }
#endif
}

/* to = {from[0], from[2], from[1], from[3]}, each plus offset: the order in which two instructions widen four bytes; `to` is
 * aligned to 8 bytes. */
static inline void tt_widen4(int16_t *to, const int8_t *from, int32_t offset)
{
#if TT_HAS_DSP
    const uint32_t both = (uint32_t)offset << 16 | ((uint32_t)offset & 0xffffu);
    uint32_t bytes, even, odd;
    memcpy(&bytes, from, sizeof bytes);
    __asm__("sxtab16 %0, %1, %2" : "=r"(even) : "r"(both), "r"(bytes));
    __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(odd) : "r"(both), "r"(bytes));
    const uint64_t all = (uint64_t)odd << 32 | even;
    memcpy(__builtin_assume_aligned(to, 8), &all, sizeof all);
#else
    to[0] = (int16_t)(from[0] + offset);
    to[1] = (int16_t)(from[2] + offset);
    to[2] = (int16_t)(from[1] + offset);
    to[3] = (int16_t)(from[3] + offset);
#endif
}

/* The same for a column: of from[0], from[pitch], from[2 * pitch] and from[3 * pitch]. */
static inline void tt_gather4(int16_t *to, const int8_t *from, int32_t pitch, int32_t offset)
{
#if TT_HAS_DSP
    uint32_t even, odd;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(even) : "r"(from[0] + offset), "r"(from[2 * pitch] + offset));
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(odd) : "r"(from[pitch] + offset), "r"(from[3 * pitch] + offset));
    const uint64_t all = (uint64_t)odd << 32 | even;
    memcpy(__builtin_assume_aligned(to, 8), &all, sizeof all);
#else
    to[0] = (int16_t)(from[0] + offset);
    to[1] = (int16_t)(from[2 * pitch] + offset);
    to[2] = (int16_t)(from[pitch] + offset);
    to[3] = (int16_t)(from[3 * pitch] + offset);
#endif
}

/* Where two rows go on. */
typedef struct tt_two_rows {
    int16_t *to;
    const int8_t *from, *next;
} tt_two_rows;

/* Two rows for tt_dot_2x2: of four elements of each in turn, what tt_widen4 gives. */
#if TT_HAS_DSP
#define TT_WIDEN_TWO                                                                                                   \
    "ldr %[x0], [%[from]], #4\n\tldr %[x2], [%[next]], #4\n\t" TT_SPREAD(0, 1) TT_SPREAD(2, 3) TT_STORE_FOUR
#define TT_GATHER_TWO                                                                                                  \
    "ldrh %[x0], [%[from]]\n\tldrh %[x2], [%[from], %[pitch], lsl #1]\n\t"                                             \
    "ldrh %[x1], [%[from], %[pitch]]\n\tldrh %[x3], [%[from], %[thrice]]\n\t"                                          \
    "add %[from], %[from], %[pitch], lsl #2\n\t"                                                                       \
    "pkhbt %[x0], %[x0], %[x2], lsl #16\n\tpkhbt %[x1], %[x1], %[x3], lsl #16\n\t" TT_SPREAD(0, 2) TT_SPREAD(1, 3)      \
        TT_STORE_FOUR
#define TT_SPREAD(even, odd)                                                                                           \
    "sxtab16 %[x" #odd "], %[both], %[x" #even "], ror #8\n\tsxtab16 %[x" #even "], %[both], %[x" #even "]\n\t"
/* Operands that are changed share no register with one that happens to have the same value: +&. */
#define TT_STORE_FOUR "stmia %[to]!, {%[x0], %[x1], %[x2], %[x3]}\n\t"
#define TT_IS_ONE(number) (__builtin_constant_p(number) && (number) == 1)
#define TT_IN_TURNS(block, outputs, inputs)                                                                            \
    do {                                                                                                               \
        if (TT_IS_ONE(blocks / 2)) {                                                                                   \
            __asm__ volatile(block block : TT_FOUR, outputs, [to] "+&r"(to) : inputs : "memory");                      \
        } else if (blocks >= 2) {                                                                                      \
            int32_t turns = blocks / 2;                                                                                \
            __asm__ volatile("1:\n\t" block block "subs %[turns], #1\n\tbne 1b"                                        \
                    : TT_FOUR, outputs, [to] "+&r"(to), [turns] "+&r"(turns)                                           \
                    : inputs                                                                                           \
                    : "memory", "cc");                                                                                 \
        }                                                                                                              \
        if (blocks % 2 == 1) {                                                                                         \
            __asm__ volatile(block : TT_FOUR, outputs, [to] "+&r"(to) : inputs : "memory");                            \
        }                                                                                                              \
    } while (0)
#endif
static inline TT_ALWAYS tt_two_rows tt_widen_both(
    int16_t *to, const int8_t *from, const int8_t *next, int32_t offset, int32_t blocks)
{
#if TT_HAS_DSP
    const uint32_t both = (uint32_t)offset << 16 | ((uint32_t)offset & 0xffffu);
    TT_FOUR_REGISTERS
    TT_IN_TURNS(TT_WIDEN_TWO, TT_LIST([from] "+r"(from), [next] "+r"(next)), [both] "r"(both));
#else
    for (int32_t i = 0; i < blocks; i++, to += 8, from += 4, next += 4) {
        tt_widen4(to, from, offset);
        tt_widen4(to + 4, next, offset);
    }
#endif
    return (tt_two_rows){to, from, next};
}

/* The same if the second row is `pitch` behind the first. */
static inline TT_ALWAYS void tt_widen_two(
    int16_t *to, const int8_t *from, int32_t pitch, int32_t offset, int32_t blocks)
{
    (void)tt_widen_both(to, from, from + pitch, offset, blocks);
}

/* Two neighbouring columns for tt_dot_2x2: of four elements of each in turn, what tt_gather4 gives. */
static inline TT_ALWAYS void tt_gather_two(
    int16_t *to, const int8_t *from, int32_t pitch, int32_t offset, int32_t blocks)
{
#if TT_HAS_DSP
    const uint32_t both = (uint32_t)offset << 16 | ((uint32_t)offset & 0xffffu);
    TT_FOUR_REGISTERS
    TT_IN_TURNS(TT_GATHER_TWO, [from] "+&r"(from),
        TT_LIST([both] "r"(both), [pitch] "r"(pitch), [thrice] "r"(3 * pitch)));
#else
    for (int32_t i = 0; i < blocks; i++) {
        tt_gather4(to + 8 * i, from + 4 * i * pitch, pitch, offset);
        tt_gather4(to + 8 * i + 4, from + 4 * i * pitch + 1, pitch, offset);
    }
#endif
}

/* Four sums of neighbouring columns of int8 over `rows` rows, `pitch` behind each other; in halves of words, as long as
 * these cannot overflow. */
static inline TT_ALWAYS void tt_sum_columns(int32_t *sum_0, int32_t *sum_1, int32_t *sum_2, int32_t *sum_3,
    const int8_t *from, int32_t rows, int32_t pitch)
{
#if TT_HAS_DSP
    while (rows > 0) {
        uint32_t even = 0, odd = 0;
        int32_t some = rows < 255 ? rows : 255;
        rows -= some;
        for (; some > 0; some--, from += pitch) {
            uint32_t four;
            memcpy(&four, from, sizeof four);
            __asm__("sxtab16 %0, %0, %1" : "+r"(even) : "r"(four));
            __asm__("sxtab16 %0, %0, %1, ror #8" : "+r"(odd) : "r"(four));
        }
        *sum_0 += (int16_t)even;
        *sum_1 += (int16_t)odd;
        *sum_2 += (int32_t)even >> 16;
        *sum_3 += (int32_t)odd >> 16;
    }
#else
    for (int32_t i = 0; i < rows; i++, from += pitch) {
        *sum_0 += from[0];
        *sum_1 += from[1];
        *sum_2 += from[2];
        *sum_3 += from[3];
    }
#endif
}

#endif
