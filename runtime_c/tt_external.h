/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What kernels of the user (--kernels FILE.toml) are called with. See docs/external-kernels.md.
 *
 * The macros below are the signatures: write TT_EXTERNAL_QCONV(my_kernel) { ... }. No operand overlaps another one or
 * the workspace. The workspace has the bytes that the file declares (NULL for 0), aligned like the arena, its content
 * is undefined. */
#ifndef TT_EXTERNAL_H
#define TT_EXTERNAL_H

#include <stddef.h>
#include <stdint.h>

/* A convolution. Images are [batch][h][w][c], weights [out_c][kernel_h][kernel_w][in_c / groups]. */
typedef struct {
    int32_t batch, in_h, in_w, in_c, out_h, out_w, out_c;
    int32_t kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
    int32_t pad_top, pad_left, pad_bottom, pad_right, groups;
} tt_conv_layer;

/* The same in int8: y = clamp(y_zero + requantise(bias + sum of (x - x_zero) w), low, high), see docs/int8.md.
 * multiplier and shift are one per output channel: the factor is multiplier / 2^31 * 2^shift. */
typedef struct {
    tt_conv_layer conv;
    int32_t x_zero, y_zero, low, high;
} tt_qconv_layer;

/* A dense layer: x is [rows][in_c], w [out_c][in_c], y [rows][out_c]. */
typedef struct {
    int32_t rows, in_c, out_c;
} tt_gemm_layer;

/* y from x; bias is NULL where the layer has none. */
#define TT_EXTERNAL_CONV(name)                                                                                       \
    void name(const float *x, const float *w, const float *bias, float *y, void *workspace, const tt_conv_layer *layer)
#define TT_EXTERNAL_GEMM(name)                                                                                       \
    void name(const float *x, const float *w, const float *bias, float *y, void *workspace, const tt_gemm_layer *layer)
#define TT_EXTERNAL_QCONV(name)                                                                                      \
    void name(const int8_t *x, const int8_t *w, const int32_t *bias, const int32_t *multiplier, const int8_t *shift, \
              int8_t *y, void *workspace, const tt_qconv_layer *layer)

/* Gradients: dx from dy and w, dw from x and dy. */
#define TT_EXTERNAL_CONV_DX(name) \
    void name(const float *dy, const float *w, float *dx, void *workspace, const tt_conv_layer *layer)
#define TT_EXTERNAL_CONV_DW(name) \
    void name(const float *x, const float *dy, float *dw, void *workspace, const tt_conv_layer *layer)
#define TT_EXTERNAL_GEMM_DX(name) \
    void name(const float *dy, const float *w, float *dx, void *workspace, const tt_gemm_layer *layer)
#define TT_EXTERNAL_GEMM_DW(name) \
    void name(const float *x, const float *dy, float *dw, void *workspace, const tt_gemm_layer *layer)

#endif
