/* Trains on input.bin, keeps the mean of the last states in RAM, and writes to output.bin the average behind every step;
 * the checkpoint behind the steps, and the one with the mean taken. */
#include "net_average.h"
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

static unsigned char kept[NET_AVERAGE_BYTES];
static int32_t output;
static uint32_t next; /* byte that a write has to begin with */

static int put(void *ctx, const void *data, size_t size)
{
    (void)ctx;
    return port_write(output, data, size);
}

static int get_kept(void *ctx, uint32_t offset, void *data, size_t size)
{
    if (ctx != NULL || size > NET_AVERAGE_BLOCK || offset + size > sizeof kept) {
        return 1;
    }
    memcpy(data, kept + offset, size);
    return 0;
}

static int put_kept(void *ctx, uint32_t offset, const void *data, size_t size)
{
    if (ctx != NULL || offset != next || size > NET_AVERAGE_BLOCK || offset + size > sizeof kept) {
        return 1;
    }
    memcpy(kept + offset, data, size);
    next += (uint32_t)size;
    return 0;
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
    net_average_t a = {get_kept, put_kept, NULL, NET_AVERAGE_WINDOW, 0};
    net_t *m = NULL;
    must(net_average_add(&a, m) == NET_ERR_STATE && net_average_take(&a, m) == NET_ERR_STATE, 2);
    must(net_init(&m, arena.bytes, sizeof arena.bytes) == NET_OK, 3);
    must(net_average_take(&a, m) == NET_ERR_ARGUMENT && net_average_add(NULL, m) == NET_ERR_ARGUMENT, 4);
    for (uint32_t step = 0; step < STEPS; ++step) {
        net_label_t label;
        float loss;
        must(port_read(input, net_input(m)->values, sizeof *net_input(m)) == 0, 5);
        must(port_read(input, &label, sizeof label) == 0, 5);
        must(net_train_step(m, &label, &loss) == NET_OK, 6);
        next = 0;
        must(net_average_add(&a, m) == NET_OK && a.count == step + 1u && next == NET_AVERAGE_BYTES, 7);
        must(put(NULL, kept, sizeof kept) == 0, 8);
    }
    must(net_save(m, put, NULL) == NET_OK, 9);
    for (uint32_t byte = 0; byte < NET_AVERAGE_BYTES; byte += 7u) {
        kept[byte] ^= 1u;
        must(net_average_take(&a, m) == NET_ERR_FORMAT && net_average_add(&a, m) == NET_ERR_FORMAT, 10);
        kept[byte] ^= 1u;
    }
    ++a.count;
    must(net_average_take(&a, m) == NET_ERR_FORMAT && net_average_add(&a, m) == NET_ERR_FORMAT, 11);
    --a.count;
    a.ctx = &a; /* the callbacks stop */
    must(net_average_take(&a, m) == NET_ERR_IO && net_average_add(&a, m) == NET_ERR_IO && a.count == STEPS, 12);
    a.ctx = NULL;
    must(net_average_take(&a, m) == NET_OK && net_save(m, put, NULL) == NET_OK, 13);
    port_close(output);
    return 0;
}
