/* SPDX-License-Identifier: Apache-2.0 */
/* What examples/boards/zephyr uses of Zephyr's kernel.h, for this machine. */
#ifndef ZEPHYR_KERNEL_H
#define ZEPHYR_KERNEL_H

#include <stdio.h>

#define printk printf

#endif
