/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Vectors that count from 0 (Helium). */
#ifndef TT_MVE_COUNT_H
#define TT_MVE_COUNT_H

#include "tt_runtime.h"

#if TT_HAS_MVE || TT_HAS_MVE_FLOAT
#include <arm_mve.h>

/* 0, 1, 2 ... GCC 12 must not see that vidup counts from 0: at -O1 it takes the number that follows the last one from a vidup
 * that it then leaves out. */
static inline TT_ALWAYS uint16x8_t tt_count_x8(void)
{
    uint32_t none = 0;
    TT_UNSEEN(none);
    return vidupq_n_u16(none, 1);
}

static inline TT_ALWAYS uint8x16_t tt_count_x16(void)
{
    uint32_t none = 0;
    TT_UNSEEN(none);
    return vidupq_n_u8(none, 1);
}

static inline TT_ALWAYS uint32x4_t tt_count_x4(void)
{
    uint32_t none = 0;
    TT_UNSEEN(none);
    return vidupq_n_u32(none, 1);
}
#endif

#endif
