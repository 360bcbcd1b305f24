/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Check program of @prefix@: runs the model on the vectors in input.bin and writes all it computes to output.bin.
 *
 * The same file runs on the host and on the board; the two outputs must be equal to the byte. Records of output.bin:
 * tag, payload size, payload. Every memory lies between two guards, which must be untouched at the end.
 */
#ifndef TT_CHECK
typedef int tt_no_check_program; /* an IDE that compiles every file it finds: nothing of this is for a firmware */
#else
#include "@prefix@_train.h"
#include "port.h"

#include <string.h>

#define INPUT_MAGIC 0x56495454u /* "TTIV" */
#define GUARD_BYTES @GUARD_SIZE@u
#define GUARD_PATTERN 0xc5
#define POISON 0xa5

enum { TAG_INIT = 1, TAG_INFER, TAG_SAMPLE, TAG_APPLY, TAG_STATE, TAG_CHECKPOINT, TAG_GUARDS, TAG_STACK, TAG_END, TAG_ARENA, TAG_INFER_BATCH };
enum { EXIT_FILES = 2, EXIT_INPUT, EXIT_INIT };

/* Tags here end in an underscore, which no model's prefix does.
 *
 * The first words of input.bin; then the input slot for @prefix@_infer, then (input slot, labels) of every call that trains. */
struct header_ {
    uint32_t magic;
    uint32_t steps;
    uint32_t batch; /* samples in a step */
    uint32_t set_learning_rate;
    float learning_rate;
};

@MEMORIES@
/* Every memory with its guards; the arena is the first. */
static const struct {
    unsigned char *low, *bytes, *high;
    size_t size;
} memories[@PREFIX@_MEMORIES] = {
@MEMORY_TABLE@};

/* Where in each memory that begins which means nothing between two calls. */
static const size_t transient[@PREFIX@_MEMORIES] = {@TRANSIENT_OFFSETS@};

/* One instance of the model: where its memories are. */
struct instance_ {
    unsigned char *at[@PREFIX@_MEMORIES];
};

/* What a checkpoint must hold: offset and size of every persistent tensor, and its memory. */
static const struct {
    uint32_t offset;
    uint32_t size;
    uint32_t memory;
} state[] = {
@STATE_TABLE@};

static int32_t input_file, output_file;
static @IMAGE@ probe; /* what is inferred before and after training */
@MORE_PROBES@static @prefix@_output_t prediction;
@BATCH_OUTPUT@static uint32_t arena_high_water; /* bytes of the arena, from its start, that any call wrote */
static unsigned char paint[@PREFIX@_MEMORIES];
#ifdef __arm__
static uint32_t stack_high_water;
#endif

static void fail(const char *text, int code)
{
    port_print(text);
    port_exit(code);
}

static void get(void *data, size_t size)
{
    if (port_read(input_file, data, size) != 0) {
        fail("input.bin is too short\n", EXIT_INPUT);
    }
}

static void put(const void *data, size_t size)
{
    if (port_write(output_file, data, size) != 0) {
        fail("cannot write output.bin\n", EXIT_FILES);
    }
}

static void put_tag(uint32_t tag, size_t size)
{
    const uint32_t words[2] = {tag, (uint32_t)size};
    put(words, sizeof words);
}

static void put_word(uint32_t tag, uint32_t word)
{
    put_tag(tag, sizeof word);
    put(&word, sizeof word);
}

static const unsigned char *state_in(const struct instance_ *instance, size_t slot)
{
    return instance->at[state[slot].memory] + state[slot].offset;
}

static int same_state(const struct instance_ *a, const struct instance_ *b)
{
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        if (memcmp(state_in(a, i), state_in(b, i), state[i].size) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Bytes of a checkpoint with the memories of another instance behind it, which begin at these offsets. */
static size_t room_behind(size_t size, size_t offset[@PREFIX@_MEMORIES])
{
    size_t room = (size + 15u) & ~(size_t)15u;
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        offset[i] = room;
        room += (memories[i].size + 15u) & ~(size_t)15u;
    }
    return room;
}

static void put_state(const struct instance_ *instance)
{
    size_t total = 0;
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        total += state[i].size;
    }
    put_tag(TAG_STATE, total);
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        put(state_in(instance, i), state[i].size);
    }
}

static @prefix@_status start(@prefix@_t **model, const struct instance_ *instance)
{
    void *at[@PREFIX@_MEMORIES];
    size_t sizes[@PREFIX@_MEMORIES];
    @prefix@_status status;
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        at[i] = instance->at[i];
        sizes[i] = memories[i].size;
        memset(at[i], POISON, sizes[i]);
    }
    PORT_MEASURED(stack_high_water, status = @prefix@_init_memories(model, at, sizes));
    return status;
}

/* After every call: note how far the arena's paint is gone, then paint anew, in another colour, what no call may rely on. */
static void repaint(void)
{
    uint32_t used = @ARENA@;
    while (used > arena_high_water && memory_0.bytes[used - 1u] == paint[0]) {
        used--;
    }
    arena_high_water = used;
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        if (transient[i] < memories[i].size) {
            paint[i] = (unsigned char)~paint[i];
            memset(memories[i].bytes + transient[i], paint[i], memories[i].size - transient[i]);
        }
    }
}

@LINES@static void infer(@prefix@_t *model)
{
    uint32_t status;
@INFER@    put_tag(TAG_INFER, sizeof status + sizeof prediction);
    put(&status, sizeof status);
    put(&prediction, sizeof prediction);
    repaint();
@INFER_BATCH@}

/* A checkpoint in RAM. */
struct blob_ {
    unsigned char *data;
    size_t size;
    size_t position;
};

static int blob_read(void *context, void *data, size_t size)
{
    struct blob_ *blob = context;
    if (size > blob->size - blob->position) {
        return -1;
    }
    memcpy(data, blob->data + blob->position, size);
    blob->position += size;
    return 0;
}

@CALLS@/* How many bytes changed that nobody may touch: guards below and above the memories, free RAM. */
static void check_guards(void)
{
    uint32_t damaged[3] = {0, 0, port_damaged_free()};
    for (size_t k = 0; k < @PREFIX@_MEMORIES; k++) {
        for (size_t i = 0; i < GUARD_BYTES; i++) {
            damaged[0] += memories[k].low[i] != GUARD_PATTERN;
            damaged[1] += memories[k].high[i] != GUARD_PATTERN;
        }
    }
    put_tag(TAG_GUARDS, sizeof damaged);
    put(damaged, sizeof damaged);
}

int main(void)
{
    struct header_ header;
    @prefix@_t *model;
    input_file = port_open_input("input.bin");
    output_file = port_open_output("output.bin");
    if (input_file < 0 || output_file < 0) {
        fail("cannot open input.bin or output.bin\n", EXIT_FILES);
    }
    get(&header, sizeof header);
    if (header.magic != INPUT_MAGIC) {
        fail("input.bin is not a vector file\n", EXIT_INPUT);
    }
    get(&probe, sizeof probe);
@GET_PROBES@    port_paint_free();
    struct instance_ instance;
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        memset(memories[i].low, GUARD_PATTERN, GUARD_BYTES);
        memset(memories[i].high, GUARD_PATTERN, GUARD_BYTES);
        instance.at[i] = memories[i].bytes;
        paint[i] = POISON;
    }

    const @prefix@_status status = start(&model, &instance);
    put_word(TAG_INIT, (uint32_t)status);
    if (status != @PREFIX@_OK) {
        fail("@prefix@_init_memories failed\n", EXIT_INIT);
    }
@RUN@    check_guards();
    put_word(TAG_ARENA, arena_high_water);
    put_word(TAG_END, 0);
#ifdef __arm__ /* last, because it is the only record that a host cannot have */
    put_word(TAG_STACK, stack_high_water);
#endif
    port_close(output_file);
    port_close(input_file);
    return 0;
}
#endif
