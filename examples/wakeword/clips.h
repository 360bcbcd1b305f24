/* What was heard lately, and clips of what the owner said: rows of features, no call of the model. */
#ifndef WAKEWORD_CLIPS_H
#define WAKEWORD_CLIPS_H

#include "wake_train.h"

#include <string.h>

enum {
    CALL = WAKE_HEAR_FRAMES,
    ROW = WAKE_HEAR_FRAME_ELEMENTS,
    WINDOW = WAKE_HEAR_WINDOW,
    WHOLE = (WINDOW + CALL - 1) / CALL * CALL, /* rows of wake_rehear */
    KEPT = 2 * WHOLE, /* rows that are kept: 3.6 s */
    PLACES = 4, /* windows of a clip */
    STEP = 6, /* rows between two of them */
    LATEST = 30, /* rows between the end of the speech and that of the last window */
    CLIP = WINDOW + STEP * (PLACES - 1),
    CLIPS = 11,
    QUIET = -70, /* mean of a row without speech, at most */
};

enum button {
    WORD = 1, /* that was the word */
    OTHER, /* that was something else */
    LEARN,
};

/* What microphone and buttons give in 30 ms. */
struct heard {
    int8_t rows[CALL][ROW], button;
};

static int8_t kept[KEPT][ROW], clips[CLIPS][CLIP][ROW];
static wake_label_t labels[CLIPS];
static uint32_t clip_count;

static inline void push_rows(const struct heard *heard)
{
    memmove(kept, kept[CALL], sizeof kept - sizeof heard->rows);
    memcpy(kept[KEPT - CALL], heard->rows, sizeof heard->rows);
}

static inline bool is_speech(const int8_t *row)
{
    int sum = 0;
    for (size_t i = 0; i < ROW; i++) {
        sum += row[i];
    }
    return sum > QUIET * (int)ROW;
}

/* Keeps what was said last as a clip. Once there is no room, nothing more is kept. */
static inline void keep_clip(wake_label_t label)
{
    size_t end = KEPT - LATEST;
    while (end > CLIP && !is_speech(kept[end - 1])) {
        end--;
    }
    if (clip_count < CLIPS) {
        memcpy(clips[clip_count], kept[end + LATEST - CLIP], sizeof clips[0]);
        labels[clip_count++] = label;
    }
}

#endif
