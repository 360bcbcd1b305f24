// SPDX-License-Identifier: Apache-2.0
// Two models in one firmware, in C++: digits learns pictures, thermo (a line) the correction of a thermometer.
#include "digits_train.h"
#include "sensor.h"
#include "storage.h"
#include "thermo_train.h"

#if __has_include("digits_board.h")
#include "digits_board.h"
#include "thermo_board.h"
#else
#define DIGITS_IN_ARENA
#define THERMO_IN_ARENA
#endif

namespace {

DIGITS_IN_ARENA alignas(DIGITS_ALIGNMENT) unsigned char pictures[DIGITS_ARENA_BYTES];
THERMO_IN_ARENA alignas(THERMO_ALIGNMENT) unsigned char line[THERMO_ARENA_BYTES];
unsigned char saved[THERMO_CHECKPOINT_BYTES];

// y = 3 x - 2 is what the reference thermometer says where ours says x.
float train_thermo(thermo_t *model, float x)
{
    const thermo_label_t reference = {3.0f * x - 2.0f};
    float loss = 0.0f;
    thermo_input(model)->values[0] = x;
    return thermo_train_step(model, &reference, &loss) == THERMO_OK ? loss : 1e9f;
}

float train_digits(digits_t *model, uint32_t *seed)
{
    const digits_label_t label = sensor_read(seed, digits_input(model)->values);
    float loss = 0.0f;
    return digits_train_step(model, &label, &loss) == DIGITS_OK ? loss : 1e9f;
}

}  // namespace

int main()
{
    digits_t *digits = nullptr;
    thermo_t *thermo = nullptr;
    if (digits_init(&digits, pictures, sizeof pictures) != DIGITS_OK) {
        return 1;
    }
    if (thermo_init(&thermo, line, sizeof line) != THERMO_OK) {
        return 2;
    }
    uint32_t seed = 1;
    float error = 0.0f, first = 0.0f, last = 0.0f;
    for (int step = 0; step < 200; step++) {
        error = train_thermo(thermo, static_cast<float>(step % 9) / 4.0f - 1.0f);
        const float loss = train_digits(digits, &seed);
        first += step < 20 ? loss : 0.0f;
        last += step >= 180 ? loss : 0.0f;
    }
    storage place = {saved, sizeof saved, 0};
    if (thermo_save(thermo, storage_write, &place) != THERMO_OK || place.at != sizeof saved) {
        return 3;
    }
    return error < 1e-3f && last < 0.5f * first ? 0 : 4;
}
