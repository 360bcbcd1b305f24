/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "learn.h"

void app_main(void)
{
    printf("learned: %d (0 is well)\n", learn());
}
