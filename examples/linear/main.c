/* Finds a and b of y = a x + b from samples, one at a time, as they would come from a sensor. */
#include "linear_train.h"

#include <stdio.h>

static _Alignas(LINEAR_ALIGNMENT) unsigned char arena[LINEAR_ARENA_BYTES]; /* all the RAM there is */

static float predict(linear_t *model, float x)
{
    linear_output_t y;
    linear_input(model)->values[0] = x;
    (void)linear_infer(model, &y);
    return y.values[0];
}

int main(void)
{
    linear_t *model;
    if (linear_init(&model, arena, sizeof arena) != LINEAR_OK) {
        return 1;
    }
    puts("sample    loss       a       b");
    for (int i = 1; i <= 200; i++) {
        const float x = (float)(i * 8 % 21 - 10) / 10.0f; /* -1.0, -0.9 ... 1.0, in mixed order */
        const float y = 3.0f * x - 2.0f;                   /* what the sensor says: a = 3, b = -2 */
        float loss;
        linear_input(model)->values[0] = x; /* before every call: any call may reuse the slot's bytes */
        if (linear_train_step(model, &y, &loss) != LINEAR_OK) {
            return 1;
        }
        if (i == 1 || i == 10 || i % 50 == 0) {
            const float b = predict(model, 0.0f), a = predict(model, 1.0f) - b;
            printf("%6d  %6.4f  %6.3f  %6.3f\n", i, (double)loss, (double)a, (double)b);
        }
    }
    return 0;
}
