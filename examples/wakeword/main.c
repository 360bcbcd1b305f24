/* Firmware that listens for a wake word, learns how its owner says it at the press of a button, and listens meanwhile.
 * mic.bin plays the hardware: three rows of features and the state of three buttons for every 30 ms. */
#include "../firmware.h"
#include "clips.h"
#include "lesson.h" /* made by run.py: LESSON steps, and windows of other speakers, in flash */

enum { MEAN = 5 }; /* probabilities of a decision */
static const float CUTOFF = 0.95f; /* as in the JSON file beside the model */
static const uint32_t REST = 50, CALLS = 5; /* without another decision, 1.5 s; that a step lasts at least */
static GUARDED(WAKE_ARENA_BYTES) memory PORT_ARENA_SECTION;
static wake_t *model;
static float last[MEAN], loss;
static uint32_t now, quiet, left, turn, moved; /* left, turn: steps; moved: calls since the open one may move weights */
static bool open; /* a step is */

static void check(bool good)
{
    if (!good) {
        port_print("a call failed\n");
        port_exit(1);
    }
}

static void tell(uint32_t call, const char *what)
{
    print_number(30 * (call + 1), false, 9);
    port_print(what);
}

static void hear(const int8_t *rows, uint32_t call, bool decide)
{
    wake_output_t out;
    int due;
    check(wake_hear(model, rows, CALL, &out, &due) == WAKE_OK && due);
    last[call % MEAN] = out.values[0];
    if (decide && call >= quiet && (last[0] + last[1] + last[2] + last[3] + last[4]) / (float)MEAN > CUTOFF) {
        tell(call, left == 0 ? " s  heard\n" : " s  heard, in the lesson\n");
        quiet = call + REST;
    }
}

/* Fills the rings by the present weights, and decides for the calls whose weights were on the move. */
static void hear_again(void)
{
    const uint32_t calls = moved + MEAN - 1;
    check(wake_rehear(model, kept[KEPT - calls * CALL - WHOLE], WHOLE) == WAKE_OK);
    for (uint32_t i = calls; i-- > 0;) {
        hear(kept[KEPT - (i + 1) * CALL], now - i, i < moved);
    }
    moved = 0;
}

/* A slice of a step on the owner's next window, or on the next of the others. */
static void learn(void)
{
    static wake_label_t label;
    int done = 0;
    if (!open) {
        const uint32_t i = turn / 2, own = i * 5 % clip_count, other = i % SHIPPED;
        const bool is_own = turn++ % 2 == 0;
        const int8_t *const window = is_own ? clips[own][i / clip_count % PLACES * STEP] : shipped[other][0];
        memcpy(wake_input(model)->values, window, sizeof(wake_input_t));
        label = is_own ? labels[own] : shipped_labels[other];
        loss = -1.0f;
        open = true;
        check(wake_step_begin(model) == WAKE_OK);
    }
    check(wake_step_slice(model, &label, WAKE_STEP_CYCLES / CALLS, &loss, &done) == WAKE_OK);
    open = done == 0;
    if (!open) {
        hear_again();
        if (--left == 0) {
            tell(now, " s  the lesson is over\n");
        }
    }
}

int main(void)
{
    struct heard heard;
    set_guards(memory.below, memory.above);
    check(wake_init(&model, memory.arena, sizeof memory.arena) == WAKE_OK);
    memset(kept, INT8_MIN, sizeof kept);
    for (const int32_t microphone = open_samples("mic.bin"); port_read(microphone, &heard, sizeof heard) == 0; now++) {
        push_rows(&heard);
        moved += open && loss >= 0.0f; /* the slice that tells the loss is the first that may change weights */
        hear(heard.rows[0], now, moved == 0);
        if (heard.button == WORD || heard.button == OTHER) {
            keep_clip(heard.button == WORD ? 1.0f : 0.0f);
        }
        left = heard.button == LEARN && clip_count > 0 ? LESSON : left;
        if (left > 0) {
            learn();
        }
    }
    int32_t file = port_open_output("trained.bin");
    check(file >= 0 && wake_save(model, write_file, &file) == WAKE_OK);
    port_close(file);
    return judge_guards(memory.below, memory.above);
}
