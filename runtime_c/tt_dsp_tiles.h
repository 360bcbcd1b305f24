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

/* The same of the two sums of one channel. */
static inline TT_ALWAYS void tt_ends_2x1(
    int8_t *out, const int32_t *ends, int32_t sum_00, int32_t sum_10, int32_t pitch, int32_t zero)
{
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
#define TT_HALF_TILE(ends_of_tile, number)                                                                             \
    __asm__ volatile(ends_of_tile                                                                                      \
            : [s00] "+r"(sum_00), [s10] "+r"(sum_10), TT_FOUR, [ends] "+r"(ends), [out] "+r"(out)                      \
            : [pitch] "ri"(pitch), [offset] "rI"(number)                                                               \
            : "memory", "cc")
#define TT_HALF_ENDS(correct, carry) TT_ENDS_OF(00, 10, correct, carry)
    TT_FOR_ZERO(TT_HALF_TILE, TT_HALF_ENDS);
#else
    const int8_t y_00 = tt_requantise8_kept(sum_00, ends[0], ends[1], ends[2], zero, -128, 127);
    const int8_t y_10 = tt_requantise8_kept(sum_10, ends[0], ends[1], ends[2], zero, -128, 127);
    out[0] = y_00;
    out[pitch] = y_10;
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

/* Where a row of tiles goes on. */
typedef struct tt_tile_row {
    int8_t *out;
    const int32_t *ends;
    const int16_t *b;
} tt_tile_row;

/* A row of tiles: of two rows of a and 2 * tiles of b, as tt_dot_2x2 takes them (each tile's behind the last), the sums and
 * their ends. blocks: a constant, at most TT_BLOCKS; with more than TT_STRAIGHT, sums are a loop. */
#define TT_STRAIGHT 7
#define TT_BLOCKS 64
static inline TT_ALWAYS tt_tile_row tt_product_tiles(int8_t *out, const int32_t *ends, const int16_t *a, const int16_t *b,
    int32_t tiles, int32_t blocks, int32_t pitch, int32_t zero)
{
#if TT_HAS_DSP
    TT_FOUR_REGISTERS
    uint32_t y, y_next;
    int32_t sum_00, sum_01, sum_10, sum_11;
    int8_t *const end = out + 2 * tiles; /* in memory, as `start` and `stop`: all registers have another use */
    const int16_t *const start = a, *const stop = a + 8 * blocks;
#define TT_TILES_WITH(sums, ends_of_tile, number, ...)                                                                 \
    __asm__ volatile("1:\n\t" sums ends_of_tile "ldr %[x3], %[end]\n\tcmp %[out], %[x3]\n\tbne 1b"                    \
            : [s00] "=&r"(sum_00), [s01] "=&r"(sum_01), [s10] "=&r"(sum_10), [s11] "=&r"(sum_11), TT_PAIRS,             \
            [ends] "+r"(ends), [out] "+r"(out)                                                                          \
            : [pitch] "i"(pitch), [offset] "i"(number), [end] "m"(end), __VA_ARGS__                                     \
            : "memory", "cc")
#define TT_TILES_OF(sums, ends_of_tile, number)                                                                        \
    TT_TILES_WITH(sums "sub %[a], %[a], %[back]\n\t", ends_of_tile, number, [back] "i"(16 * blocks))
#define TT_LONG_OF(sums, ends_of_tile, number)                                                                         \
    TT_TILES_WITH(sums "2:\n\t" TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK "ldr %[x3], %[stop]\n\tcmp %[a], %[x3]\n\tbne 2b\n\t" \
        "ldr %[a], %[start]\n\t", ends_of_tile, number, [start] "m"(start), [stop] "m"(stop))
#define TT_TILES_1(...) TT_TILES_OF(TT_FIRST_BLOCK, __VA_ARGS__)
#define TT_TILES_2(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_3(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_4(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_5(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_6(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_TILES_7(...) TT_TILES_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_LONG_1(...) TT_LONG_OF(TT_FIRST_BLOCK, __VA_ARGS__)
#define TT_LONG_2(...) TT_LONG_OF(TT_FIRST_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_LONG_3(...) TT_LONG_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
#define TT_LONG_4(...) TT_LONG_OF(TT_FIRST_BLOCK TT_BLOCK TT_BLOCK TT_BLOCK, __VA_ARGS__)
    if (blocks > TT_STRAIGHT && blocks % 4 == 1) {
        TT_FOR_ZERO(TT_LONG_1, TT_ENDS);
    } else if (blocks > TT_STRAIGHT && blocks % 4 == 2) {
        TT_FOR_ZERO(TT_LONG_2, TT_ENDS);
    } else if (blocks > TT_STRAIGHT && blocks % 4 == 3) {
        TT_FOR_ZERO(TT_LONG_3, TT_ENDS);
    } else if (blocks > TT_STRAIGHT) {
        TT_FOR_ZERO(TT_LONG_4, TT_ENDS);
    } else if (blocks == 1) {
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
    out += 2 * tiles;
    ends += 6 * tiles;
    b += 8 * blocks * tiles;
#endif
    return (tt_tile_row){out, ends, b};
}

/* Such a row of any number of channels, with sums of any length: the four elements of a block of b lie together if it is of
 * an odd channel at the end. Long sums have shorter turns in C, and not all levels of optimisation see constants here. */
#ifdef __GNUC__
#define TT_ARE_CONSTANT(a, b, c) (__builtin_constant_p(a) && __builtin_constant_p(b) && __builtin_constant_p(c))
#else
#define TT_ARE_CONSTANT(a, b, c) false
#endif
static inline TT_ALWAYS void tt_product_row(int8_t *out, const int32_t *ends, const int16_t *a, const int16_t *b,
    int32_t channels, int32_t blocks, int32_t pitch, int32_t zero)
{
    tt_tile_row row = {out, ends, b};
    if (TT_ARE_CONSTANT(blocks, pitch, zero) && blocks <= TT_BLOCKS) {
        if (channels > 1) {
            row = tt_product_tiles(out, ends, a, b, channels / 2, blocks, pitch, zero);
        }
    } else {
        for (int32_t i = 1; i < channels; i += 2) {
            int32_t sum_00 = 0, sum_01 = 0, sum_10 = 0, sum_11 = 0;
            tt_dot_2x2(&sum_00, &sum_01, &sum_10, &sum_11, a, row.b, blocks);
            tt_ends_2x2(row.out, row.ends, sum_00, sum_01, sum_10, sum_11, pitch, zero);
            row = (tt_tile_row){row.out + 2, row.ends + 6, row.b + 8 * blocks};
        }
    }
    if (channels % 2 == 1) {
        int32_t sum_0 = 0, sum_1 = 0;
        tt_dot_2x1(&sum_0, &sum_1, a, row.b, blocks);
        tt_ends_2x1(row.out, row.ends, sum_0, sum_1, pitch, zero);
    }
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
