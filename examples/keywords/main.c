/* Firmware that gets used to its owner's voice: a model that knows ten words learns how one more person says them.
 *
 * Plain C on the generated API, keywords_train.h and keywords_replay.h. Four files play the microphone, each a row of
 * records: the features of a word and which word it is, one byte each. own.bin and test.bin are of the new speaker, to
 * train on and to judge by; pool.bin and old.bin of speakers that the model knows already. What it has of pool.bin it
 * replays: without, it would forget them. port.h reads the files, through semihosting on the board.
 */
#include "keywords_replay.h"
#include "keywords_train.h"
#include "port.h"

#include <stdbool.h>
#include <string.h>

#ifndef KEYWORDS_EPOCHS
#define KEYWORDS_EPOCHS 12 /* what --epochs, or finetune, says where it is asked */
#endif

enum {
    STEPS = 8,      /* features are stored in eighths of a standard deviation */
    REPLAYED = 100, /* samples of old speakers that are kept */
    SEED = 1,
    GUARD_BYTES = 4096,
    GUARD = 0xc5,
};

/* All RAM of the model; the guards show that nothing is written outside it. */
static struct {
    unsigned char below[GUARD_BYTES];
    unsigned char arena[KEYWORDS_ARENA_BYTES];
    unsigned char above[GUARD_BYTES];
} memory PORT_ARENA_SECTION;

/* RAM of the samples that are replayed. */
static _Alignas(KEYWORDS_REPLAY_ALIGNMENT) unsigned char room[REPLAYED * KEYWORDS_REPLAY_RECORD_BYTES];

static void check(keywords_status status, const char *what)
{
    if (status != KEYWORDS_OK) {
        port_print(what);
        port_print(" failed\n");
        port_exit(1);
    }
}

/* `thousandths` / 1000 with three decimals, or / 10 with one and a percent sign; right-aligned. */
static void print_number(uint32_t thousandths, bool percent)
{
    char text[6] = "     ";
    size_t at = sizeof text - 1;
    const unsigned decimals = percent ? 1 : 3;
    for (unsigned i = 0; (thousandths != 0 || i <= decimals) && at > 0; i++) {
        if (i == decimals) {
            text[--at] = '.';
        }
        text[--at] = (char)('0' + thousandths % 10);
        thousandths /= 10;
    }
    port_print(text);
    port_print(percent ? " %" : "");
}

/* A feature as the model takes it; in int8 with the input's scale and zero point. */
#ifdef KEYWORDS_INPUT_SCALE
static int8_t feature(signed char stored)
{
    const float steps = (float)stored / (float)STEPS / KEYWORDS_INPUT_SCALE;
    const int32_t value = (int32_t)(steps + (steps < 0.0f ? -0.5f : 0.5f)) + KEYWORDS_INPUT_ZERO;
    return (int8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
}
#else
static float feature(signed char stored)
{
    return (float)stored / (float)STEPS;
}
#endif

/* Puts the next word into the model's input and returns true; false when there are no more. */
static bool read_sample(keywords_t *model, int32_t file, keywords_label_t *label)
{
    signed char record[KEYWORDS_INPUT_ELEMENTS + 1];
    if (port_read(file, record, sizeof record) != 0) {
        return false;
    }
    keywords_input_t *const input = keywords_input(model);
    for (size_t i = 0; i < KEYWORDS_INPUT_ELEMENTS; i++) {
        input->values[i] = feature(record[i]);
    }
    *label = record[KEYWORDS_INPUT_ELEMENTS];
    return true;
}

static int32_t open_samples(const char *name)
{
    const int32_t file = port_open_input(name);
    if (file < 0) {
        port_print("cannot open a file of samples\n");
        port_exit(2);
    }
    return file;
}

/* Share of words that are understood, in thousandths. */
static uint32_t accuracy(keywords_t *model, const char *name)
{
    const int32_t file = open_samples(name);
    uint32_t words = 0, right = 0;
    keywords_output_t scores;
    for (keywords_label_t label; read_sample(model, file, &label); words++) {
        check(keywords_infer(model, &scores), "inference");
        keywords_label_t best = 0;
        for (keywords_label_t word = 1; word < (keywords_label_t)KEYWORDS_OUTPUT_ELEMENTS; word++) {
            best = scores.values[word] > scores.values[best] ? word : best;
        }
        right += best == label;
    }
    port_close(file);
    return words == 0 ? 0 : (1000 * right + words / 2) / words;
}

/* What the factory leaves in the device: words of speakers that the model was trained on. */
static void fill(keywords_replay_t *replay, keywords_t *model)
{
    const int32_t file = open_samples("pool.bin");
    for (keywords_label_t label; read_sample(model, file, &label);) {
        check(keywords_replay_add(replay, keywords_input(model)->values, &label), "keeping");
    }
    port_close(file);
}

/* One pass over the new speaker's words, with as many of old speakers between them; the mean loss in thousandths. */
static uint32_t train(keywords_t *model, keywords_replay_t *replay)
{
    const int32_t file = open_samples("own.bin");
    uint32_t words = 0;
    float sum = 0.0f;
    for (keywords_label_t label;; words++) {
        if (keywords_replay_due(replay)) {
            check(keywords_replay_draw(replay, keywords_input(model)->values, &label), "replay");
        } else if (!read_sample(model, file, &label)) {
            break;
        }
        float loss;
        check(keywords_train_step(model, &label, &loss), "training");
        sum += loss;
    }
    port_close(file);
    return words == 0 ? 0 : (uint32_t)(1000.0f * sum / (float)words + 0.5f);
}

static void print_accuracies(keywords_t *model)
{
    port_print("   new speaker ");
    print_number(accuracy(model, "test.bin"), true);
    port_print("   old speakers ");
    print_number(accuracy(model, "old.bin"), true);
    port_print("\n");
}

static int write_file(void *file, const void *data, size_t size)
{
    return port_write(*(const int32_t *)file, data, size);
}

static void save(keywords_t *model)
{
    int32_t file = port_open_output("trained.bin");
    check(file < 0 ? KEYWORDS_ERR_IO : keywords_save(model, write_file, &file), "saving");
    port_close(file);
}

int main(void)
{
    keywords_t *model;
    keywords_replay_t replay;
    memset(memory.below, GUARD, GUARD_BYTES);
    memset(memory.above, GUARD, GUARD_BYTES);
    check(keywords_init(&model, memory.arena, sizeof memory.arena), "init");
    check(keywords_replay_init(&replay, room, sizeof room, SEED), "replay");
    fill(&replay, model);

    port_print("before               ");
    print_accuracies(model);
    for (uint32_t epoch = 1; epoch <= KEYWORDS_EPOCHS; epoch++) {
        const char number[3] = {(char)(epoch < 10 ? ' ' : '0' + epoch / 10), (char)('0' + epoch % 10), 0};
        const uint32_t loss = train(model, &replay);
        port_print("epoch ");
        port_print(number);
        port_print("   loss ");
        print_number(loss, false);
        if ((epoch & (epoch - 1)) == 0 || epoch == KEYWORDS_EPOCHS) {
            print_accuracies(model);
        } else {
            port_print("\n");
        }
    }
    save(model);

    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (memory.below[i] != GUARD || memory.above[i] != GUARD) {
            port_print("something was written outside the arena\n");
            return 3;
        }
    }
    return 0;
}
