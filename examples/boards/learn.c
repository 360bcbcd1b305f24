/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest firmware that learns: reads a sensor, trains on what it reads, saves what it has learned.
 *
 * digits is a model that tinytrain-compile has made a package of; sensor.h and storage.h stand for hardware.
 */
#include "learn.h"
#include "digits_train.h"
#include "sensor.h"
#include "storage.h"

#if __has_include("digits_board.h") && !defined(__ZEPHYR__) && !defined(ESP_PLATFORM)
#include "digits_board.h" /* of a board: which memory the arena lies in (SDKs link by their own rules) */
#else
#define DIGITS_IN_ARENA
#define DIGITS_IN_MEMORY_1
#endif

_Static_assert(DIGITS_INPUT_IS_FLOAT && DIGITS_INPUT_ELEMENTS == SENSOR_PIXELS, "the sensor gives what the model takes");
_Static_assert(DIGITS_LABEL_CLASSES >= SENSOR_CLASSES, "the model knows all that the sensor shows");

enum { STEPS = 200, PART = 20 };

DIGITS_IN_ARENA static _Alignas(DIGITS_ALIGNMENT) unsigned char arena[DIGITS_ARENA_BYTES];
static unsigned char saved[DIGITS_CHECKPOINT_BYTES];

#if DIGITS_MEMORIES > 1 /* the plan is of two memories (--memory) */
DIGITS_IN_MEMORY_1 static _Alignas(DIGITS_ALIGNMENT) unsigned char further[DIGITS_MEMORY_1_BYTES];

static digits_status start(digits_t **model)
{
    void *const memories[DIGITS_MEMORIES] = {arena, further};
    const size_t sizes[DIGITS_MEMORIES] = {sizeof arena, sizeof further};
    return digits_init_memories(model, memories, sizes);
}
#else
static digits_status start(digits_t **model)
{
    return digits_init(model, arena, sizeof arena);
}
#endif

int learn(void)
{
    digits_t *model;
    uint32_t seed = 1;
    float loss, first = 0.0f, last = 0.0f;
    storage place = {saved, sizeof saved, 0};

    if (start(&model) != DIGITS_OK) {
        return 1;
    }
    (void)digits_load(model, storage_read, &place); /* nothing was saved before the first start: it begins anew */
    for (int step = 0; step < STEPS; step++) {
        const digits_label_t label = sensor_read(&seed, digits_input(model)->values);
        if (digits_train_step(model, &label, &loss) != DIGITS_OK) {
            return 2;
        }
        first += step < PART ? loss : 0.0f;
        last += step >= STEPS - PART ? loss : 0.0f;
    }
    place.at = 0;
    if (digits_save(model, storage_write, &place) != DIGITS_OK) {
        return 3;
    }
    return last < 0.5f * first ? 0 : 4; /* it has learned: the mean loss is less than half of what it was */
}
