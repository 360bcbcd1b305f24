/* Gemm: dense 3 -> 4, y[m,n] = sum_k x[m,k] w[n,k] + bias[n]. Shapes: x 1x3, w 4x3, bias 4 -> y 1x4. */
void tiny_gemm_4(const float *restrict x, const float *restrict w, const float *restrict bias, float *restrict y)
{
    float acc_0 = 0.0f, acc_1 = 0.0f, acc_2 = 0.0f, acc_3 = 0.0f;
    const tt_float_pair x_pair = tt_load_pair(&x[0]);
    const tt_float_pair w_pair = tt_load_pair(&w[0]);
    acc_0 = tt_fma_00(x_pair, w_pair, acc_0);
    const tt_float_pair w_pair_1 = tt_load_pair(&w[2]);
    acc_1 = tt_fma_01(x_pair, w_pair_1, acc_1);
    const tt_float_pair w_pair_2 = tt_load_pair(&w[6]);
    acc_2 = tt_fma_00(x_pair, w_pair_2, acc_2);
    const tt_float_pair w_pair_3 = tt_load_pair(&w[8]);
    acc_3 = tt_fma_01(x_pair, w_pair_3, acc_3);
    acc_0 = tt_fma_11(x_pair, w_pair, acc_0);
    const tt_float_pair w_pair_4 = tt_load_pair(&w[4]);
    acc_1 = tt_fma_10(x_pair, w_pair_4, acc_1);
    acc_2 = tt_fma_11(x_pair, w_pair_2, acc_2);
    const tt_float_pair w_pair_5 = tt_load_pair(&w[10]);
    acc_3 = tt_fma_10(x_pair, w_pair_5, acc_3);
    acc_0 = tt_fma_0(w_pair_1, x[2], acc_0);
    acc_1 = tt_fma_1(w_pair_4, x[2], acc_1);
    acc_2 = tt_fma_0(w_pair_3, x[2], acc_2);
    acc_3 = tt_fma_1(w_pair_5, x[2], acc_3);
    y[0] = acc_0 + bias[0];
    y[1] = acc_1 + bias[1];
    y[2] = acc_2 + bias[2];
    y[3] = acc_3 + bias[3];
}
