/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Helpers of integer kernels that make int8 of all sums of a tile, and those that compute a row of tiles. Each gives the same
 * bits on every core and on a host: where the instructions are missing, plain C does the same.
 */
#ifndef TT_DSP_TILES_H
#define TT_DSP_TILES_H

#include "tt_dsp.h"

/* The ends of a channel's two sums, see tt_requantise_kept: `ends` and `out` are moved on to the next channel. */
#if TT_HAS_DSP
#define TT_TOWARDS_ZERO(sum) "add %[s" #sum "], %[s" #sum "], %[s" #sum "], asr #31\n\t"
#define TT_UNCHANGED(sum)
#define TT_SCALE(sum, correct)                                                                                         \
    "qadd %[s" #sum "], %[s" #sum "], %[x0]\n\tsmmlar %[s" #sum "], %[s" #sum "], %[x1], %[s" #sum "]\n\t" correct(sum)
#define TT_HALVE(sum, carry)                                                                                           \
    "asrs %[s" #sum "], %[s" #sum "], %[x2]\n\t" carry " %[s" #sum "], %[s" #sum "], %[offset]\n\t"                    \
    "ssat %[s" #sum "], #8, %[s" #sum "]\n\t"
#define TT_ENDS_OF(upper, lower, correct, carry)                                                                       \
    "ldmia %[ends]!, {%[x0], %[x1], %[x2]}\n\t" TT_SCALE(upper, correct) TT_SCALE(lower, correct)                      \
        TT_HALVE(lower, carry) "strb %[s" #lower "], [%[out], %[pitch]]\n\t"                                           \
        TT_HALVE(upper, carry) "strb %[s" #upper "], [%[out]], #1\n\t"
#define TT_ENDS(correct, carry) TT_ENDS_OF(00, 10, correct, carry) TT_ENDS_OF(01, 11, correct, carry)
/* `code` with the three kinds of ends: zero is a constant, and where it is -128, negative sums give -128 anyway. */
#define TT_FOR_ZERO(code, ends_of)                                                                                              \
    do {                                                                                                               \
        if (zero == -128) {                                                                                            \
            code(ends_of(TT_UNCHANGED, "sbc"), 127);                                                                   \
        } else if (zero < 0) {                                                                                         \
            code(ends_of(TT_TOWARDS_ZERO, "sbc"), -1 - zero);                                                          \
        } else {                                                                                                       \
            code(ends_of(TT_TOWARDS_ZERO, "adc"), zero);                                                               \
        }                                                                                                              \
    } while (0)
#endif

/* What the ends of `channels` channels read: of each bias, factor and shift. */
TT_SHARED void tt_keep_ends(
    int32_t *ends, const int32_t *bias, const int32_t *multiplier, const int8_t *shift, int32_t channels)
{
    for (int32_t i = 0; i < channels; i++, ends += 3) {
        ends[0] = bias[i];
        ends[1] = tt_factor(multiplier[i]);
        ends[2] = -shift[i];
    }
}

/* tt_requantise8_kept, with the bounds of int8, of the four sums of a tile: out[i * pitch + j] of sum_ij. ends: of both
 * channels bias, factor and shift. Numbers are constants, pitch at most 4095. */
static inline TT_ALWAYS void tt_ends_2x2(int8_t *out, const int32_t *ends, int32_t sum_00, int32_t sum_01, int32_t sum_10,
    int32_t sum_11, int32_t pitch, int32_t zero)
{
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
#define TT_ONE_TILE(ends_of_tile, number)                                                                              \
    __asm__ volatile(ends_of_tile                                                                                      \
            : [s00] "+r"(sum_00), [s01] "+r"(sum_01), [s10] "+r"(sum_10), [s11] "+r"(sum_11), TT_FOUR,                 \
            [ends] "+r"(ends), [out] "+r"(out)                                                                         \
            : [pitch] "ri"(pitch), [offset] "rI"(number)                                                               \
            : "memory", "cc")
    TT_FOR_ZERO(TT_ONE_TILE, TT_ENDS);
#else
    const int8_t y_00 = tt_requantise8_kept(sum_00, ends[0], ends[1], ends[2], zero, -128, 127);
    const int8_t y_10 = tt_requantise8_kept(sum_10, ends[0], ends[1], ends[2], zero, -128, 127);
    const int8_t y_01 = tt_requantise8_kept(sum_01, ends[3], ends[4], ends[5], zero, -128, 127);
    const int8_t y_11 = tt_requantise8_kept(sum_11, ends[3], ends[4], ends[5], zero, -128, 127);
    out[0] = y_00;
    out[1] = y_01;
    out[pitch] = y_10;
    out[pitch + 1] = y_11;
#endif
}

/* Two rows for tt_dot_2x2 of elements as they are, the second `apart` behind the first; `to` is aligned to 8 bytes. */
static inline TT_ALWAYS void tt_copy_two(int16_t *to, const int16_t *from, int32_t apart, int32_t blocks)
{
#if TT_HAS_DSP
#define TT_COPY_TWO(second)                                                                                            \
    "ldrd %[x0], %[x1], [%[from]], #8\n\t" second "stmia %[to]!, {%[x0], %[x1], %[x2], %[x3]}\n\t"
#define TT_COPY_EVEN TT_COPY_TWO("ldrd %[x2], %[x3], [%[next]], #8\n\t")
#define TT_COPY_ODD TT_COPY_TWO("ldr %[x2], [%[next]], #4\n\tldr %[x3], [%[next]], #4\n\t") /* on 2 bytes only */
    const int16_t *next = from + apart;
    TT_FOUR_REGISTERS
    if (apart % 2 == 0) {
        TT_IN_TURNS(TT_COPY_EVEN, TT_LIST([from] "+&r"(from), [next] "+&r"(next)), [none] "i"(0));
    } else {
        TT_IN_TURNS(TT_COPY_ODD, TT_LIST([from] "+&r"(from), [next] "+&r"(next)), [none] "i"(0));
    }
#else
    for (int32_t i = 0; i < 4 * blocks; i++) {
        to[i / 4 * 8 + i % 4] = from[i];
        to[i / 4 * 8 + 4 + i % 4] = from[apart + i];
    }
#endif
}

/* A row of tiles: of two rows of a and 2 * tiles of b, as tt_dot_2x2 takes them (each tile's behind the last), the sums and
 * their ends. blocks: a constant, at most TT_BLOCKS. */
#define TT_BLOCKS 7
static inline TT_ALWAYS void tt_product_tiles(int8_t *out, const int32_t *ends, const int16_t *a, const int16_t *b,
    int32_t tiles, int32_t blocks, int32_t pitch, int32_t zero)
{
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
    uint32_t y, y_next;
    int32_t sum_00, sum_01, sum_10, sum_11;
    int8_t *const end = out + 2 * tiles; /* in memory: all registers have another use */
#define TT_TILES_OF(sums, ends_of_tile, number)                                                                        \
    __asm__ volatile("1:\n\t" sums "sub %[a], %[a], %[back]\n\t" ends_of_tile                                           \
                     "ldr %[x3], %[end]\n\tcmp %[out], %[x3]\n\tbne 1b"                                                 \
            : [s00] "=&r"(sum_00), [s01] "=&r"(sum_01), [s10] "=&r"(sum_10), [s11] "=&r"(sum_11), TT_PAIRS,             \
            [ends] "+r"(ends), [out] "+r"(out)                                                                          \
            : [pitch] "i"(pitch), [offset] "i"(number), [back] "i"(16 * blocks), [end] "m"(end)                         \
            : "memory", "cc")
#define TT_TILES_1(...) TT_TILES_OF(TT_FIRST_BLOCK, __VA_ARGS__)
#define TT_TILES_2(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_3(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_4(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_5(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_6(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_7(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
    if (blocks == 1) {
        TT_FOR_ZERO(TT_TILES_1, TT_ENDS);
    } else if (blocks == 2) {
        TT_FOR_ZERO(TT_TILES_2, TT_ENDS);
    } else if (blocks == 3) {
        TT_FOR_ZERO(TT_TILES_3, TT_ENDS);
    } else if (blocks == 4) {
        TT_FOR_ZERO(TT_TILES_4, TT_ENDS);
    } else if (blocks == 5) {
        TT_FOR_ZERO(TT_TILES_5, TT_ENDS);
    } else if (blocks == 6) {
        TT_FOR_ZERO(TT_TILES_6, TT_ENDS);
    } else {
        TT_FOR_ZERO(TT_TILES_7, TT_ENDS);
    }
#else
    for (int32_t i = 0; i < tiles; i++) {
        int32_t sum_00 = 0, sum_01 = 0, sum_10 = 0, sum_11 = 0;
        tt_dot_2x2(&sum_00, &sum_01, &sum_10, &sum_11, a, b + 8 * blocks * i, blocks);
        tt_ends_2x2(out + 2 * i, ends + 6 * i, sum_00, sum_01, sum_10, sum_11, pitch, zero);
    }
#endif
}

/* to[i * step] = from[i * pitch] + offset of `count` int8, a multiple of 4. */
TT_SHARED void tt_widen_column(
    int16_t *to, const int8_t *from, int32_t offset, int32_t pitch, int32_t step, int32_t count)
{
    const int32_t pitch_3 = 3 * pitch, step_3 = 3 * step;
    for (const int16_t *const end = to + step * count; to != end; to += 4 * step, from += 4 * pitch) {
        const int32_t x0 = from[0], x1 = from[pitch], x2 = from[2 * pitch], x3 = from[pitch_3];
        to[0] = (int16_t)(x0 + offset);
        to[step] = (int16_t)(x1 + offset);
        to[2 * step] = (int16_t)(x2 + offset);
        to[step_3] = (int16_t)(x3 + offset);
    }
}

/* to[i * step] = 0, `count` times. */
TT_SHARED void tt_clear_column(int16_t *to, int32_t step, int32_t count)
{
    for (; count > 0; count--, to += step) {
        *to = 0;
    }
}

#endif
