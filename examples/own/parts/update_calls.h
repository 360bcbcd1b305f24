/* SPDX-License-Identifier: Apache-2.0 */
/* An update takes several calls (--batch). */
#ifndef UPDATE_H
#define UPDATE_H

#include "samples.h"

enum { CALLS = OWN_BATCH / OWN_MICRO_BATCH };

/* Updates with the next samples, and tells the mean of the calls' losses; false if there are too few. */
static bool update_once(own_t *model, int32_t file, float *mean)
{
    static own_label_t label;
    *mean = 0.0f;
    for (uint32_t call = 0; call < CALLS; call++) {
        float loss;
        if (!give_sample(model, file, &label)) {
            return false;
        }
        check(ACCUMULATE(model, &label, &loss), "training");
        *mean += loss / (float)CALLS;
    }
    check(own_apply(model), "the update");
    return true;
}

#endif
