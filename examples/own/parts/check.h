/* SPDX-License-Identifier: Apache-2.0 */
/* Prints an error and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include "firmware.h"
#include "own_train.h"

static inline void check(own_status status, const char *what)
{
    if (status != OWN_OK) {
        port_print(what);
        port_print(status == OWN_ERR_NAN ? " failed: the loss is not a number\n" : " failed\n");
        port_exit(1);
    }
}

#endif
