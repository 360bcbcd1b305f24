/* An int8 convolution in plain C: all channels of a pixel at a time, their sums in the workspace. */
#include "tt_external.h"
#include "tt_fixed.h"

TT_EXTERNAL_QCONV(plain_conv)
{
    const tt_conv_layer *c = &layer->conv;
    const int32_t per_pixel = c->kernel_h * c->kernel_w * c->in_c;
    int32_t *sums = workspace;
    for (int32_t pixel = 0; pixel < c->batch * c->out_h * c->out_w; ++pixel) {
        const int32_t top = pixel / c->out_w % c->out_h * c->stride_h - c->pad_top;
        const int32_t left = pixel % c->out_w * c->stride_w - c->pad_left;
        const int8_t *image = x + pixel / (c->out_h * c->out_w) * c->in_h * c->in_w * c->in_c;
        for (int32_t o = 0; o < c->out_c; ++o) {
            sums[o] = bias[o];
        }
        for (int32_t tap = 0; tap < c->kernel_h * c->kernel_w; ++tap) {
            const int32_t row = top + tap / c->kernel_w * c->dilation_h;
            const int32_t column = left + tap % c->kernel_w * c->dilation_w;
            if (row < 0 || row >= c->in_h || column < 0 || column >= c->in_w) {
                continue; /* the border is x_zero: it adds nothing */
            }
            for (int32_t o = 0; o < c->out_c; ++o) {
                for (int32_t i = 0; i < c->in_c; ++i) {
                    const int32_t value = image[(row * c->in_w + column) * c->in_c + i] - layer->x_zero;
                    sums[o] += value * w[o * per_pixel + tap * c->in_c + i];
                }
            }
        }
        for (int32_t o = 0; o < c->out_c; ++o) {
            const int32_t scaled = tt_requantise(sums[o], multiplier[o], shift[o]);
            y[pixel * c->out_c + o] = tt_saturate8(scaled, layer->y_zero, layer->low, layer->high);
        }
    }
}
