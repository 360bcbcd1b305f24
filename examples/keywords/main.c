/* Firmware that gets used to its owner's voice: a model that knows ten words learns how one more person says them.
 *
 * Plain C on the generated API, keywords_train.h and keywords_replay.h. Four files play the microphone, each a row of
 * records: the features of a word and which word it is, one byte each. own.bin and test.bin are of the new speaker, to
 * train on and to judge by; pool.bin and old.bin of speakers that the model knows already. What it has of pool.bin it
 * replays: without, it would forget them. port.h reads the files, through semihosting on the board.
 */
#include "keywords_replay.h"
#include "keywords_train.h"

#include "../firmware.h"

#ifndef KEYWORDS_EPOCHS
#define KEYWORDS_EPOCHS 12 /* what --epochs, or finetune, says where it is asked */
#endif

enum {
    STEPS = 8,      /* features are stored in eighths of a standard deviation */
    REPLAYED = 100, /* samples of old speakers that are kept */
    SEED = 1,
};

/* All RAM of the model. */
static GUARDED(KEYWORDS_ARENA_BYTES) memory PORT_ARENA_SECTION;

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

/* A feature as the model takes it. */
#ifdef KEYWORDS_INPUT_SCALE
static int8_t feature(signed char stored)
{
    return keywords_quantise_input((float)stored / (float)STEPS);
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
    return thousandths_of(right, words);
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
    print_number(accuracy(model, "test.bin"), true, 5);
    port_print("   old speakers ");
    print_number(accuracy(model, "old.bin"), true, 5);
    port_print("\n");
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
    set_guards(memory.below, memory.above);
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
        print_number(loss, false, 5);
        if ((epoch & (epoch - 1)) == 0 || epoch == KEYWORDS_EPOCHS) {
            print_accuracies(model);
        } else {
            port_print("\n");
        }
    }
    save(model);
    return judge_guards(memory.below, memory.above);
}
