/* SPDX-License-Identifier: Apache-2.0 */
/* All RAM that the model has, in two memories (--memory). Guards around them show whether something was written outside. */
#ifndef MEMORIES_H
#define MEMORIES_H

#include "check.h"

static GUARDED(OWN_ARENA_BYTES) memory PORT_ARENA_SECTION;
static GUARDED(OWN_MEMORY_1_BYTES) further PORT_FURTHER_SECTION;

static own_t *start(void)
{
    own_t *model;
    void *const memories[OWN_MEMORIES] = {memory.arena, further.arena};
    const size_t sizes[OWN_MEMORIES] = {sizeof memory.arena, sizeof further.arena};
    set_guards(memory.below, memory.above);
    set_guards(further.below, further.above);
    check(own_init_memories(&model, memories, sizes), "init");
    return model;
}

/* The exit code of main. */
static int judge(void)
{
    const int damaged = judge_guards(further.below, further.above);
    return damaged != 0 ? damaged : judge_guards(memory.below, memory.above);
}

#endif
