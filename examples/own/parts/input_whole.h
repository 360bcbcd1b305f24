/* SPDX-License-Identifier: Apache-2.0 */
/* A sample is put into the input slot as a whole. */
#ifndef INPUT_H
#define INPUT_H

#include "check.h"

#define INFER own_infer
#define TRAIN_STEP own_train_step
#define ACCUMULATE own_accumulate

/* Puts the samples of a call that trains, or one sample to infer, into the input slot; false if there are none. */
static bool give_input(own_t *model, int32_t file, bool training)
{
    const size_t size = training ? sizeof(own_input_t) : sizeof(own_input_t) / OWN_MICRO_BATCH;
    return port_read(file, own_input(model), size) == 0;
}

#endif
