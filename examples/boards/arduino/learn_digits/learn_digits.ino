// SPDX-License-Identifier: Apache-2.0
// The smallest sketch that learns: reads a sensor, trains on what it reads, saves now and then.
// digits is the library that `tinytrain-compile digits.onnx --package arduino` has made.
#include <digits_train.h>

alignas(DIGITS_ALIGNMENT) static unsigned char arena[DIGITS_ARENA_BYTES];
static unsigned char saved[DIGITS_CHECKPOINT_BYTES];  // the place of EEPROM, flash or a file
static size_t at;
static digits_t *model;
static int steps;
static float sum;

static int write_saved(void *, const void *data, size_t size) {
  memcpy(saved + at, data, size);
  at += size;
  return 0;
}

// A sensor that is not there: a bar in one of four places of 8 x 8 pixels. Returns what the picture shows.
static digits_label_t read_sensor(float *pixels) {
  const long what = random(4);
  for (long i = 0; i < 64; i++) {
    pixels[i] = (i / 16 == what ? 0.75f : 0.0f) + (float)random(64) / 255.0f;
  }
  return (digits_label_t)what;
}

void setup() {
  Serial.begin(115200);
  if (digits_init(&model, arena, sizeof arena) != DIGITS_OK) {
    Serial.println("the arena does not fit");
  }
}

void loop() {
  float loss;
  const digits_label_t label = read_sensor(digits_input(model)->values);
  if (digits_train_step(model, &label, &loss) != DIGITS_OK) {
    return;
  }
  sum += loss;
  if (++steps % 50 == 0) {
    Serial.println(sum / 50);
    sum = 0;
    at = 0;
    digits_save(model, write_saved, nullptr);
  }
}
