/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Where the rows of an image lie of which a stream keeps the last few. */
#ifndef TT_ROWS_H
#define TT_ROWS_H

#include <stdint.h>

/* Of `rows` rows from row `first` on: where each begins, in bytes, or -1 outside of the image of `height` rows. Row r
 * lies in slot r modulo `slots`; slots are `pitch` bytes apart. */
static inline void tt_find_rows(
    int32_t *row_at, int32_t rows, int32_t first, int32_t height, int32_t slots, int32_t pitch)
{
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t row = first + i;
        row_at[i] = row < 0 || row >= height ? -1 : row % slots * pitch;
    }
}

#endif
