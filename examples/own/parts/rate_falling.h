/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate falls to 0 along a cosine, after its warm-up (--runtime schedule, which finetune recommends). */
#ifndef RATE_H
#define RATE_H

#include "check.h"
#include "own_schedule.h"
#include "settings.h"

_Static_assert(WARM_UP < EPOCHS * OWN_UPDATES_PER_EPOCH(SAMPLES), "fewer updates than --warm-up: give more --epochs");

/* Sets the learning rate of the next update. */
static void set_rate(own_t *model, uint32_t update, uint32_t updates)
{
    const own_schedule_t falling = {
        .kind = OWN_RATE_COSINE, .warm_up = WARM_UP, .rate = OWN_LR, .every = updates - WARM_UP};
    check(own_schedule_set(model, &falling, update), "setting the rate");
}

#endif
