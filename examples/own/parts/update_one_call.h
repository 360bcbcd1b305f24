/* SPDX-License-Identifier: Apache-2.0 */
/* An update is one call. */
#ifndef UPDATE_H
#define UPDATE_H

#include "samples.h"

/* Updates with the next samples, and tells their loss; false if there are too few. */
static bool update_once(own_t *model, int32_t file, float *loss)
{
    static own_label_t label;
    if (!give_sample(model, file, &label)) {
        return false;
    }
    check(TRAIN_STEP(model, &label, loss), "training");
    return true;
}

#endif
