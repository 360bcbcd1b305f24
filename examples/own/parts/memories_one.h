/* SPDX-License-Identifier: Apache-2.0 */
/* All RAM that the model has: one arena. Guards around it show whether something was written outside. */
#ifndef MEMORIES_H
#define MEMORIES_H

#include "check.h"

static GUARDED(OWN_ARENA_BYTES) memory PORT_ARENA_SECTION;

static own_t *start(void)
{
    own_t *model;
    set_guards(memory.below, memory.above);
    check(own_init(&model, memory.arena, sizeof memory.arena), "init");
    return model;
}

/* The exit code of main. */
static int judge(void)
{
    return judge_guards(memory.below, memory.above);
}

#endif
