/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What the programs of this folder train: samples that depend on the round alone, so that a state has one successor. */
#ifndef LEARN_H
#define LEARN_H

#include <stdbool.h>
#include "m_train.h"

#ifdef __arm__
#include "port.h"
#else
#include <stdio.h>
#include <stdlib.h>
#endif

static inline void need(bool good, const char *what)
{
    if (!good) {
#ifdef __arm__
        port_print(what);
        port_exit(1);
#else
        fprintf(stderr, "%s\n", what);
        exit(1);
#endif
    }
}

/* Learns for the n-th time, 1 and on: a step, and every third time the learning rate alone. */
static inline void learn(m_t *m, int n)
{
    if (n % 3 == 2) {
        need(m_set_lr(m, 0.01f + 0.001f * (float)(n % 10)) == M_OK, "m_set_lr");
        return;
    }
    uint32_t random = (uint32_t)n * 2654435761u;
    m_input_t *input = m_input(m);
    for (size_t i = 0; i < M_INPUT_ELEMENTS; ++i) {
        random = random * 1664525u + 1013904223u;
        input->values[i] = (float)(random >> 24) / 256.0f;
    }
    const m_label_t label = n % 2;
    float loss;
    need(m_train_step(m, &label, &loss) == M_OK, "m_train_step");
}

#endif
