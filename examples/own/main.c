/* SPDX-License-Identifier: Apache-2.0 */
/* Firmware that trains a model of your own on samples of your own, whatever they are.
 *
 * run.py copies this file beside your samples, with your model's name in place of `own`, and for each of the headers
 * below the file of parts/ that your model needs. The sensor is played by files: train.bin holds what each training call
 * takes, the bytes of the input slot and after them those of its labels; test.bin holds inputs alone. On a product of
 * your own, input.h asks your sensor instead. What was learned goes to trained.bin, and what the model then makes of
 * test.bin to outputs.bin.
 */
#include "own_train.h"

#include "firmware.h"

#include "check.h"    /* what an error does */
#include "input.h"    /* how a sample gets into the model */
#include "memories.h" /* where the model is */
#include "rate.h"     /* the learning rate of an update */
#include "samples.h"  /* which sample is next */
#include "settings.h" /* SAMPLES, EPOCHS, WARM_UP */
#include "update.h"   /* the calls of an update */

enum { UPDATES = OWN_UPDATES_PER_EPOCH(SAMPLES) };

static void print_loss(uint32_t epoch, float loss)
{
    const float size = loss < 0.0f ? -loss : loss;
    char digits[11] = "          ";
    size_t at = sizeof digits - 1;
    do {
        digits[--at] = (char)('0' + epoch % 10);
        epoch /= 10;
    } while (epoch != 0);
    port_print("epoch ");
    port_print(digits + (at < 8 ? at : 8)); /* in a width of 2 */
    port_print(loss < 0.0f ? "   loss -" : "   loss ");
    print_number(size < 4e6f ? (uint32_t)(1000.0f * size + 0.5f) : UINT32_MAX, false, 0);
    port_print("\n");
}

/* One pass over train.bin: prints its mean loss. */
static void train(own_t *model, uint32_t epoch)
{
    const int32_t file = open_samples("train.bin");
    float loss, sum = 0.0f;
    for (uint32_t i = 0; i < UPDATES; i++) {
        set_rate(model, epoch * UPDATES + i, EPOCHS * UPDATES);
        check(update_once(model, file, &loss) ? OWN_OK : OWN_ERR_IO, "reading train.bin");
        sum += loss;
    }
    port_close(file);
    print_loss(epoch + 1, sum / (float)UPDATES);
}

/* What the model makes of each sample of test.bin. */
static void infer_all(own_t *model)
{
    static own_output_t outputs;
    const int32_t from = open_samples("test.bin"), to = port_open_output("outputs.bin");
    while (give_input(model, from, false)) {
        check(INFER(model, &outputs), "inference");
        check(port_write(to, &outputs, sizeof outputs) == 0 ? OWN_OK : OWN_ERR_IO, "writing outputs");
    }
    port_close(from);
    port_close(to);
}

static void save(own_t *model)
{
    int32_t file = port_open_output("trained.bin");
    check(file < 0 ? OWN_ERR_IO : own_save(model, write_file, &file), "saving");
    port_close(file);
}

int main(void)
{
    own_t *const model = start();
    fill_replay(model);
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        train(model, epoch);
    }
    infer_all(model);
    save(model);
    return judge();
}
