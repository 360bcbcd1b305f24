/* Damages a checkpoint in every way and loads it: built for a generated project named net, under sanitizers. */
#include "net_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOSTILE 3000
#define STEPS 3

typedef struct {
    unsigned char *data;
    size_t size;
    size_t place;
} stream;

static union {
    unsigned char bytes[NET_ARENA_BYTES];
    long double alignment;
    unsigned char room[NET_ARENA_BYTES + 64];
} arena;
static net_t *model;
static size_t size;
static unsigned char *initial, *trained, *damaged, *found;
static unsigned long seed = 1;

static unsigned long draw(void)
{
    seed = (seed * 1103515245ul + 12345ul) & 0x7ffffffful;
    return seed >> 8;
}

static void fail(const char *what, size_t place)
{
    printf("%s at %lu of %lu\n", what, (unsigned long)place, (unsigned long)size);
    exit(1);
}

static int write_piece(void *ctx, const void *data, size_t bytes)
{
    stream *const s = ctx;
    if (s->place + bytes > s->size) {
        return 1;
    }
    memcpy(s->data + s->place, data, bytes);
    s->place += bytes;
    return 0;
}

static int read_piece(void *ctx, void *data, size_t bytes)
{
    stream *const s = ctx;
    if (s->place + bytes > s->size) {
        return 1;
    }
    memcpy(data, s->data + s->place, bytes);
    s->place += bytes;
    return 0;
}

static void save(unsigned char *data)
{
    stream s = {data, size, 0};
    if (net_save(model, write_piece, &s) != NET_OK || s.place != size) {
        fail("net_save failed", s.place);
    }
}

static net_status load(unsigned char *data, size_t bytes)
{
    stream s = {data, bytes, 0};
    return net_load(model, read_piece, &s);
}

/* A refused checkpoint leaves the initial state. */
static void check_refused(size_t bytes, net_status wanted, size_t place)
{
    if (load(damaged, bytes) != wanted) {
        fail("a damaged checkpoint was not refused as it should be", place);
    }
    save(found);
    if (memcmp(found, initial, size) != 0) {
        fail("a refused checkpoint left another state than the initial one", place);
    }
}

static void train(void)
{
    static net_label_t label[NET_LABEL_ELEMENTS];
    static net_output_t output;
    float loss = 0.0f;
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
        net_input(model)->values[i] = (float)draw() / 16384.0f - 256.0f > 0.0f ? 1 : -1;
    }
    (void)net_infer(model, &output);
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
        net_input(model)->values[i] = draw() % 2u ? 1 : 0;
    }
#if NET_HAS_ACCUMULATE
    (void)net_accumulate(model, label, &loss);
    (void)net_apply(model);
#else
    (void)net_train_step(model, label, &loss);
#endif
}

static void flip_every_bit(void)
{
    for (size_t bit = 0; bit < 8u * size; ++bit) {
        damaged[bit / 8u] ^= (unsigned char)(1u << bit % 8u);
        check_refused(size, NET_ERR_FORMAT, bit);
        damaged[bit / 8u] ^= (unsigned char)(1u << bit % 8u);
    }
}

/* Cut short: the reader fails, or finds erased flash behind the cut. */
static void cut_everywhere(void)
{
    for (size_t bytes = 0; bytes < size; ++bytes) {
        check_refused(bytes, NET_ERR_IO, bytes);
        for (int erased = 0; erased < 256; erased += 255) {
            memcpy(damaged, trained, bytes);
            memset(damaged + bytes, erased, size - bytes);
            if (memcmp(damaged, trained, size) != 0) {
                check_refused(size, NET_ERR_FORMAT, bytes);
            }
            memcpy(damaged, trained, size);
        }
    }
}

static void seal(void)
{
    unsigned long crc = 0xfffffffful;
    for (size_t i = 0; i + 4u < size; ++i) {
        crc ^= damaged[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (crc & 1ul ? 0xedb88320ul : 0ul);
        }
    }
    for (size_t i = 0; i < 4u; ++i) {
        damaged[size - 4u + i] = (unsigned char)((crc ^ 0xfffffffful) >> 8u * i);
    }
}

/* With a right CRC any state may be accepted; then a step may compute what it likes, but nothing undefined. */
static int forge(void)
{
    static const unsigned char ends[] = {0x00, 0xff, 0x7f, 0x80, 0x01};
    int accepted = 0;
    for (int i = 0; i < HOSTILE; ++i) {
        memcpy(damaged, trained, size);
        for (unsigned long n = 1u + draw() % 4u; n > 0u; --n) {
            const size_t place = (size_t)draw() % (size - 4u);
            const size_t run = draw() % 2u ? 1u : 4u;
            const unsigned char value = draw() % 2u ? ends[draw() % 5u] : (unsigned char)draw();
            for (size_t k = place; k < place + run && k < size - 4u; ++k) {
                damaged[k] = value;
            }
        }
        seal();
        const net_status status = load(damaged, size);
        if (status == NET_OK) {
            ++accepted;
            train();
            train();
        } else {
            check_refused(size, NET_ERR_FORMAT, (size_t)i);
        }
    }
    return accepted;
}

int main(void)
{
    void *const memory[NET_MEMORIES] = {arena.bytes};
    const size_t sizes[NET_MEMORIES] = {sizeof arena};
    if (net_init_memories(&model, memory, sizes) != NET_OK) {
        fail("net_init failed", 0);
    }
    size = net_state_size();
    initial = malloc(size);
    trained = malloc(size);
    damaged = malloc(size);
    found = malloc(size);
    if (initial == NULL || trained == NULL || damaged == NULL || found == NULL) {
        fail("no memory", 0);
    }
    save(initial);
    for (int i = 0; i < STEPS; ++i) {
        train();
    }
    save(trained);
    memcpy(damaged, trained, size);
    flip_every_bit();
    cut_everywhere();
    memcpy(damaged, trained, size);
    seal();
    if (memcmp(damaged, trained, size) != 0) {
        fail("the CRC is not the one of the format", size - 4u);
    }
    const int accepted = forge();
    if (load(trained, size) != NET_OK) {
        fail("a sound checkpoint was refused", 0);
    }
    save(found);
    if (memcmp(found, trained, size) != 0) {
        fail("a loaded checkpoint is another", 0);
    }
    printf("%lu bits, %lu cuts, %d forged, of which %d accepted\n", (unsigned long)(8u * size),
           (unsigned long)(3u * size), HOSTILE, accepted);
    return 0;
}
