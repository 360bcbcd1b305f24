/* SPDX-License-Identifier: Apache-2.0 */
/* What an error does: it is printed, and the program ends. */
#ifndef CHECK_H
#define CHECK_H

#include "firmware.h"
#include "own_train.h"

static inline void check(own_status status, const char *what)
{
    if (status != OWN_OK) {
        port_print(what);
        port_print(status == OWN_ERR_NAN ? " failed: the loss is no number\n" : " failed\n");
        port_exit(1);
    }
}

#endif
