/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples' main.c have in common, on port.h: numbers in text, files of samples, guards around a memory. */
#ifndef EXAMPLES_FIRMWARE_H
#define EXAMPLES_FIRMWARE_H

#include "port.h"

#include <stdbool.h>
#include <string.h>

enum { GUARD_BYTES = 4096, GUARD = 0xc5 };

/* All RAM of a model, of `bytes`. The guards show that nothing is written outside it. */
#define GUARDED(bytes)                                                                                                 \
    struct {                                                                                                           \
        unsigned char below[GUARD_BYTES];                                                                              \
        unsigned char arena[bytes];                                                                                    \
        unsigned char above[GUARD_BYTES];                                                                              \
    }

static inline void set_guards(unsigned char *below, unsigned char *above)
{
    memset(below, GUARD, GUARD_BYTES);
    memset(above, GUARD, GUARD_BYTES);
}

/* The exit code of main: 0, or 3 where something was written outside the memory. */
static inline int judge_guards(const unsigned char *below, const unsigned char *above)
{
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (below[i] != GUARD || above[i] != GUARD) {
            port_print("something was written outside the arena\n");
            return 3;
        }
    }
    return 0;
}

/* `thousandths` / 1000 with three decimals, or / 10 with one and a percent sign; right-aligned in `width`, up to 15. */
static inline void print_number(uint32_t thousandths, bool percent, size_t width)
{
    char text[16];
    memset(text, ' ', sizeof text);
    size_t at = sizeof text - 1;
    text[at] = 0;
    const unsigned decimals = percent ? 1 : 3;
    for (unsigned i = 0; thousandths != 0 || i <= decimals; i++) {
        if (i == decimals) {
            text[--at] = '.';
        }
        text[--at] = (char)('0' + thousandths % 10);
        thousandths /= 10;
    }
    const size_t aligned = sizeof text - 1 - width;
    port_print(text + (aligned < at ? aligned : at));
    port_print(percent ? " %" : "");
}

static inline int32_t open_samples(const char *name)
{
    const int32_t file = port_open_input(name);
    if (file < 0) {
        port_print("cannot open ");
        port_print(name);
        port_print("\n");
        port_exit(2);
    }
    return file;
}

/* What m_save calls; file: the number of an open file. */
static inline int write_file(void *file, const void *data, size_t size)
{
    return port_write(*(const int32_t *)file, data, size);
}

/* A share in thousandths, rounded; of none it is 0. */
static inline uint32_t thousandths_of(uint32_t part, uint32_t all)
{
    return all == 0 ? 0 : (1000 * part + all / 2) / all;
}

#endif
