/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Depthwise 3x3 convolutions in steps of one, dilated or not, of maps of any size. The same bits on every core and on a host:
 * where the instructions are missing, plain C does the same.
 */
#ifndef TT_DEPTHWISE_H
#define TT_DEPTHWISE_H

#include "tt_dense.h"
#include "tt_dsp_tiles.h"

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* An axis of a channel's maps: elements of the image and of the output, how far neighbours are apart in memory, elements of
 * the border in front, and the interleaved maps that dilation makes of the axis. */
typedef struct tt_axis {
    int32_t in, out, in_step, out_step, pad, maps;
} tt_axis;

static inline TT_ALWAYS tt_axis tt_axis_of(
    int32_t in, int32_t out, int32_t in_step, int32_t out_step, int32_t pad, int32_t maps)
{
    return (tt_axis){in, out, in_step, out_step, pad, maps};
}

/* What an interleaved map has of an axis: elements of the output, of the border in front, and of the image, and the first of
 * these. */
typedef struct tt_axis_part {
    int32_t out, border, in, from;
} tt_axis_part;

static inline TT_ALWAYS tt_axis_part tt_axis_part_of(tt_axis axis, int32_t map)
{
    const int32_t border = (axis.pad - map + axis.maps - 1) / axis.maps, from = map - axis.pad + border * axis.maps;
    const int32_t out = (axis.out - map + axis.maps - 1) / axis.maps;
    return (tt_axis_part){out, border, from < axis.in ? (axis.in - from + axis.maps - 1) / axis.maps : 0, from};
}

/* Whether all maps of an axis have the same border. */
static inline TT_ALWAYS bool tt_is_even(tt_axis axis)
{
    return axis.maps == 1 || (axis.pad % axis.maps == 0 && axis.in % axis.maps == 0);
}

/* to[i * step + r * next] = from[i * pitch + r * line] + offset for i < count, r < rows. */
TT_SHARED void tt_widen_cells(int16_t *to, const int8_t *from, int32_t offset, int32_t pitch, int32_t line, int32_t step,
    int32_t next, int32_t count, int32_t rows)
{
    const int32_t pitch_3 = 3 * pitch, step_3 = 3 * step;
    for (const int16_t *const behind = to + rows * next; to < behind; to += next, from += line) {
        int16_t *cell = to;
        const int8_t *x = from;
        for (const int16_t *const end = cell + count / 4 * 4 * step; cell != end; cell += 4 * step, x += 4 * pitch) {
#if TT_HAS_DSP
            int32_t x0, x1, x2, x3; /* in C, two of the distances are not in registers */
            __asm__ volatile("ldrsb %[x0], [%[x]]\n\tldrsb %[x1], [%[x], %[pitch]]\n\tldrsb %[x2], [%[x], %[pitch], lsl #1]\n\t"
                    "ldrsb %[x3], [%[x], %[pitch_3]]\n\tadd %[x0], %[x0], %[offset]\n\tadd %[x1], %[x1], %[offset]\n\t"
                    "add %[x2], %[x2], %[offset]\n\tadd %[x3], %[x3], %[offset]\n\tstrh %[x0], [%[cell]]\n\t"
                    "strh %[x1], [%[cell], %[step]]\n\tstrh %[x2], [%[cell], %[step], lsl #1]\n\t"
                    "strh %[x3], [%[cell], %[step_3]]"
                : [x0] "=&r"(x0), [x1] "=&r"(x1), [x2] "=&r"(x2), [x3] "=&r"(x3)
                : [x] "r"(x), [pitch] "r"(pitch), [pitch_3] "r"(pitch_3), [offset] "r"(offset), [cell] "r"(cell),
                [step] "r"(2 * step), [step_3] "r"(2 * step_3)
                : "memory");
#else
            const int32_t x0 = x[0], x1 = x[pitch], x2 = x[2 * pitch], x3 = x[pitch_3];
            cell[0] = (int16_t)(x0 + offset);
            cell[step] = (int16_t)(x1 + offset);
            cell[2 * step] = (int16_t)(x2 + offset);
            cell[step_3] = (int16_t)(x3 + offset);
#endif
        }
        if (count % 4 >= 2) {
            const int32_t x0 = x[0], x1 = x[pitch];
            cell[0] = (int16_t)(x0 + offset);
            cell[step] = (int16_t)(x1 + offset);
            cell += 2 * step;
            x += 2 * pitch;
        }
        if (count % 2 != 0) {
            *cell = (int16_t)(*x + offset);
        }
    }
}

/* `wide` columns of `step` elements become 0, but for columns left to right and rows low to high. */
TT_SHARED void tt_clear_cells(
    int16_t *to, int32_t step, int32_t wide, int32_t left, int32_t right, int32_t low, int32_t high)
{
    int16_t *const last = to + right * step;
    memset(to, 0, 2 * (size_t)(left * step));
    memset(last, 0, 2 * (size_t)((wide - right) * step));
    for (int32_t r = low > 0 ? 0 : high; r < step; r = r + 1 == low ? high : r + 1) {
        for (int16_t *cell = to + left * step + r; cell < last; cell += step) {
            *cell = 0;
        }
    }
}

/* ---- two rows and two columns of the output ---------------------------------------------------------------------- */

/* What a channel's sums are computed from. Two rows are a word: of each column of taps, t has the first two and u the last
 * two. */
typedef struct tt_taps3 {
    uint32_t t[3], u[3];
    int32_t bias, factor, down;
} tt_taps3;

/* tap: weights from a row of taps to the next, 3 or 1; its columns are 4 - tap apart. */
static inline TT_ALWAYS tt_taps3 tt_taps3_of(const int8_t *w, int32_t tap, int32_t bias, int32_t multiplier, int32_t shift)
{
    tt_taps3 taps = {{0, 0, 0}, {0, 0, 0}, bias, tt_factor(multiplier), -shift};
    TT_UNROLL
    for (int32_t s = 0; s < 3; s++) {
        const int8_t *const column = w + s * (4 - tap);
        taps.t[s] = ((uint32_t)column[0] & 65535u) | (uint32_t)column[tap] << 16;
        taps.u[s] = ((uint32_t)column[tap] & 65535u) | (uint32_t)column[2 * tap] << 16;
    }
    return taps;
}

#if TT_HAS_DSP
/* Of a column of four rows, x has the first two and y the others. */
#define TT_UPPER_OF(sum, tap)                                                                                          \
    "smlad %[s" #sum "], %[x], %[t" #tap "], %[s" #sum "]\n\tsmlabt %[s" #sum "], %[y], %[u" #tap "], %[s" #sum "]\n\t"
#define TT_LOWER_OF(sum, tap)                                                                                          \
    "smlatb %[s" #sum "], %[x], %[t" #tap "], %[s" #sum "]\n\tsmlad %[s" #sum "], %[y], %[u" #tap "], %[s" #sum "]\n\t"
#define TT_FIRST_UPPER_OF(sum)                                                                                         \
    "smuad %[s" #sum "], %[x], %[t0]\n\tsmlabt %[s" #sum "], %[y], %[u0], %[s" #sum "]\n\t"
#define TT_FIRST_LOWER_OF(sum)                                                                                         \
    "smultb %[s" #sum "], %[x], %[t0]\n\tsmlad %[s" #sum "], %[y], %[u0], %[s" #sum "]\n\t"
#define TT_NEXT_COLUMNS(upper, lower, tap) TT_UPPER_OF(upper, tap) TT_LOWER_OF(lower, tap)
#define TT_FIRST_COLUMN(upper, lower) TT_FIRST_UPPER_OF(upper) TT_FIRST_LOWER_OF(lower)
#define TT_DEPTHWISE_SUMS                                                                                              \
    "ldrd %[x], %[y], [%[a]], %[step]\n\t" TT_FIRST_COLUMN(00, 10)                                                        \
    "ldrd %[x], %[y], [%[a]], %[step]\n\t" TT_NEXT_COLUMNS(00, 10, 1) TT_FIRST_COLUMN(01, 11)                                  \
    "ldrd %[x], %[y], [%[a]]\n\t" TT_NEXT_COLUMNS(00, 10, 2) TT_NEXT_COLUMNS(01, 11, 1)                                         \
    "ldrd %[x], %[y], [%[a], %[step]]\n\t" TT_NEXT_COLUMNS(01, 11, 2)
#define TT_UPPER_SUMS                                                                                                  \
    "ldrd %[x], %[y], [%[a]], %[step]\n\t" TT_FIRST_UPPER_OF(00)                                                      \
    "ldrd %[x], %[y], [%[a]], %[step]\n\t" TT_UPPER_OF(00, 1) TT_FIRST_UPPER_OF(01)                                   \
    "ldrd %[x], %[y], [%[a]]\n\t" TT_UPPER_OF(00, 2) TT_UPPER_OF(01, 1)                                               \
    "ldrd %[x], %[y], [%[a], %[step]]\n\t" TT_UPPER_OF(01, 2)
/* Of one column: of two rows, or of one. The last load moves on by `on`. */
#define TT_COLUMN_SUMS(upper, lower, on)                                                                               \
    "ldrd %[x], %[y], [%[a]], %[gap]\n\t" TT_FIRST_COLUMN(upper, lower)                                                \
    "ldrd %[x], %[y], [%[a]], %[gap]\n\t" TT_NEXT_COLUMNS(upper, lower, 1)                                             \
    "ldrd %[x], %[y], [%[a]]" on "\n\t" TT_NEXT_COLUMNS(upper, lower, 2)
#define TT_HALF_COLUMN_SUMS(upper)                                                                                     \
    "ldrd %[x], %[y], [%[a]], %[gap]\n\t" TT_FIRST_UPPER_OF(upper)                                                     \
    "ldrd %[x], %[y], [%[a]], %[gap]\n\t" TT_UPPER_OF(upper, 1)                                                        \
    "ldrd %[x], %[y], [%[a]], %[back]\n\t" TT_UPPER_OF(upper, 2)
/* Columns whose taps are apart read other pixels than their neighbours. */
#define TT_APART_SUMS TT_COLUMN_SUMS(00, 10, ", %[back]") TT_COLUMN_SUMS(01, 11, ", %[back]")
#define TT_APART_UPPER_SUMS TT_HALF_COLUMN_SUMS(00) TT_HALF_COLUMN_SUMS(01)
#define TT_LAST_SUMS TT_COLUMN_SUMS(00, 10, "")
#define TT_WITH_BIAS(sum) "qadd %[s" #sum "], %[s" #sum "], %[x]\n\t"
#define TT_TIMES(sum, correct) "smmlar %[s" #sum "], %[s" #sum "], %[x], %[s" #sum "]\n\t" correct(sum)
#define TT_STORED(sum, carry, place)                                                                                   \
    "asrs %[s" #sum "], %[s" #sum "], %[x]\n\t" carry " %[s" #sum "], %[s" #sum "], %[offset]\n\t"                     \
    "ssat %[s" #sum "], #8, %[s" #sum "]\n\tstrb %[s" #sum "], [%[out], " place "]\n\t"
#define TT_SCALED_4(correct)                                                                                           \
    "ldr %[x], %[bias]\n\t" TT_WITH_BIAS(00) TT_WITH_BIAS(01) TT_WITH_BIAS(10) TT_WITH_BIAS(11)                       \
    "ldr %[x], %[factor]\n\t" TT_TIMES(00, correct) TT_TIMES(01, correct) TT_TIMES(10, correct) TT_TIMES(11, correct)  \
    "ldr %[x], %[down]\n\t"
#define TT_DEPTHWISE_ENDS(correct, carry)                                                                              \
    TT_SCALED_4(correct) TT_STORED(01, carry, "%[next]") TT_STORED(10, carry, "%[pitch]")                              \
    TT_STORED(11, carry, "%[last]") TT_STORED(00, carry, "#0")
/* The same of rows that are more than an offset apart. */
#define TT_FAR_ENDS(correct, carry)                                                                                    \
    TT_SCALED_4(correct) TT_STORED(01, carry, "%[next]") TT_STORED(00, carry, "#0")                                    \
    "ldr %[y], %[pitch]\n\t" TT_STORED(10, carry, "%[y]") "add %[y], %[y], %[next]\n\t" TT_STORED(11, carry, "%[y]")
#define TT_LAST_SCALED(correct, carry)                                                                                      \
    "ldr %[x], %[bias]\n\t" TT_WITH_BIAS(00) TT_WITH_BIAS(10) "ldr %[x], %[factor]\n\t" TT_TIMES(00, correct)         \
    TT_TIMES(10, correct) "ldr %[x], %[down]\n\t" TT_STORED(00, carry, "#0")
#define TT_LAST_ENDS(correct, carry) TT_LAST_SCALED(correct, carry) TT_STORED(10, carry, "%[pitch]")
#define TT_FAR_LAST_ENDS(correct, carry)                                                                               \
    TT_LAST_SCALED(correct, carry) "ldr %[y], %[pitch]\n\t" TT_STORED(10, carry, "%[y]")
#define TT_UPPER_ENDS(correct, carry)                                                                                  \
    "ldr %[x], %[bias]\n\t" TT_WITH_BIAS(00) TT_WITH_BIAS(01) "ldr %[x], %[factor]\n\t" TT_TIMES(00, correct)         \
    TT_TIMES(01, correct) "ldr %[x], %[down]\n\t" TT_STORED(01, carry, "%[next]") TT_STORED(00, carry, "#0")
/* Tiles up to the end of a row. */
#define TT_TILES(code)                                                                                                 \
    "1:\n\t" code "ldr %[x], %[end]\n\tadd %[out], %[out], %[turn]\n\tcmp %[out], %[x]\n\tblo 1b"
/* The last one of an odd width begins a column earlier: at the end, one is left. */
#define TT_ODD_TILES(code)                                                                                             \
    TT_TILES(code) "\n\tbne 2f\n\tsub %[out], %[out], %[next]\n\tsub %[a], %[a], %[step]\n\tb 1b\n2:"
#define TT_ROW_OF(code, number, results, ...)                                                                          \
    __asm__ volatile(code                                                                                              \
            : results, [x] "=&r"(x), [y] "=&r"(y), [a] "+r"(a), [out] "+r"(out)                                         \
            : [t0] "r"(taps->t[0]), [t1] "r"(taps->t[1]), [t2] "r"(taps->t[2]), [u0] "r"(taps->u[0]),                   \
            [u1] "r"(taps->u[1]), [u2] "r"(taps->u[2]), [bias] "m"(taps->bias), [factor] "m"(taps->factor),             \
            [down] "m"(taps->down), [end] "m"(end), [step] "i"(2 * rows), [gap] "i"(2 * gap),                           \
            [back] "i"(2 * (rows - 2 * gap)), [next] "i"(next), [turn] "i"(2 * next), [offset] "i"(number), __VA_ARGS__ \
            : "memory", "cc")
#define TT_UPPER_OUT [s00] "=&r"(sum_00), [s01] "=&r"(sum_01)
#define TT_LEFT_OUT [s00] "=&r"(sum_00), [s10] "=&r"(sum_10)
#define TT_ALL_OUT TT_UPPER_OUT, [s10] "=&r"(sum_10), [s11] "=&r"(sum_11)
#define TT_NEAR_ROW_OF(code, number)                                                                                   \
    TT_ROW_OF(TT_TILES(code), number, TT_LIST(TT_ALL_OUT), [pitch] "i"(pitch), [last] "i"(pitch + next))
#define TT_FAR_ROW_OF(code, number) TT_ROW_OF(TT_TILES(code), number, TT_LIST(TT_ALL_OUT), [pitch] "m"(pitch))
#define TT_NEAR_ROW(ends_of_tile, number) TT_NEAR_ROW_OF(TT_DEPTHWISE_SUMS ends_of_tile, number)
#define TT_FAR_ROW(ends_of_tile, number) TT_FAR_ROW_OF(TT_DEPTHWISE_SUMS ends_of_tile, number)
#define TT_NEAR_APART(ends_of_tile, number) TT_NEAR_ROW_OF(TT_APART_SUMS ends_of_tile, number)
#define TT_FAR_APART(ends_of_tile, number) TT_FAR_ROW_OF(TT_APART_SUMS ends_of_tile, number)
#define TT_NEAR_LAST(ends_of_tile, number)                                                                             \
    TT_ROW_OF(TT_LAST_SUMS ends_of_tile, number, TT_LIST(TT_LEFT_OUT), [pitch] "i"(pitch))
#define TT_FAR_LAST(ends_of_tile, number)                                                                              \
    TT_ROW_OF(TT_LAST_SUMS ends_of_tile, number, TT_LIST(TT_LEFT_OUT), [pitch] "m"(pitch))
#define TT_UPPER_ROW(ends_of_tile, number)                                                                             \
    TT_ROW_OF(TT_ODD_TILES(TT_UPPER_SUMS ends_of_tile), number, TT_LIST(TT_UPPER_OUT), [pitch] "i"(0))
#define TT_UPPER_APART(ends_of_tile, number)                                                                           \
    TT_ROW_OF(TT_ODD_TILES(TT_APART_UPPER_SUMS ends_of_tile), number, TT_LIST(TT_UPPER_OUT), [pitch] "i"(0))
#endif

/* Two rows of the output, or the first of them. a: a channel's image by columns, an even number of `rows` from one to the
 * next, aligned to 4 bytes; gap: elements from a column of taps to the next; next, pitch: elements of the output to the next
 * column and row. Constants but for the rows; width is at least 2, 2 * gap - rows at most 510, and 2 * next at most
 * TT_MOST_OFFSET. */
#define TT_MOST_OFFSET 4095
static inline TT_ALWAYS void tt_depthwise_lines(int8_t *out, const int16_t *a, const tt_taps3 *taps, bool two, int32_t width,
    int32_t rows, int32_t gap, int32_t next, int32_t pitch, int32_t zero)
{
#if TT_HAS_DSP
    const int8_t *const end = out + (width - 1) * next; /* in memory, like the ends' numbers: all registers have another use */
    uint32_t x, y;
    int32_t sum_00, sum_01, sum_10, sum_11;
    if (!two) {
        if (gap > rows) {
            TT_FOR_ZERO(TT_UPPER_APART, TT_UPPER_ENDS);
        } else {
            TT_FOR_ZERO(TT_UPPER_ROW, TT_UPPER_ENDS);
        }
    } else if (pitch + next > TT_MOST_OFFSET) {
        if (gap > rows) {
            TT_FOR_ZERO(TT_FAR_APART, TT_FAR_ENDS);
        } else {
            TT_FOR_ZERO(TT_FAR_ROW, TT_FAR_ENDS);
        }
        if (width % 2 != 0) {
            TT_FOR_ZERO(TT_FAR_LAST, TT_FAR_LAST_ENDS);
        }
    } else {
        if (gap > rows) {
            TT_FOR_ZERO(TT_NEAR_APART, TT_DEPTHWISE_ENDS);
        } else {
            TT_FOR_ZERO(TT_NEAR_ROW, TT_DEPTHWISE_ENDS);
        }
        if (width % 2 != 0) {
            TT_FOR_ZERO(TT_NEAR_LAST, TT_LAST_ENDS);
        }
    }
#else
    for (int32_t i = 0; i < (two ? 2 : 1) * width; i++) {
        const int32_t line = i / width, column = i % width;
        int32_t sum = 0;
        for (int32_t s = 0; s < 3; s++) {
            const int16_t *const at = a + column * rows + s * gap + line;
            sum += at[0] * (int16_t)taps->t[s] + at[1] * (int16_t)taps->u[s] + at[2] * ((int32_t)taps->u[s] >> 16);
        }
        out[line * pitch + column * next] = tt_requantise8_kept(sum, taps->bias, taps->factor, taps->down, zero, -128, 127);
    }
#endif
}

/* One channel of a QConv whose sums all shift down: of all channels of all images the one with number `turn`. down, across:
 * the two axes, each of which may be the rows; tap: see tt_taps3_of, of `down`. Maps are interleaved along `down` only: along
 * `across`, taps are apart. strip: of a map's outputs along `down` whose inputs are in scratch together. scratch, from turn to
 * turn: columns of the image of a map, each of an even number of rows; apart: elements from map to map, or 0 if all are in one
 * place. */
static inline TT_ALWAYS void tt_depthwise_pairs(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w,
    const int32_t *bias, const int32_t *multiplier, const int8_t *shift, int32_t turn, tt_axis down, tt_axis across,
    int32_t channels, int32_t tap, int32_t strip, int32_t apart, int32_t x_zero, int32_t zero)
{
    const int32_t c = turn % channels, n = turn / channels, rows = (strip + 3) / 2 * 2;
    const int32_t wide = across.out + 2 * across.maps, right = across.pad + across.in;
    const int32_t gap = across.maps * rows, next = across.out_step, pitch = down.maps * down.out_step;
    const int8_t *const own = x + n * down.in * across.in * channels + c;
    int8_t *const out = y + n * down.out * across.out * channels + c;
    const bool alike = (apart > 0 || tt_is_even(down)) && strip * down.maps >= down.out;
    const tt_taps3 taps = tt_taps3_of(w + 9 * c, tap, bias[c], multiplier[c], shift[c]);
    for (int32_t map = 0; map < down.maps; map++) {
        const tt_axis_part tall = tt_axis_part_of(down, map);
        int16_t *const image = scratch + map * apart;
        for (int32_t first = 0; first < tall.out; first += strip) {
            const int32_t high = tall.out - first < strip ? tall.out - first : strip;
            const int32_t start = first - tall.border, low = start < 0 ? -start : 0;
            const int32_t behind = tall.in - start < high + 2 ? tall.in - start : high + 2;
            int8_t *to = out + (map + first * down.maps) * down.out_step;
            if (!alike || turn == 0) {
                tt_clear_cells(image, rows, wide, across.pad, right, low, behind);
            }
            tt_widen_cells(image + across.pad * rows + low, own + (tall.from + (start + low) * down.maps) * down.in_step,
                -x_zero, across.in_step, down.maps * down.in_step, rows, 1, across.in, behind - low);
            for (int32_t i = 0; i + 2 <= high; i += 2, to += 2 * pitch) {
                tt_depthwise_lines(to, image + i, &taps, true, across.out, rows, gap, next, pitch, zero);
            }
            if (high % 2 != 0) {
                tt_depthwise_lines(to, image + high - 1, &taps, false, across.out, rows, gap, next, pitch, zero);
            }
        }
    }
}

#endif
