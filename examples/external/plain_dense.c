/* A float32 dense layer in plain C, its sums in the order of the reference. It needs no workspace. */
#include "tt_external.h"

TT_EXTERNAL_GEMM(plain_dense)
{
    (void)workspace;
    for (int32_t row = 0; row < layer->rows; ++row) {
        for (int32_t o = 0; o < layer->out_c; ++o) {
            float sum = 0.0f;
            for (int32_t i = 0; i < layer->in_c; ++i) {
                sum += x[row * layer->in_c + i] * w[o * layer->in_c + i];
            }
            y[row * layer->out_c + o] = bias != NULL ? sum + bias[o] : sum;
        }
    }
}
