/* SPDX-License-Identifier: Apache-2.0 */
/* Samples to train on: those of train.bin, and after each of them two that were kept of these (--runtime replay=N). */
#ifndef SAMPLES_H
#define SAMPLES_H

#include "input.h"
#include "own_replay.h"

static _Alignas(OWN_REPLAY_ALIGNMENT) unsigned char past[OWN_REPLAY_BYTES];
static own_replay_t replay;

static void fill_replay(own_t *model)
{
    (void)model;
    check(own_replay_init(&replay, past, sizeof past, 1), "replay");
    check(own_replay_mix(&replay, 1, 2), "replay");
}

/* The next sample to train on, with its label; false if there are too few. */
static bool give_sample(own_t *model, int32_t file, own_label_t *label)
{
    own_replay_label_t *const kept = (own_replay_label_t *)label;
    if (own_replay_due(&replay)) {
        check(own_replay_draw(&replay, own_input(model), kept), "replay");
        return true;
    }
    if (!give_input(model, file, true) || port_read(file, label, sizeof *label) != 0) {
        return false;
    }
    check(own_replay_add(&replay, own_input(model), kept), "keeping a sample");
    return true;
}

#endif
