/* Trains a generated model and prints what it computed, bit by bit: C11, and C++17 too. */
#include "net_train.h"

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
alignas(NET_ALIGNMENT)
#else
_Alignas(NET_ALIGNMENT)
#endif
static unsigned char arena[NET_ARENA_BYTES];
static uint32_t seed = 1u;

static int number(int below)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)(seed >> 16) % below;
}

static int print_bytes(void *ctx, const void *data, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)data;
    (void)ctx;
    for (size_t i = 0; i < size; ++i) {
        printf("%02x", bytes[i]);
    }
    printf("\n");
    return 0;
}

int main(void)
{
    void *const mem[1] = {arena};
    const size_t size[1] = {sizeof arena};
    net_t *m = NULL;
    if (net_init_memories(&m, mem, size) != NET_OK) {
        return 1;
    }
    for (int step = 0; step < 6; ++step) {
        net_label_t label[NET_LABEL_ELEMENTS];
        float loss = 0.0f;
        for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
            net_input(m)->values[i] = (VALUE)((float)(number(200) - 100) * PART);
        }
        for (size_t i = 0; i < NET_LABEL_ELEMENTS; ++i) {
            label[i] = (net_label_t)number(3);
        }
        if (net_train_step(m, label, &loss) != NET_OK) {
            return 2;
        }
        print_bytes(NULL, &loss, sizeof loss);
    }
    return net_save(m, print_bytes, NULL) == NET_OK ? 0 : 3;
}
