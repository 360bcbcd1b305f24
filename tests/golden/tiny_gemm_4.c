/* Gemm: 1x3, 4x3, 4 -> 1x4. Dense layer: y[m,n] = sum_k x[m,k] w[n,k] + bias[n]. */
void tiny_gemm_4(const float *restrict x, const float *restrict w, const float *restrict bias, float *restrict y) {
    float acc_0 = 0.0f, acc_1 = 0.0f, acc_2 = 0.0f, acc_3 = 0.0f;
    acc_0 = TT_FMA(x[0], w[0], acc_0);
    acc_1 = TT_FMA(x[0], w[3], acc_1);
    acc_2 = TT_FMA(x[0], w[6], acc_2);
    acc_3 = TT_FMA(x[0], w[9], acc_3);
    acc_0 = TT_FMA(x[1], w[1], acc_0);
    acc_1 = TT_FMA(x[1], w[4], acc_1);
    acc_2 = TT_FMA(x[1], w[7], acc_2);
    acc_3 = TT_FMA(x[1], w[10], acc_3);
    acc_0 = TT_FMA(x[2], w[2], acc_0);
    acc_1 = TT_FMA(x[2], w[5], acc_1);
    acc_2 = TT_FMA(x[2], w[8], acc_2);
    acc_3 = TT_FMA(x[2], w[11], acc_3);
    y[0] = acc_0 + bias[0];
    y[1] = acc_1 + bias[1];
    y[2] = acc_2 + bias[2];
    y[3] = acc_3 + bias[3];
}
