/* SPDX-License-Identifier: Apache-2.0 */
/* Samples to train on: those of train.bin, and after each of them an old one (--runtime replay=N). */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "input.h"
#include "own_replay.h"

static _Alignas(OWN_REPLAY_ALIGNMENT) unsigned char past[OWN_REPLAY_BYTES];
static own_replay_t replay;

/* Stores the samples that the factory leaves in the device, which the network knows. */
static void fill_replay(own_t *model)
{
    static own_label_t label;
    const int32_t file = open_samples("old.bin");
    check(own_replay_init(&replay, past, sizeof past, 1), "replay");
    while (give_input(model, file, true) && port_read(file, &label, sizeof label) == 0) {
        check(own_replay_add(&replay, own_input(model), (const own_replay_label_t *)&label), "keeping a sample");
    }
    port_close(file);
}

/* The next sample to train on, with its label; false if there are too few. */
static bool give_sample(own_t *model, int32_t file, own_label_t *label)
{
    if (own_replay_due(&replay)) {
        check(own_replay_draw(&replay, own_input(model), (own_replay_label_t *)label), "replay");
        return true;
    }
    return give_input(model, file, true) && port_read(file, label, sizeof *label) == 0;
}

#endif
