/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* 3x3 depthwise convolutions, a row of the output at a time. Each gives the same bits on every core and on a host: where the
 * instructions are missing, plain C does the same.
 */
#ifndef TT_DSP_ROWS_H
#define TT_DSP_ROWS_H

#include "tt_dsp_tiles.h"

/* Where the three rows under the taps begin. A row of the border stands for itself by any other one, whose taps are masked:
 * pair masks a word of taps of the first two rows, third one of the third row's. */
typedef struct tt_rows3 {
    int32_t at[3];
    uint32_t pair, third;
} tt_rows3;

static inline TT_ALWAYS tt_rows3 tt_rows3_of(const int32_t *row_at)
{
    const uint32_t first = row_at[0] >= 0 ? 65535u : 0u, second = row_at[1] >= 0 ? 65535u : 0u;
    tt_rows3 rows = {{0, 0, 0}, first | second << 16, row_at[2] >= 0 ? 0xffffffffu : 0u};
    TT_UNROLL
    for (int32_t r = 0; r < 3; r++) {
        rows.at[r] = row_at[r] >= 0 ? row_at[r] : 0;
    }
    return rows;
}

/* What a row of a channel is computed from. t: of a column of taps the first two; u, v: the third of the first two columns,
 * and of the last column behind the shift. start: what sums begin with. edges: what border columns add. */
typedef struct tt_line3 {
    uint32_t t[3], u, v;
    int32_t start, edges[2], ends[2];
} tt_line3;

static inline TT_ALWAYS uint32_t tt_two16(int32_t low, int32_t high)
{
    return ((uint32_t)low & 65535u) | (uint32_t)high << 16;
}

static inline TT_ALWAYS int32_t tt_high16(uint32_t two)
{
    return (int32_t)two >> 16;
}

static inline TT_ALWAYS tt_line3 tt_line3_of(
    tt_rows3 rows, const int8_t *w, int32_t bias, int32_t factor, int32_t down, int32_t x_zero)
{
    tt_line3 line = {{0, 0, 0}, tt_two16(w[6], w[7]) & rows.third, 0, 0, {0, 0}, {bias, factor}};
    const int32_t last = w[8] & (int32_t)rows.third;
    line.v = tt_two16(down, last);
    TT_UNROLL
    for (int32_t s = 0; s < 3; s++) {
        line.t[s] = tt_two16(w[s], w[3 + s]) & rows.pair;
    }
    const int32_t left = (int16_t)line.t[0] + tt_high16(line.t[0]) + (int16_t)line.u;
    const int32_t right = (int16_t)line.t[2] + tt_high16(line.t[2]) + last;
    const int32_t middle = (int16_t)line.t[1] + tt_high16(line.t[1]) + tt_high16(line.u);
    line.edges[0] = x_zero * left;
    line.edges[1] = x_zero * right;
    line.start = -x_zero * (left + middle + right);
    return line;
}

/* A column of three pixels, the first two of which are a word, adds to the sums of up to three outputs. */
#if TT_HAS_DSP
#define TT_NEXT_COLUMN                                                                                                 \
    "ldrsb %[x], [%[p0]], %[step]\n\tldrsb %[y], [%[p1]], %[step]\n\tpkhbt %[x], %[x], %[y], lsl #16\n\t"              \
    "ldrsb %[y], [%[p2]], %[step]\n\t"
#define TT_LAST_TAPS(sum) "smlad %[" sum "], %[x], %[t2], %[" sum "]\n\tsmlabt %[" sum "], %[y], %[v], %[" sum "]\n\t"
#define TT_MIDDLE_TAPS(sum) "smlad %[" sum "], %[x], %[t1], %[" sum "]\n\t"
#define TT_FIRST_TAPS(sum) "ldr %[" sum "], %[start]\n\tsmlad %[" sum "], %[x], %[t0], %[" sum "]\n\t"
#define TT_MIDDLE_THIRD(sum, u) "smlabt %[" sum "], %[y], %[" u "], %[" sum "]\n\t"
#define TT_FIRST_THIRD(sum, u) "smlabb %[" sum "], %[y], %[" u "], %[" sum "]\n\t"
#define TT_LINE_END(sum, correct, carry)                                                                               \
    "ldrd %[x], %[y], %[ends]\n\tqadd %[" sum "], %[" sum "], %[x]\n\t"                                                \
    "smmlar %[" sum "], %[" sum "], %[y], %[" sum "]\n\t" correct(sum) "asrs %[" sum "], %[" sum "], %[v]\n\t"         \
    carry " %[" sum "], %[" sum "], %[offset]\n\tssat %[" sum "], #8, %[" sum "]\n\tstrb %[" sum "], [%[out]], %[step]\n\t"
#define TT_AND_TOWARDS_ZERO(sum) "add %[" sum "], %[" sum "], %[" sum "], asr #31\n\t"
#define TT_OUTPUT_1(done, half, fresh, correct, carry)                                                                 \
    TT_NEXT_COLUMN TT_LAST_TAPS(done) TT_MIDDLE_TAPS(half) TT_FIRST_TAPS(fresh)                                        \
        "ldr %[x], %[u]\n\t" TT_MIDDLE_THIRD(half, "x") TT_FIRST_THIRD(fresh, "x") TT_LINE_END(done, correct, carry)
#define TT_OUTPUT_2(done, fresh, correct, carry)                                                                       \
    "ldrsb %[x], [%[p0]], %[step]\n\tldrsb %[y], [%[p1]], %[step]\n\tldr %[" fresh "], %[t1]\n\t"                      \
    "pkhbt %[x], %[x], %[y], lsl #16\n\tldrsb %[y], [%[p2]], %[step]\n\t"                                              \
    "smlad %[" done "], %[x], %[" fresh "], %[" done "]\n\tldr %[" fresh "], %[start]\n\tldr %[x], %[u]\n\t" TT_MIDDLE_THIRD(done, "x")                                               \
    TT_NEXT_COLUMN "smlad %[" done "], %[x], %[t2], %[" done "]\n\tsmlad %[" fresh "], %[x], %[t0], %[" fresh "]\n\t"  \
    "ldr %[x], %[u]\n\tsmlabt %[" done "], %[y], %[v], %[" done "]\n\t" TT_FIRST_THIRD(fresh, "x")                     \
    TT_LINE_END(done, correct, carry)
#define TT_OUTPUTS_1(correct, carry)                                                                                   \
    "b 2f\n1:\n\t" TT_OUTPUT_1("s0", "s1", "s2", correct, carry) "2:\n\t" TT_OUTPUT_1("s1", "s2", "s0", correct, carry) \
        TT_OUTPUT_1("s2", "s0", "s1", correct, carry) TT_OUTPUT_1("s0", "s1", "s2", correct, carry)                    \
            "mov %[s0], %[s1]\n\tmov %[s1], %[s2]\n\t"
#define TT_OUTPUTS_2(correct, carry)                                                                                   \
    "1:\n\t" TT_OUTPUT_2("s0", "s1", correct, carry) TT_OUTPUT_2("s1", "s0", correct, carry)
#define TT_ODD_OUTPUTS_2(correct, carry)                                                                               \
    "b 2f\n1:\n\t" TT_OUTPUT_2("s0", "s1", correct, carry) "2:\n\t" TT_OUTPUT_2("s1", "s0", correct, carry)
#define TT_SUMS_1 [s0] "=&r"(sum_0), [s1] "+&r"(sum_1), [s2] "+&r"(sum_2)
#define TT_SUMS_2 [s0] "+&r"(sum_0), [s1] "=&r"(sum_1)
#define TT_ODD_SUMS_2 [s0] "=&r"(sum_0), [s1] "+&r"(sum_1)
#define TT_LINES_2(outputs, sums)                                                                                            \
    do {                                                                                                               \
        if (zero == -128) {                                                                                            \
            TT_LINE(outputs(TT_UNCHANGED, "sbc"), 127, "m", sums);                                                          \
        } else if (zero < 0) {                                                                                         \
            TT_LINE(outputs(TT_AND_TOWARDS_ZERO, "sbc"), -1 - zero, "m", sums);                                             \
        } else {                                                                                                       \
            TT_LINE(outputs(TT_AND_TOWARDS_ZERO, "adc"), zero, "m", sums);                                                  \
        }                                                                                                              \
    } while (0)
#define TT_LINE(outputs, number, middle, ...)                                                                         \
    __asm__ volatile(outputs "ldr %[x], %[end]\n\tcmp %[out], %[x]\n\tbne 1b"                                          \
        : __VA_ARGS__, [x] "=&r"(a), [y] "=&r"(b), [p0] "+&r"(p0), [p1] "+&r"(p1), [p2] "+&r"(p2), [out] "+&r"(out)     \
        : [t0] "r"(line.t[0]), [t1] middle(t1), [t2] "r"(line.t[2]), [u] "m"(u), [v] "r"(line.v),              \
        [start] "m"(start), [ends] "m"(ends), [end] "m"(end), [step] "i"(channels), [offset] "i"(number)     \
        : "memory", "cc")
#endif

/* What a column of three pixels adds to a sum, s of 0 and 1. */
static inline TT_ALWAYS int32_t tt_column3(const int8_t *x, tt_rows3 rows, tt_line3 line, int32_t s)
{
    const int32_t third = s == 0 ? (int16_t)line.u : tt_high16(line.u);
    return x[rows.at[0]] * (int16_t)line.t[s] + x[rows.at[1]] * tt_high16(line.t[s]) + x[rows.at[2]] * third;
}

/* A row of a channel: out[x * channels]. width: outputs; wide, left: columns of the image and of the border in front of it.
 * stride: 1, where width is a multiple of 4 and both are as wide, with a border of 1; or 2, where no column is missing but
 * the first, the last or both, and one is. Numbers from width on are constants. */
static inline TT_ALWAYS void tt_depthwise_line3(int8_t *out, const int8_t *x, tt_rows3 rows, tt_line3 line,
    int32_t width, int32_t wide, int32_t left, int32_t channels, int32_t stride, int32_t zero)
{
    const int32_t down = (int32_t)(line.v % 65536u);
#if TT_HAS_DSP && !defined(__OPTIMIZE_SIZE__) /* -Os leaves too few registers */
    const bool cut = stride == 2 && 2 * width - left >= wide; /* of the last output, the last column is missing */
    const int8_t *p0 = x + rows.at[0], *p1 = x + rows.at[1], *p2 = x + rows.at[2];
    int8_t *const end = out + (stride == 1 || cut ? width - 1 : width) * channels; /* in memory, like the ends' numbers */
    const uint32_t u = line.u, t1 = line.t[1];
    const int32_t start = line.start;
    const int64_t ends = (int64_t)line.ends[1] << 32 | (uint32_t)line.ends[0];
    int32_t sum_0 = start + line.edges[0], sum_1 = sum_0, sum_2, a, b;
    if (stride == 1) {
        __asm__(TT_NEXT_COLUMN TT_MIDDLE_TAPS("s1") TT_MIDDLE_THIRD("s1", "u") TT_FIRST_TAPS("s2") TT_FIRST_THIRD("s2", "u")
            : [s1] "+&r"(sum_1), [s2] "=&r"(sum_2), [x] "=&r"(a), [y] "=&r"(b), [p0] "+&r"(p0), [p1] "+&r"(p1),
            [p2] "+&r"(p2)
            : [t0] "r"(line.t[0]), [t1] "r"(t1), [u] "r"(u), [start] "m"(start), [step] "i"(channels)
            : "memory");
        if (zero == -128) {
            TT_LINE(TT_OUTPUTS_1(TT_UNCHANGED, "sbc"), 127, "r", TT_SUMS_1);
        } else if (zero < 0) {
            TT_LINE(TT_OUTPUTS_1(TT_AND_TOWARDS_ZERO, "sbc"), -1 - zero, "r", TT_SUMS_1);
        } else {
            TT_LINE(TT_OUTPUTS_1(TT_AND_TOWARDS_ZERO, "adc"), zero, "r", TT_SUMS_1);
        }
        *out = tt_requantise8_kept(sum_0 + line.edges[1], line.ends[0], line.ends[1], down, zero, -128, 127);
    } else {
        if (left == 0) {
            sum_0 = sum_1 = start + tt_column3(x, rows, line, 0);
            __asm__("add %0, %0, %3\n\tadd %1, %1, %3\n\tadd %2, %2, %3" : "+r"(p0), "+r"(p1), "+r"(p2) : "i"(channels));
        }
        if ((width - (cut ? 1 : 0)) % 2 == 0) {
            TT_LINES_2(TT_OUTPUTS_2, TT_LIST(TT_SUMS_2));
        } else {
            TT_LINES_2(TT_ODD_OUTPUTS_2, TT_LIST(TT_ODD_SUMS_2));
        }
        if (cut) {
            const int32_t last = sum_0 + tt_column3(p0 - rows.at[0], rows, line, 1) + line.edges[1];
            *out = tt_requantise8_kept(last, line.ends[0], line.ends[1], down, zero, -128, 127);
        }
    }
#else
    for (int32_t i = 0; i < width; i++) {
        int32_t sum = line.start;
        for (int32_t s = 0; s < 3; s++) {
            const int32_t column = i * stride + s - left;
            if (column < 0 || column >= wide) {
                sum += line.edges[s / 2];
                continue;
            }
            const int8_t *const at = x + column * channels;
            const int32_t third = s == 0 ? (int16_t)line.u : tt_high16(s == 1 ? line.u : line.v);
            sum += at[rows.at[0]] * (int16_t)line.t[s] + at[rows.at[1]] * tt_high16(line.t[s]) + at[rows.at[2]] * third;
        }
        out[i * channels] = tt_requantise8_kept(sum, line.ends[0], line.ends[1], down, zero, -128, 127);
    }
#endif
}

/* Rows of a 3x3 depthwise convolution. row_at: where the rows of the image with its border begin in x, negative for the
 * border. */
static inline TT_ALWAYS void tt_depthwise_rows3(int8_t *y, const int8_t *x, const int8_t *w, const int32_t *bias,
    const int32_t *multiplier, const int8_t *shift, const int32_t *row_at, int32_t rows, int32_t width, int32_t wide,
    int32_t left, int32_t channels, int32_t stride, int32_t x_zero, int32_t zero)
{
    for (int32_t row = 0; row < rows; row++, row_at += stride, y += width * channels) {
        const tt_rows3 three = tt_rows3_of(row_at);
        for (int32_t c = 0; c < channels; c++) {
            const tt_line3 line = tt_line3_of(three, w + 9 * c, bias[c], tt_factor(multiplier[c]), -shift[c], x_zero);
            tt_depthwise_line3(y + c, x + c, three, line, width, wide, left, channels, stride, zero);
        }
    }
}

/* Whole maps. height: rows of an image of x; top: rows of the border above it; rows: of an output. */
static inline TT_ALWAYS void tt_depthwise_maps3(int8_t *y, const int8_t *x, const int8_t *w, const int32_t *bias,
    const int32_t *multiplier, const int8_t *shift, int32_t images, int32_t height, int32_t top, int32_t rows,
    int32_t width, int32_t wide, int32_t left, int32_t channels, int32_t stride, int32_t x_zero, int32_t zero)
{
    const int32_t pitch = wide * channels;
    for (int32_t row = 0; row < images * rows; row++, y += width * channels) {
        const int8_t *const image = x + row / rows * height * pitch;
        const int32_t first = row % rows * stride - top;
        const int32_t row_at[3] = {first >= 0 ? first * pitch : -1, (first + 1) * pitch,
            first + 2 < height ? (first + 2) * pitch : -1};
        tt_depthwise_rows3(
            y, image, w, bias, multiplier, shift, row_at, 1, width, wide, left, channels, stride, x_zero, zero);
    }
}

#endif
