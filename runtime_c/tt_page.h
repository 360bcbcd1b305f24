/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Page moves between memories. The plan calls tt_page_out to copy a tensor out of the arena, tt_page_in to bring it back,
 * and tt_page_wait in front of the first kernel that reads what tt_page_in brought.
 *
 * As they stand they copy at once. A port with DMA defines TT_PAGE_PORT as the name of a header with its own three
 * functions. They must keep this:
 *   tt_page_out  when it returns, the source may be overwritten (the next kernel may do so);
 *   tt_page_in   may return early; the plan leaves source and destination alone until the wait for that destination;
 *   tt_page_wait when it returns, the destination holds the data, also as caches see it.
 * Sizes are whole tensors; addresses have the alignment of the arena.
 */
#ifndef TT_PAGE_H
#define TT_PAGE_H

#ifdef TT_PAGE_PORT
#include TT_PAGE_PORT
#else
#include <stddef.h>
#include <string.h>

static inline void tt_page_out(void *further, const void *arena, size_t size)
{
    memcpy(further, arena, size);
}

static inline void tt_page_in(void *arena, const void *further, size_t size)
{
    memcpy(arena, further, size);
}

static inline void tt_page_wait(const void *arena)
{
    (void)arena;
}
#endif

#endif
