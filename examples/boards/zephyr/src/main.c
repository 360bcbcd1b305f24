/* SPDX-License-Identifier: Apache-2.0 */
#include <zephyr/kernel.h>

#include "learn.h"

int main(void)
{
    printk("learned: %d (0 is well)\n", learn());
    return 0;
}
