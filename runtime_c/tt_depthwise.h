/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Depthwise convolutions in steps of one, of maps of any size: 3x3 ones, dilated or not, and dilated ones of any window. Each
 * gives the same bits on every core and on a host: where the instructions are missing, plain C does the same.
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
 * column and row. Constants but for the rows; width is at least 2, 2 * gap - rows at most TT_MOST_GAP, and 2 * next at most
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
    const int32_t gap = across.maps * rows, pitch = down.maps * down.out_step;
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
                tt_depthwise_lines(to, image + i, &taps, true, across.out, rows, gap, across.out_step, pitch, zero);
            }
            if (high % 2 != 0) {
                tt_depthwise_lines(to, image + high - 1, &taps, false, across.out, rows, gap, across.out_step, pitch, zero);
            }
        }
    }
}

/* ---- dilated windows of any size --------------------------------------------------------------------------------- */

/* Taps along both axes, and from tap to tap in the weights. */
typedef struct tt_window {
    int32_t tall, flat, tall_step, flat_step;
} tt_window;

static inline TT_ALWAYS tt_window tt_window_of(int32_t tall, int32_t flat, int32_t tall_step, int32_t flat_step)
{
    return (tt_window){tall, flat, tall_step, flat_step};
}

/* Outputs along both axes that are computed together, two rows of two columns or four of one, or half of these; rows that
 * there are at least. */
typedef struct tt_spread_tile {
    int32_t high, wide, least;
} tt_spread_tile;

static inline TT_ALWAYS tt_spread_tile tt_spread_tile_of(int32_t high, int32_t wide)
{
    return (tt_spread_tile){high, wide, high / 2 + 1};
}

/* The taps of a channel by columns, in words: in turn of the taps for even rows of a tile, and of those for odd rows, which
 * begin with a 0. Where there is no tap, `taps` has a 0. */
static inline TT_ALWAYS void tt_spread_taps(int16_t *taps, const int8_t *w, tt_window of)
{
    for (int32_t s = 0; s < of.flat; s++, w += of.flat_step, taps += 4 * (of.tall / 2 + 1)) {
        TT_UNROLL
        for (int32_t r = 0; r < of.tall; r++) {
            const int16_t tap = w[r * of.tall_step];
            taps[r / 2 * 4 + r % 2] = tap;
            taps[(r + 1) / 2 * 4 + 2 + (r + 1) % 2] = tap;
        }
    }
}

/* Adds a column of taps to the sums of a tile, column by column. at: its first pixel, of an even row; rows: elements to its
 * next column. */
static inline TT_ALWAYS void tt_spread_column(
    int32_t sums[4], const int16_t *at, const int16_t *taps, tt_window of, tt_spread_tile tile, int32_t rows)
{
#if TT_HAS_DSP
    if (of.tall > 4) {
        __asm__ volatile("" : : : "memory"); /* taps that are kept from tile to tile would be kept on the stack */
    }
    TT_UNROLL
    for (int32_t r = 0; r <= of.tall; r += 2) {
        uint64_t both;
        memcpy(&both, __builtin_assume_aligned(taps + 2 * r, 8), sizeof both);
        TT_UNROLL
        for (int32_t i = 0; i < tile.high * tile.wide; i += tile.high > 1 ? 2 : 1) {
            uint32_t pixels;
            memcpy(&pixels, __builtin_assume_aligned(at + i / tile.high * rows + i % tile.high + r, 4), sizeof pixels);
            if (r < of.tall) {
                sums[i] = __smlad((int32_t)pixels, (int32_t)(uint32_t)both, sums[i]);
            }
            if (tile.high > 1) {
                sums[i + 1] = __smlad((int32_t)pixels, (int32_t)(uint32_t)(both >> 32), sums[i + 1]);
            }
        }
    }
#else
    TT_UNROLL
    for (int32_t r = 0; r < of.tall; r++) {
        TT_UNROLL
        for (int32_t i = 0; i < tile.high * tile.wide; i++) {
            sums[i] += at[i / tile.high * rows + i % tile.high + r] * taps[r / 2 * 4 + r % 2];
        }
    }
#endif
}

/* A row of tiles. first: of its first pixel; image: see tt_depthwise_spread; below: rows of the output
 * from the first on. Columns of taps that meet no column of the image are left out. */
static inline TT_ALWAYS void tt_spread_row(int8_t *place, const int16_t *first, const int16_t *taps, tt_axis across,
    tt_window of, tt_spread_tile tile, int32_t rows, int32_t below, int32_t pitch, tt_dense_ends ends)
{
    const int32_t run = 4 * (of.tall / 2 + 1), gap = across.maps * rows;
    int32_t from = of.flat, behind = of.flat; /* columns of taps from the first to the last that meet the image */
    for (int32_t column = 0; column < across.out; column += tile.wide, place += tile.wide * across.out_step) {
        const int32_t left = column - across.pad, border = tile.wide - 1;
        int32_t sums[4] = {0, 0, 0, 0};
        while (from > 0 && left + (from - 1) * across.maps + border >= 0) {
            from -= 1;
        }
        while (behind > 0 && left + (behind - 1) * across.maps >= across.in) {
            behind -= 1;
        }
        const int16_t *at = first + ((left + border) * rows + from * gap), *tap = taps + from * run;
        for (const int16_t *const end = taps + behind * run; tap < end; tap += run, at += gap) {
            tt_spread_column(sums, at, tap, of, tile, rows);
        }
        TT_UNROLL
        for (int32_t i = 0; i < tile.high * tile.wide; i++) {
            const int32_t right = i / tile.high, row = i % tile.high;
            if ((row < tile.least || row < below) && (across.out % tile.wide == 0 || column + right < across.out)) {
                place[row * pitch + right * across.out_step] = tt_dense_end(sums[i], 0, ends);
            }
        }
    }
}

/* One channel of a dilated QConv: of all channels of all images the one with number `turn`. Taps along `down` are neighbours
 * in a column of the image of a map; see tt_depthwise_pairs. scratch: tt_spread_taps, then the images, with a border for whole
 * tiles; what is computed below the output and at its right is not written. */
static inline TT_ALWAYS void tt_depthwise_spread(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis down, tt_axis across, tt_window of, tt_spread_tile tile, int32_t channels, int32_t apart, int32_t x_zero,
    tt_dense_ends by)
{
    const int32_t c = turn % channels, n = turn / channels, taps = 4 * (of.tall / 2 + 1) * of.flat, border = tile.wide - 1;
    const int32_t most = (down.out + down.maps - 1) / down.maps, tiles = (most + tile.high - 1) / tile.high;
    const int32_t rows = tiles * tile.high + of.tall / 2 * 2, wide = across.in + 2 * border;
    const int32_t pitch = down.maps * down.out_step, from_row = down.maps * down.in_step;
    const int8_t *const own = x + n * down.in * across.in * channels + c;
    int8_t *const out = y + n * down.out * across.out * channels + c;
    const int32_t bias = by.bias[c], multiplier = by.multiplier[c]; /* of this channel, out of reach of the output */
    const int8_t shift = by.shift[c];
    const tt_dense_ends ends = {&bias, &multiplier, &shift, by.zero, by.low, by.high, by.shifts_down, by.above, by.once};
    const tt_spread_tile half = {tile.high / 2, tile.wide, 1};
    if (turn == 0) {
        memset(scratch, 0, 2 * (size_t)(taps + (apart > 0 ? down.maps * apart : 0)));
    }
    tt_spread_taps(scratch, w + c * of.tall * of.flat, of);
    for (int32_t map = 0; map < down.maps; map++) {
        const tt_axis_part tall = tt_axis_part_of(down, map);
        const int32_t high = rows - tall.border < tall.in ? rows - tall.border : tall.in;
        const int8_t *const from = own + tall.from * down.in_step;
        int16_t *const image = scratch + taps + map * apart, *const inside = image + border * rows + tall.border;
        int8_t *place = out + map * down.out_step;
        if (apart == 0) {
            memset(image, 0, 2 * (size_t)(wide * rows));
        }
        if (down.in < across.in * down.maps) {
            tt_widen_cells(inside, from, -x_zero, across.in_step, from_row, rows, 1, across.in, high);
        } else {
            tt_widen_cells(inside, from, -x_zero, from_row, across.in_step, 1, rows, high, across.in);
        }
        int32_t row = 0;
        for (; row + half.high < tall.out; row += tile.high, place += tile.high * pitch) {
            tt_spread_row(place, image + row, scratch, across, of, tile, rows, tall.out - row, pitch, ends);
        }
        if (row < tall.out) {
            tt_spread_row(place, image + row, scratch, across, of, half, rows, tall.out - row, pitch, ends);
        }
    }
}

/* ---- dilated windows of one row ---------------------------------------------------------------------------------- */

#define TT_MOST_LINE_TAPS 16
/* `count` outputs, at most four, of neighbouring pixels from `at` on. Two pixels are a word, and two taps. */
static inline TT_ALWAYS void tt_line_outputs(int8_t *place, const int16_t *at, const int16_t *taps, int32_t count, int32_t flat,
    int32_t gap, int32_t step, tt_dense_ends by)
{
    int32_t sums[4] = {0, 0, 0, 0};
#if TT_HAS_DSP
    TT_UNROLL
    for (int32_t s = 0; s < flat; s++) {
        uint32_t pair;
        memcpy(&pair, __builtin_assume_aligned(taps + s / 2 * 2, 4), sizeof pair);
        TT_UNROLL
        for (int32_t i = 0; i < count; i += 2) {
            uint32_t pixels;
            memcpy(&pixels, at + s * gap + i, sizeof pixels);
            const int32_t x = (int32_t)pixels, tap = (int32_t)pair;
            sums[i] = s % 2 == 0 ? __smlabb(x, tap, sums[i]) : __smlabt(x, tap, sums[i]);
            sums[i + 1] = s % 2 == 0 ? __smlatb(x, tap, sums[i + 1]) : __smlatt(x, tap, sums[i + 1]);
        }
    }
#else
    for (const int16_t *const end = taps + flat; taps < end; taps++, at += gap) {
        TT_UNROLL
        for (int32_t i = 0; i < count; i++) {
            sums[i] += at[i] * *taps;
        }
    }
#endif
    TT_UNROLL
    for (int32_t i = 0; i < count; i++) {
        place[i * step] = tt_dense_end(sums[i], 0, by);
    }
}

/* One channel of a dilated QConv of one row: of all channels of all images the one with number `turn`. scratch: its pixels,
 * between those of the border, and one more. */
static inline TT_ALWAYS void tt_depthwise_line(int8_t *y, int16_t *scratch, const int8_t *x, const int8_t *w, int32_t turn,
    tt_axis along, int32_t flat, int32_t channels, int32_t x_zero, tt_dense_ends by)
{
    const int32_t c = turn % channels, n = turn / channels, wide = along.out + (flat - 1) * along.maps + 1;
    const int32_t bias = by.bias[c], multiplier = by.multiplier[c]; /* of this channel, out of reach of the output */
    const int8_t shift = by.shift[c];
    const tt_dense_ends ends = {&bias, &multiplier, &shift, by.zero, by.low, by.high, by.shifts_down, by.above, by.once};
    _Alignas(4) int16_t taps[TT_MOST_LINE_TAPS] = {0};
    TT_UNROLL
    for (int32_t s = 0; s < flat; s++) {
        taps[s] = w[c * flat + s];
    }
    if (turn == 0) {
        memset(scratch, 0, 2 * (size_t)wide);
    }
    tt_widen_cells(scratch + along.pad, x + n * along.in * channels + c, -x_zero, channels, 0, 1, 1, along.in, 1);
    int8_t *place = y + n * along.out * channels + c;
    const int16_t *at = scratch;
    for (const int16_t *const end = at + along.out / 4 * 4; at < end; at += 4, place += 4 * channels) {
        tt_line_outputs(place, at, taps, 4, flat, along.maps, channels, ends);
    }
    if (along.out % 4 != 0) {
        tt_line_outputs(place, at, taps, along.out % 4, flat, along.maps, channels, ends);
    }
}

#endif
