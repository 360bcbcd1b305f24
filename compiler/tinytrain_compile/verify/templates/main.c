/* Check program of @prefix@: trains on the vectors in input.bin and writes all it computes to output.bin.
 *
 * The same file runs on the host and on the board; the two outputs must be equal to the byte. Records of output.bin:
 * tag, payload size, payload. The arena lies between two guards, which must be untouched at the end.
 */
#include "@prefix@_train.h"
#include "port.h"

#include <string.h>

#define INPUT_MAGIC 0x56495454u /* "TTIV" */
#define GUARD_BYTES @GUARD_SIZE@u
#define GUARD_PATTERN 0xc5
#define POISON 0xa5

enum { TAG_INIT = 1, TAG_INFER, TAG_SAMPLE, TAG_APPLY, TAG_STATE, TAG_CHECKPOINT, TAG_GUARDS, TAG_STACK, TAG_END, TAG_ARENA };
enum { EXIT_FILES = 2, EXIT_INPUT, EXIT_INIT };

/* Tags here end in an underscore, which no model's prefix does.
 *
 * The first words of input.bin; then the sample for @prefix@_infer, then (input, label) of every training sample. */
struct header_ {
    uint32_t magic;
    uint32_t steps;
    uint32_t batch; /* samples in a step */
    uint32_t set_learning_rate;
    float learning_rate;
};

static struct {
    unsigned char low[GUARD_BYTES];
    unsigned char arena[@PREFIX@_ARENA_BYTES];
    unsigned char high[GUARD_BYTES];
} memory PORT_ARENA_SECTION;

/* What a checkpoint must hold: offset in the arena and size of every persistent tensor. */
static const struct {
    uint32_t offset;
    uint32_t size;
} state[] = {
@STATE_TABLE@};

static int32_t input_file, output_file;
static @prefix@_input_t probe; /* the sample that is inferred before and after training */
static @prefix@_output_t prediction;
static @label_ctype@ label[@LABEL_ELEMENTS@];
static uint32_t arena_high_water; /* bytes of the arena, from its start, that any call wrote */
static unsigned char paint = POISON;
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

static void put_state(const unsigned char *arena)
{
    size_t total = 0;
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        total += state[i].size;
    }
    put_tag(TAG_STATE, total);
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        put(arena + state[i].offset, state[i].size);
    }
}

static @prefix@_status start(@prefix@_t **model, unsigned char *arena)
{
    void *const memories[@PREFIX@_MEMORIES] = {arena};
    const size_t sizes[@PREFIX@_MEMORIES] = {@PREFIX@_ARENA_BYTES};
    @prefix@_status status;
    memset(arena, POISON, @PREFIX@_ARENA_BYTES);
    PORT_MEASURED(stack_high_water, status = @prefix@_init(model, memories, sizes));
    return status;
}

/* After every call: note how far the paint is gone, then paint anew, in another colour, what no call may rely on. */
static void repaint(void)
{
    uint32_t used = @PREFIX@_ARENA_BYTES;
    while (used > arena_high_water && memory.arena[used - 1u] == paint) {
        used--;
    }
    arena_high_water = used;
    if (@TRANSIENT_OFFSET@ < @PREFIX@_ARENA_BYTES) {
        paint = (unsigned char)~paint;
        memset(memory.arena + @TRANSIENT_OFFSET@, paint, @PREFIX@_ARENA_BYTES - @TRANSIENT_OFFSET@);
    }
}

static void infer(@prefix@_t *model)
{
    uint32_t status;
    memcpy(@prefix@_input(model), &probe, sizeof probe);
    PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_infer(model, &prediction));
    put_tag(TAG_INFER, sizeof status + sizeof prediction);
    put(&status, sizeof status);
    put(&prediction, sizeof prediction);
    repaint();
}

static void train_sample(@prefix@_t *model)
{
    uint32_t status;
    float loss = 0.0f;
    get(@prefix@_input(model), sizeof probe);
    get(label, sizeof label);
    PORT_MEASURED(stack_high_water, status = (uint32_t)@TRAIN_CALL@(model, label, &loss));
    put_tag(TAG_SAMPLE, sizeof status + sizeof loss);
    put(&status, sizeof status);
    put(&loss, sizeof loss);
    repaint();
}

static void train_step(@prefix@_t *model, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++) {
        train_sample(model);
    }
@APPLY@    put_state(memory.arena);
}

/* A checkpoint in RAM. */
struct blob_ {
    unsigned char *data;
    size_t size;
    size_t position;
};

static int blob_write(void *context, const void *data, size_t size)
{
    struct blob_ *blob = context;
    if (size > blob->size - blob->position) {
        return -1;
    }
    memcpy(blob->data + blob->position, data, size);
    blob->position += size;
    return 0;
}

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

static int same_state(const unsigned char *a, const unsigned char *b)
{
    for (size_t i = 0; i < sizeof state / sizeof state[0]; i++) {
        if (memcmp(a + state[i].offset, b + state[i].offset, state[i].size) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Save, load into a second instance, compare; 0, or the number of the check that failed (verify/results.py). */
static uint32_t check_checkpoint(@prefix@_t *model)
{
    const size_t size = @prefix@_state_size();
    const size_t room = (size + 15u) & ~(size_t)15u;
    unsigned char *const spare = port_spare(room + @PREFIX@_ARENA_BYTES);
    struct blob_ blob = {spare, size, 0};
    @prefix@_t *other;
    if (spare == NULL) {
        return 1;
    }
    if (@prefix@_save(model, blob_write, &blob) != @PREFIX@_OK || blob.position != size) {
        return 2;
    }
    if (start(&other, spare + room) != @PREFIX@_OK) {
        return 3;
    }
    blob.position = 0;
    if (@prefix@_load(other, blob_read, &blob) != @PREFIX@_OK) {
        return 4;
    }
    if (!same_state(memory.arena, spare + room)) {
        return 5;
    }
    blob.position = 0;
    blob.data[size / 2u] ^= 0x10u;
    return @prefix@_load(other, blob_read, &blob) == @PREFIX@_OK ? 6 : 0;
}

/* How many bytes changed that nobody may touch: guards below and above the arena, free RAM. */
static void check_guards(void)
{
    uint32_t damaged[3] = {0, 0, port_damaged_free()};
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        damaged[0] += memory.low[i] != GUARD_PATTERN;
        damaged[1] += memory.high[i] != GUARD_PATTERN;
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
    port_paint_free();
    memset(memory.low, GUARD_PATTERN, GUARD_BYTES);
    memset(memory.high, GUARD_PATTERN, GUARD_BYTES);

    const @prefix@_status status = start(&model, memory.arena);
    put_word(TAG_INIT, (uint32_t)status);
    if (status != @PREFIX@_OK) {
        fail("@prefix@_init failed\n", EXIT_INIT);
    }
    if (header.set_learning_rate != 0u) {
        (void)@prefix@_set_lr(model, header.learning_rate);
    }
    infer(model);
    for (uint32_t step = 0; step < header.steps; step++) {
        train_step(model, header.batch);
    }
    infer(model);
    put_word(TAG_CHECKPOINT, check_checkpoint(model));
    check_guards();
    put_word(TAG_ARENA, arena_high_water);
    put_word(TAG_END, 0);
#ifdef __arm__ /* last, because it is the only record that a host cannot have */
    put_word(TAG_STACK, stack_high_water);
#endif
    port_close(output_file);
    port_close(input_file);
    return 0;
}
