/* Trains on input.bin, takes the delta into a fresh instance of the same memory, and writes to output.bin: checkpoint
 * and delta behind the steps; the checkpoint of a fresh device with a seed, before and behind that delta. */
#include "net_delta.h"
#include "net_train.h"
#include "port.h"

#include <string.h>

enum {
    GUARD = @GUARD@,
    STEPS = @STEPS@,
};

static struct {
    unsigned char low[GUARD];
    _Alignas(NET_ALIGNMENT) unsigned char bytes[NET_ARENA_BYTES];
    unsigned char high[GUARD];
} arena PORT_ARENA_SECTION;

static unsigned char message[NET_DELTA_BYTES + 1];
static int32_t output;

static int put(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    return port_write(output, data, size);
}

static void must(int good, int code)
{
    if (!good) {
        port_exit(code);
    }
}

int main(void)
{
    const int32_t input = port_open_input("input.bin");
    output = port_open_output("output.bin");
    unsigned char *delta = message + 1; /* of no alignment */
    net_t *m = NULL;
    must(net_init(&m, arena.bytes, sizeof arena.bytes) == NET_OK, 3);
    for (uint32_t step = 0; step < STEPS; ++step) {
        net_label_t label;
        float loss;
        must(port_read(input, net_input(m)->values, sizeof *net_input(m)) == 0, 4);
        must(port_read(input, &label, sizeof label) == 0, 4);
        must(net_train_step(m, &label, &loss) == NET_OK, 5);
    }
    must(net_save(m, put, NULL) == NET_OK && net_delta_size(m) == NET_DELTA_BYTES, 6);
    must(net_delta_get(m, delta) == NET_OK && put(NULL, delta, NET_DELTA_BYTES) == 0, 7);
    must(net_init(&m, arena.bytes, sizeof arena.bytes) == NET_OK && net_delta_seed(m, 5u) == NET_OK, 8);
    must(net_save(m, put, NULL) == NET_OK, 9);
    for (uint32_t byte = 0; byte < NET_DELTA_BYTES; byte += 7u) {
        delta[byte] ^= 1u;
        must(net_delta_apply(m, delta, NET_DELTA_BYTES) == NET_ERR_FORMAT, 10);
        delta[byte] ^= 1u;
    }
    must(net_delta_apply(m, delta, NET_DELTA_BYTES - 1u) == NET_ERR_FORMAT, 10);
    must(net_delta_apply(m, NULL, NET_DELTA_BYTES) == NET_ERR_ARGUMENT && net_delta_get(m, NULL) == NET_ERR_ARGUMENT, 11);
    must(net_delta_apply(NULL, delta, NET_DELTA_BYTES) == NET_ERR_STATE && net_delta_get(NULL, delta) == NET_ERR_STATE, 12);
    must(net_delta_apply(m, delta, NET_DELTA_BYTES) == NET_OK && net_save(m, put, NULL) == NET_OK, 13);
    port_close(output);
    return 0;
}
