/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate stays what --lr says. */
#ifndef RATE_H
#define RATE_H

#include "check.h"

static void set_rate(own_t *model, uint32_t update, uint32_t updates)
{
    (void)model, (void)update, (void)updates;
}

#endif
