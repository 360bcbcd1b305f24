/* What the checks of the generated API stand on: models in arenas of their own, their inputs, checkpoints in memory.
 *
 * The models are net (cross-entropy, 4 classes, 12 inputs) and sums (the same network with accumulation). Arenas lie on
 * the heap and have exactly the size that the header says, so that a sanitizer sees every byte beyond them.
 */
#ifndef CHECKS_H
#define CHECKS_H

#include "net_train.h"
#include "sums_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { STREAM_ROOM = 1 << 16 };

struct stream {
    unsigned char data[STREAM_ROOM];
    size_t size;     /* bytes written */
    size_t position; /* of the next read */
    int calls_left;  /* callbacks that succeed; negative: all */
};

static int put(void *context, const void *data, size_t size)
{
    struct stream *stream = context;
    if (stream->calls_left == 0 || size > STREAM_ROOM - stream->size) {
        return -1;
    }
    stream->calls_left--;
    memcpy(stream->data + stream->size, data, size);
    stream->size += size;
    return 0;
}

static int get(void *context, void *data, size_t size)
{
    struct stream *stream = context;
    if (size > stream->size - stream->position) {
        return -1;
    }
    memcpy(data, stream->data + stream->position, size);
    stream->position += size;
    return 0;
}

static struct stream written = {.calls_left = -1}, again = {.calls_left = -1};

static void *arena_of(size_t size)
{
    void *arena = malloc(size);
    if (arena == NULL) {
        exit(2);
    }
    memset(arena, 0xa5, size);
    return arena;
}

static net_t *new_net(void)
{
    void *const memory[NET_MEMORIES] = {arena_of(NET_ARENA_BYTES)};
    const size_t size[NET_MEMORIES] = {NET_ARENA_BYTES};
    net_t *m = NULL;
    return net_init_memories(&m, memory, size) == NET_OK ? m : NULL;
}

static sums_t *new_sums(void)
{
    void *const memory[SUMS_MEMORIES] = {arena_of(SUMS_ARENA_BYTES)};
    const size_t size[SUMS_MEMORIES] = {SUMS_ARENA_BYTES};
    sums_t *m = NULL;
    return sums_init_memories(&m, memory, size) == SUMS_OK ? m : NULL;
}

static void fill(float *values, size_t count, int seed)
{
    for (size_t i = 0; i < count; ++i) {
        values[i] = (float)((int)(i * 7u + (size_t)seed * 5u) % 11 - 5) * 0.3f;
    }
}

static net_status step(net_t *m, int seed, float *loss)
{
    const net_label_t label = seed % 4;
    fill(net_input(m)->values, NET_INPUT_ELEMENTS, seed);
    return net_train_step(m, &label, loss);
}

static net_status infer(net_t *m, net_output_t *out)
{
    fill(net_input(m)->values, NET_INPUT_ELEMENTS, 3);
    return net_infer(m, out);
}

static sums_status gather(sums_t *m, int seed, float *loss)
{
    const sums_label_t label = seed % 4;
    fill(sums_input(m)->values, SUMS_INPUT_ELEMENTS, seed);
    return sums_accumulate(m, &label, loss);
}

/* The persistent bytes of an instance, as a checkpoint holds them. */
static void state_of(net_t *m, struct stream *into)
{
    into->size = into->position = 0;
    into->calls_left = -1;
    if (net_save(m, put, into) != NET_OK) {
        exit(2);
    }
}

static int same(const struct stream *a, const struct stream *b)
{
    return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

/* Whether two instances write the same; what they wrote stays in written and again. */
static int same_sums(sums_t *a, sums_t *b)
{
    written.size = again.size = 0;
    return sums_save(a, put, &written) == SUMS_OK && sums_save(b, put, &again) == SUMS_OK && same(&written, &again);
}

#endif
