/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What kernels read of a weight whose trained channels the device chose, and how it chooses them. */
#ifndef TT_CHOSEN_H
#define TT_CHOSEN_H

#include "tt_runtime.h"

#include <string.h>

/* An element of a channel of `row` elements: of the trained ones at `place`, of all others where they lie in flash. */
static inline float tt_chosen_f32(
    const float *part, const float *whole, int32_t place, int32_t row, int32_t channel, int32_t inside)
{
    const float *at = place >= 0 ? part + place * row : whole + channel * row;
    return at[inside];
}

static inline int8_t tt_chosen_i8(
    const int8_t *part, const int8_t *whole, int32_t place, int32_t row, int32_t channel, int32_t inside)
{
    const int8_t *at = place >= 0 ? part + place * row : whole + channel * row;
    return at[inside];
}

/* Gives the `count` channels of largest score, of equal ones the first, places in their order; all others -1. */
static inline void tt_choose(int32_t *place, const float *scores, int32_t total, int32_t count)
{
    for (int32_t c = 0; c < total; ++c) {
        place[c] = -1;
    }
    for (int32_t n = 0; n < count; ++n) {
        int32_t best = -1;
        for (int32_t c = 0; c < total; ++c) {
            if (place[c] < 0 && (best < 0 || scores[c] > scores[best])) {
                best = c;
            }
        }
        place[best] = 0;
    }
    int32_t next = 0;
    for (int32_t c = 0; c < total; ++c) {
        if (place[c] >= 0) {
            place[c] = next++;
        }
    }
}

/* Copies the channels that have a place there, each of `size` bytes. */
static inline void tt_take_rows(void *part, const void *whole, const int32_t *place, int32_t total, size_t size)
{
    for (int32_t c = 0; c < total; ++c) {
        if (place[c] >= 0) {
            memcpy((uint8_t *)part + (size_t)place[c] * size, (const uint8_t *)whole + (size_t)c * size, size);
        }
    }
}

/* Whether places are those of `count` channels, in their order, and -1. */
static inline bool tt_are_places(const int32_t *place, int32_t total, int32_t count)
{
    int32_t next = 0;
    bool good = true;
    for (int32_t c = 0; c < total; ++c) {
        good = good && (place[c] == -1 || place[c] == next);
        next += place[c] == -1 ? 0 : 1;
    }
    return good && next == count;
}

#endif
