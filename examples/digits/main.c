/* Firmware that goes on learning: a classifier of upright digits meets digits that are turned and shifted.
 *
 * Plain C on the generated API, digits_train.h. The camera is played by two files, train.bin and test.bin, each a row
 * of records: 64 pixels and the right answer, one byte each. port.h reads them, through semihosting on the board and
 * through stdio on a host; on a product of your own, read_sample() asks your sensor instead.
 */
#include "digits_train.h"

#include "../firmware.h"

#ifdef __has_include /* --runtime schedule, which finetune asks for: the learning rate falls to 0 until the end */
#if __has_include("digits_schedule.h")
#include "digits_schedule.h"
#endif
#endif

#ifndef DIGITS_EPOCHS
#define DIGITS_EPOCHS 12 /* what --epochs, or finetune, says where it is asked */
#endif

/* All RAM that the model has. */
static GUARDED(DIGITS_ARENA_BYTES) memory PORT_ARENA_SECTION;

static void check(digits_status status, const char *what)
{
    if (status != DIGITS_OK) {
        port_print(what);
        port_print(" failed\n");
        port_exit(1);
    }
}

/* A pixel as the model takes it: 0 to 1, in int8 (--quant int8) as the input stores it. */
#ifdef DIGITS_INPUT_SCALE
static int8_t pixel(unsigned char grey)
{
    return digits_quantise_input((float)grey / 255.0f);
}
#else
static float pixel(unsigned char grey)
{
    return (float)grey / 255.0f;
}
#endif

/* Puts the next image into the model's input and returns true; false when there are no more. */
static bool read_sample(digits_t *model, int32_t file, digits_label_t *label)
{
    unsigned char record[DIGITS_INPUT_ELEMENTS + 1];
    if (port_read(file, record, sizeof record) != 0) {
        return false;
    }
    digits_input_t *const input = digits_input(model);
    for (size_t i = 0; i < DIGITS_INPUT_ELEMENTS; i++) {
        input->values[i] = pixel(record[i]);
    }
    *label = record[DIGITS_INPUT_ELEMENTS];
    return true;
}

/* Share of test images whose largest output is the right digit, in thousandths. */
static uint32_t accuracy(digits_t *model)
{
    const int32_t file = open_samples("test.bin");
    uint32_t images = 0, right = 0;
    digits_output_t scores;
    for (digits_label_t label; read_sample(model, file, &label); images++) {
        check(digits_infer(model, &scores), "inference");
        digits_label_t best = 0;
        for (digits_label_t digit = 1; digit < (digits_label_t)DIGITS_OUTPUT_ELEMENTS; digit++) {
            best = scores.values[digit] > scores.values[best] ? digit : best;
        }
        right += best == label;
    }
    port_close(file);
    return thousandths_of(right, images);
}

/* The learning rate of the next update. */
static void set_rate(digits_t *model, uint32_t update, uint32_t updates)
{
#ifdef DIGITS_SCHEDULE_H
    const digits_schedule_t falling = {.kind = DIGITS_RATE_COSINE, .rate = DIGITS_LR, .every = updates};
    check(digits_schedule_set(model, &falling, update), "setting the rate");
#else
    (void)model, (void)update, (void)updates; /* it stays what --lr says */
#endif
}

static uint32_t count_images(digits_t *model)
{
    const int32_t file = open_samples("train.bin");
    uint32_t images = 0;
    for (digits_label_t label; read_sample(model, file, &label); images++) {
    }
    port_close(file);
    return images;
}

/* One pass over the training images, of DIGITS_EPOCHS; returns the mean loss in thousandths. */
static uint32_t train(digits_t *model, uint32_t epoch, uint32_t count)
{
    const int32_t file = open_samples("train.bin");
    uint32_t images = 0;
    float sum = 0.0f;
    for (digits_label_t label; read_sample(model, file, &label); images++) {
        float loss;
        set_rate(model, (epoch - 1) * count + images, DIGITS_EPOCHS * count);
        check(digits_train_step(model, &label, &loss), "training");
        sum += loss;
    }
    port_close(file);
    return images == 0 ? 0 : (uint32_t)(1000.0f * sum / (float)images + 0.5f);
}

static void save(digits_t *model)
{
    int32_t file = port_open_output("trained.bin");
    check(file < 0 ? DIGITS_ERR_IO : digits_save(model, write_file, &file), "saving");
    port_close(file);
}

static void print_line(uint32_t epoch, uint32_t loss, uint32_t right)
{
    port_print(epoch < 10 ? "epoch  " : "epoch ");
    char text[3] = {(char)('0' + epoch / 10), (char)('0' + epoch % 10), 0};
    port_print(epoch < 10 ? text + 1 : text);
    port_print("   loss ");
    print_number(loss, false, 0);
    port_print("   held-back accuracy ");
    print_number(right, true, 0);
    port_print("\n");
}

int main(void)
{
    set_guards(memory.below, memory.above);

    digits_t *model;
    check(digits_init(&model, memory.arena, sizeof memory.arena), "init");

    port_print("before                held-back accuracy ");
    print_number(accuracy(model), true, 0);
    port_print("\n");
    const uint32_t count = count_images(model);
    for (uint32_t epoch = 1; epoch <= DIGITS_EPOCHS; epoch++) {
        const uint32_t loss = train(model, epoch, count);
        print_line(epoch, loss, accuracy(model));
    }
    save(model);
    return judge_guards(memory.below, memory.above);
}
