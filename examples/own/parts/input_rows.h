/* SPDX-License-Identifier: Apache-2.0 */
/* Images come row by row (--input-lines). */
#ifndef INPUT_H
#define INPUT_H

#include "check.h"

#define INFER own_infer_end
#define TRAIN_STEP own_train_end
#define ACCUMULATE own_accumulate_end

/* Gives the rows of an image to a call that trains or infers, up to its end; false if there are none. */
static bool give_input(own_t *model, int32_t file, bool training)
{
    own_row_t row;
    for (size_t i = 0; i < OWN_INPUT_ROWS; i++) {
        if (port_read(file, &row, sizeof row) != 0) {
            return false; /* nothing has begun that would have to end */
        }
        if (i == 0) {
            check(own_begin(model, training ? OWN_TRAIN : OWN_INFER), "the beginning of an image");
        }
        check(own_push_rows(model, &row, 1), "a row");
    }
    return true;
}

#endif
