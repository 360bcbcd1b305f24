/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Pools of float32 and their gradients, of whole maps without dilations. A block of neighbouring channels is computed at a
 * time: an FPU loads eight by one instruction. Everywhere else plain C gives the same bits.
 */
#ifndef TT_POOL_H
#define TT_POOL_H

#include "tt_mve_float.h"

/* Images, the border in front of them, windows that slide over them, and how many. */
typedef struct tt_windows {
    int32_t count, height, width, channels, top, left, rows, columns, down, right, high, wide;
} tt_windows;

static inline TT_ALWAYS tt_windows tt_windows_of(int32_t count, int32_t height, int32_t width, int32_t channels, int32_t top,
    int32_t left, int32_t rows, int32_t columns, int32_t down, int32_t right, int32_t high, int32_t wide)
{
    return (tt_windows) {count, height, width, channels, top, left, rows, columns, down, right, high, wide};
}

/* Places of a window, or windows of a place: `first`, and how many. */
typedef struct tt_span {
    int32_t first, count;
} tt_span;

static inline TT_ALWAYS tt_span tt_span_between(int32_t first, int32_t end, int32_t most)
{
    const int32_t low = first < 0 ? 0 : first, high = end > most ? most : end;
    return (tt_span) {low, high - low};
}

/* The windows that cover a place of an axis. */
static inline TT_ALWAYS tt_span tt_windows_over(int32_t place, int32_t taps, int32_t step, int32_t windows)
{
    const int32_t before = place - taps + step;
    return tt_span_between(before < 0 ? 0 : before / step, place / step + 1, windows);
}

/* A result that begins with `start`, meets each of `rows` x `columns` values of a block of neighbours, and ends with `last`.
 * Rows are `pitch` elements apart, values of a row `step`. NAME_C, NAME_ASM and
 * NAME_X4 are a step in C, in assembly (of registers) and on vectors. */
#define TT_POOL_LARGEST_C(a, v) ((v) > (a) ? (v) : (a))
#define TT_POOL_UNSIGNED_ZERO_C(a, n) ((a) + (n))
#define TT_POOL_ADDED_C(a, v) ((a) + (v))
#define TT_POOL_SCALED_C(a, n) ((a) * (n))
#define TT_POOL_DIVIDED_C(a, n) ((a) / (n))

#if TT_HAS_FPU && !defined(__clang__)
#define TT_POOL_LARGEST_ASM(a, v) "vcmp.f32 s" #v ", s" #a "\n\tvmrs APSR_nzcv, fpscr\n\tit gt\n\tvmovgt.f32 s" #a ", s" #v "\n\t"
#define TT_POOL_LARGEST_FPV5_ASM(a, v) "vmaxnm.f32 s" #a ", s" #a ", s" #v "\n\t"
#define TT_POOL_UNSIGNED_ZERO_ASM(a, n) "vadd.f32 s" #a ", s" #a ", s" #n "\n\t"
#define TT_POOL_ADDED_ASM(a, v) "vadd.f32 s" #a ", s" #a ", s" #v "\n\t"
#define TT_POOL_SCALED_ASM(a, n) "vmul.f32 s" #a ", s" #a ", s" #n "\n\t"
#define TT_POOL_DIVIDED_ASM(a, n) "vdiv.f32 s" #a ", s" #a ", s" #n "\n\t"
#define TT_POOL_BEGUN_ASM(pair, v) "vmov d" #pair ", %[start], %[start]\n\t"
#define TT_POOL_EACH_4(of, v0, v1, v2, v3) of(0, v0) of(1, v1) of(2, v2) of(3, v3)
#define TT_POOL_EACH_8(of, v0, v1, v2, v3, ...) TT_POOL_EACH_4(of, v0, v1, v2, v3) TT_POOL_LAST_4(of, __VA_ARGS__)
#define TT_POOL_LAST_4(of, v4, v5, v6, v7) of(4, v4) of(5, v5) of(6, v6) of(7, v7)
#define TT_POOL_EACH_16(of, v0, v1, v2, v3, v4, v5, v6, v7, ...) \
    TT_POOL_EACH_8(of, v0, v1, v2, v3, v4, v5, v6, v7) TT_POOL_LAST_8(of, __VA_ARGS__)
#define TT_POOL_LAST_8(of, v8, v9, v10, v11, v12, v13, v14, v15) \
    of(8, v8) of(9, v9) of(10, v10) of(11, v11) of(12, v12) of(13, v13) of(14, v14) of(15, v15)
#define TT_POOL_VALUES_4(step, of) step(of, 16, 17, 18, 19)
#define TT_POOL_VALUES_8(step, of) step(of, 16, 17, 18, 19, 20, 21, 22, 23)
#define TT_POOL_VALUES_16(step, of) step(of, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)
#define TT_POOL_BEGIN_4 TT_POOL_BEGUN_ASM(0, ) TT_POOL_BEGUN_ASM(1, )
#define TT_POOL_BEGIN_8 TT_POOL_VALUES_4(TT_POOL_EACH_4, TT_POOL_BEGUN_ASM)
#define TT_POOL_BEGIN_16 TT_POOL_VALUES_8(TT_POOL_EACH_8, TT_POOL_BEGUN_ASM)
#define TT_POOL_NUMBER_4(step, of) step(of, 16, 16, 16, 16)
#define TT_POOL_NUMBER_8(step, of) step(of, 16, 16, 16, 16, 16, 16, 16, 16)
#define TT_POOL_NUMBER_16(step, of) step(of, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16)
#define TT_POOL_BLOCKS(size, sums, values, each, end) \
    for (; channels >= size; channels -= size, from += size) { \
        if (step == size) { \
            TT_POOL_RUN(size, sums, "vldmia %[at]!, {" values "}\n\t", each, end) \
        } else { \
            TT_POOL_RUN(size, sums, "vldmia %[at], {" values "}\n\tadd %[at], %[at], %[step]\n\t", each, end) \
        } \
    }
#define TT_POOL_RUN(size, sums, load, each, end) \
    { \
        const float *at = from; \
        int32_t r = rows, s; \
        __asm__ volatile(TT_POOL_BEGIN_##size "1:\n\tmov %[s], %[columns]\n\t" \
                         "2:\n\t" load TT_POOL_VALUES_##size(TT_POOL_EACH_##size, each) \
                         "subs %[s], %[s], #1\n\tbne 2b\n\tadd %[at], %[at], %[next]\n\tsubs %[r], %[r], #1\n\tbne 1b\n\tvmov s16, %[n]\n\t" \
                         TT_POOL_NUMBER_##size(TT_POOL_EACH_##size, end) "vstmia %[to]!, {" sums "}" \
                         : [to] "+&r"(to), [at] "+&r"(at), [r] "+&r"(r), [s] "=&r"(s) \
                         : [columns] "r"(columns), [next] "r"(4 * (pitch - columns * step)), [step] "r"(4 * step), [start] "r"(start), [n] "r"(n) \
                         : "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", \
                         "s15", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s24", "s25", "s26", "s27", "s28", \
                         "s29", "s30", "s31", "cc", "memory"); \
    }
#else
#define TT_POOL_BLOCKS(size, sums, values, each, end)
#endif

#define TT_POOL_BLOCK(name, each, each_asm, end) \
    static inline TT_ALWAYS void name(float *to, const float *from, int32_t rows, int32_t columns, int32_t pitch, int32_t step, \
        int32_t channels, float start, float n) \
    { \
        TT_POOL_BLOCKS(16, "s0-s15", "s16-s31", each_asm, end##_ASM) \
        TT_POOL_BLOCKS(8, "s0-s7", "s16-s23", each_asm, end##_ASM) \
        TT_POOL_BLOCKS(4, "s0-s3", "s16-s19", each_asm, end##_ASM) \
        for (; channels > 0; channels--, from++, to++) { \
            float sum = start; \
            for (int32_t r = 0; r < rows; r++) { \
                for (int32_t s = 0; s < columns; s++) { \
                    const float value = from[r * pitch + s * step]; \
                    sum = each##_C(sum, value); \
                } \
            } \
            *to = end##_C(sum, n); \
        } \
    }
TT_POOL_BLOCK(tt_block_largest, TT_POOL_LARGEST, TT_POOL_LARGEST_ASM, TT_POOL_UNSIGNED_ZERO)
TT_POOL_BLOCK(tt_block_largest_fpv5, TT_POOL_LARGEST, TT_POOL_LARGEST_FPV5_ASM, TT_POOL_UNSIGNED_ZERO)
TT_POOL_BLOCK(tt_block_scaled, TT_POOL_ADDED, TT_POOL_ADDED_ASM, TT_POOL_SCALED)
TT_POOL_BLOCK(tt_block_divided, TT_POOL_ADDED, TT_POOL_ADDED_ASM, TT_POOL_DIVIDED)

/* The same on vectors (Helium). Where there are none, plain C gives the same bits. */
#define TT_POOL_LARGEST_X4(a, v) tt_pick_f32x4(v, a, v, a)
#define TT_POOL_UNSIGNED_ZERO_X4(a, n) tt_add_all_f32x4(a, n)
#define TT_POOL_ADDED_X4(a, v) tt_add_f32x4(a, v)
#define TT_POOL_SCALED_X4(a, n) tt_mul_all_f32x4(a, n)
#define TT_POOL_DIVIDED_X4(a, n) tt_div_f32x4(a, tt_all_f32x4(n))
#define TT_POOL_VECTOR(name, each, end) \
    static inline TT_ALWAYS void name(float *to, const float *from, int32_t rows, int32_t columns, int32_t pitch, int32_t step, \
        int32_t channels, float start, float n) \
    { \
        for (; channels >= 16; channels -= 16, from += 16, to += 16) { \
            tt_f32x4 sum_0 = tt_all_f32x4(start), sum_1 = sum_0, sum_2 = sum_0, sum_3 = sum_0; \
            const float *row = from; \
            for (int32_t r = 0; r < rows; r++, row += pitch) { \
                const float *at = row; \
                for (int32_t s = 0; s < columns; s++, at += step) { \
                    const tt_f32x4 value_0 = tt_load_f32x4(at), value_1 = tt_load_f32x4(at + 4); \
                    const tt_f32x4 value_2 = tt_load_f32x4(at + 8), value_3 = tt_load_f32x4(at + 12); \
                    sum_0 = each##_X4(sum_0, value_0); \
                    sum_1 = each##_X4(sum_1, value_1); \
                    sum_2 = each##_X4(sum_2, value_2); \
                    sum_3 = each##_X4(sum_3, value_3); \
                } \
            } \
            tt_store_f32x4(to, end##_X4(sum_0, n)); \
            tt_store_f32x4(to + 4, end##_X4(sum_1, n)); \
            tt_store_f32x4(to + 8, end##_X4(sum_2, n)); \
            tt_store_f32x4(to + 12, end##_X4(sum_3, n)); \
        } \
        for (; channels >= 4; channels -= 4, from += 4, to += 4) { \
            tt_f32x4 sum = tt_all_f32x4(start); \
            for (int32_t r = 0; r < rows; r++) { \
                const float *at = from + r * pitch; \
                for (int32_t s = 0; s < columns; s++, at += step) { \
                    const tt_f32x4 value = tt_load_f32x4(at); \
                    sum = each##_X4(sum, value); \
                } \
            } \
            tt_store_f32x4(to, end##_X4(sum, n)); \
        } \
        if (channels > 0) { \
            tt_f32x4 sum = tt_all_f32x4(start); \
            for (int32_t r = 0; r < rows; r++) { \
                for (int32_t s = 0; s < columns; s++) { \
                    const tt_f32x4 value = tt_load_some_f32x4(from + r * pitch + s * step, 1, channels); \
                    sum = each##_X4(sum, value); \
                } \
            } \
            tt_store_some_f32x4(to, 1, channels, end##_X4(sum, n)); \
        } \
    }
TT_POOL_VECTOR(tt_block_largest_f32x4, TT_POOL_LARGEST, TT_POOL_UNSIGNED_ZERO)
TT_POOL_VECTOR(tt_block_scaled_f32x4, TT_POOL_ADDED, TT_POOL_SCALED)
TT_POOL_VECTOR(tt_block_divided_f32x4, TT_POOL_ADDED, TT_POOL_DIVIDED)

/* One result for each window: statements `block` compute it of `from`, a window's first value, and of `down`, `across`. */
#define TT_POOL_WINDOWS(w, x, block) \
    for (int32_t image = 0; image < w.count; image++, x += w.height * w.width * w.channels) { \
        for (int32_t row = 0; row < w.high; row++) { \
            const int32_t top = row * w.down - w.top; \
            const tt_span down = tt_span_between(top, top + w.rows, w.height); \
            for (int32_t column = 0; column < w.wide; column++) { \
                const int32_t left = column * w.right - w.left; \
                const tt_span across = tt_span_between(left, left + w.columns, w.width); \
                const float *const from = x + (down.first * w.width + across.first) * w.channels; \
                block \
            } \
        } \
    }

static inline TT_ALWAYS void tt_clear_floats(float *x, int32_t count)
{
#ifdef TT_POOL_BEGUN_ASM
    if (count >= 8) {
        __asm__ volatile(TT_POOL_BEGIN_8 "1:\n\tvstmia %[x]!, {s0-s7}\n\t"
                         "subs %[count], %[count], #8\n\tcmp %[count], #8\n\tbge 1b"
                         : [x] "+&r"(x), [count] "+&r"(count)
                         : [start] "r"(0)
                         : "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "cc", "memory");
    }
#endif
    TT_UNROLL
    for (int32_t i = 0; i < count; i++) {
        x[i] = 0.0f;
    }
}

/* Pools by a function that computes a block: the largest element of each window, of which NaN is none (-0 becomes 0); the
 * sum of each window times `share`; the mean of the elements that are in the image; and the gradient of the second: of
 * each element the sum over its windows, the last one first. */
#define TT_POOL_OF(suffix, largest) \
    static inline TT_ALWAYS void tt_max_pool##suffix(float *y, const float *x, tt_windows w) \
    { \
        TT_POOL_WINDOWS(w, x, { \
            largest(y, from, down.count, across.count, w.width * w.channels, w.channels, w.channels, -3.4028235e+38f, 0.0f); \
            y += w.channels; \
        }) \
    }
#define TT_MEANS_OF(suffix) \
    static inline TT_ALWAYS void tt_average_pool##suffix(float *y, const float *x, float share, tt_windows w) \
    { \
        TT_POOL_WINDOWS(w, x, { \
            tt_block_scaled##suffix( \
                y, from, down.count, across.count, w.width * w.channels, w.channels, w.channels, 0.0f, share); \
            y += w.channels; \
        }) \
    } \
    static inline TT_ALWAYS void tt_average_pool_inside##suffix(float *y, const float *x, tt_windows w) \
    { \
        TT_POOL_WINDOWS(w, x, { \
            tt_block_divided##suffix(y, from, down.count, across.count, w.width * w.channels, w.channels, w.channels, 0.0f, \
                (float)(down.count * across.count)); \
            y += w.channels; \
        }) \
    } \
    static inline TT_ALWAYS void tt_average_pool_grad##suffix(float *dx, const float *dy, float share, tt_windows w) \
    { \
        for (int32_t image = 0; image < w.count; image++, dy += w.high * w.wide * w.channels) { \
            for (int32_t row = 0; row < w.height; row++) { \
                const tt_span down = tt_windows_over(row + w.top, w.rows, w.down, w.high); \
                for (int32_t column = 0; column < w.width; column++, dx += w.channels) { \
                    const tt_span across = tt_windows_over(column + w.left, w.columns, w.right, w.wide); \
                    const int32_t last = (down.first + down.count - 1) * w.wide + across.first + across.count - 1; \
                    if (down.count > 0 && across.count > 0) { \
                        tt_block_scaled##suffix(dx, dy + last * w.channels, down.count, across.count, -w.wide * w.channels, \
                            -w.channels, w.channels, 0.0f, share); \
                    } else { \
                        tt_clear_floats(dx, w.channels); \
                    } \
                } \
            } \
        } \
    }
TT_POOL_OF(, tt_block_largest)
TT_POOL_OF(_fpv5, tt_block_largest_fpv5)
TT_POOL_OF(_f32x4, tt_block_largest_f32x4)
TT_MEANS_OF()
TT_MEANS_OF(_f32x4)

/* dy of each window to the element that was the largest, the last window first. */
static inline TT_ALWAYS void tt_max_pool_grad(float *dx, const float *dy, const uint8_t *index, tt_windows w)
{
    const int32_t pixels = w.height * w.width, windows = w.high * w.wide;
    const bool apart = w.rows <= w.down && w.columns <= w.right;
    tt_clear_floats(dx, w.count * pixels * w.channels);
    for (int32_t image = w.count - 1; image >= 0; image--) {
        float *const to = dx + image * pixels * w.channels;
        for (int32_t window = windows - 1; window >= 0; window--) {
            const int32_t top = window / w.wide * w.down - w.top, left = window % w.wide * w.right - w.left;
            const bool inside = top >= 0 && left >= 0 && top + w.rows <= w.height && left + w.columns <= w.width;
            const float *given = dy + (image * windows + window) * w.channels;
            const uint8_t *won = index + (image * windows + window) * w.channels;
            float *corner = to + (top * w.width + left) * w.channels;
            for (int32_t c = 0; c < w.channels; c++, given++, won++, corner++) {
                const int32_t row = *won / w.columns, column = *won - row * w.columns;
                if (inside || (top + row >= 0 && top + row < w.height && left + column >= 0 && left + column < w.width)) {
                    float *const at = corner + (row * w.width + column) * w.channels;
                    *at = (apart ? 0.0f : *at) + *given;
                }
            }
        }
    }
}

#endif
