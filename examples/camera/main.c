/* Learns four colours from a camera that gives its picture line by line, in RGB565. The picture is never in memory: a
 * line is converted into the row that the model takes, and is gone with the next. camera_line() stands for the camera. */
#include "camera_train.h"

#include "../firmware.h"

enum { SIZE = 16, CHANNELS = 3, COLOURS = 4, TRAINED = 600, TESTED = 200 };

_Static_assert(CAMERA_INPUT_ROWS == SIZE && CAMERA_ROW_ELEMENTS == SIZE * CHANNELS, "the camera has the model's size");

static GUARDED(CAMERA_ARENA_BYTES) memory PORT_ARENA_SECTION;

/* ---- the camera: a square of a colour somewhere on a dark ground, with noise ---- */

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

typedef struct {
    int32_t colour; /* red, green, blue, yellow */
    uint32_t top, left;
} scene_t;

static scene_t next_scene(void)
{
    return (scene_t){(int32_t)draw(COLOURS), draw(SIZE - 6), draw(SIZE - 6)};
}

static void camera_line(const scene_t *scene, uint32_t row, uint16_t line[SIZE])
{
    for (uint32_t i = 0; i < SIZE; i++) {
        const bool inside = row - scene->top < 6u && i - scene->left < 6u;
        uint32_t red = draw(8), green = draw(16), blue = draw(8);
        if (inside) {
            red += scene->colour == 0 || scene->colour == 3 ? 20u : 0u;
            green += scene->colour == 1 || scene->colour == 3 ? 40u : 0u;
            blue += scene->colour == 2 ? 20u : 0u;
        }
        line[i] = (uint16_t)(red << 11 | green << 5 | blue);
    }
}

/* ---- the model ---- */

static void check(camera_status status, const char *what)
{
    if (status != CAMERA_OK) {
        port_print(what);
        port_print(" failed\n");
        port_exit(1);
    }
}

/* Five and six bits of a colour, repeated until they are the byte that --input-type uint8 takes. */
static void from_rgb565(camera_row_t *row, const uint16_t line[SIZE])
{
    for (size_t i = 0; i < SIZE; i++) {
        const unsigned red = line[i] >> 11, green = line[i] >> 5 & 63u, blue = line[i] & 31u;
        row->values[CHANNELS * i] = (uint8_t)(red << 3 | red >> 2);
        row->values[CHANNELS * i + 1] = (uint8_t)(green << 2 | green >> 4);
        row->values[CHANNELS * i + 2] = (uint8_t)(blue << 3 | blue >> 2);
    }
}

static void show_scene(camera_t *model, const scene_t *scene)
{
    for (uint32_t i = 0; i < SIZE; i++) {
        uint16_t line[SIZE];
        camera_row_t row;
        camera_line(scene, i, line);
        from_rgb565(&row, line);
        check(camera_push_rows(model, &row, 1), "a row");
    }
}

static uint32_t right(camera_t *model)
{
    uint32_t count = 0;
    random_state = 12345; /* other scenes than those that are trained on */
    for (int i = 0; i < TESTED; i++) {
        const scene_t scene = next_scene();
        camera_output_t out;
        int32_t best = 0;
        check(camera_begin(model, CAMERA_INFER), "a picture");
        show_scene(model, &scene);
        check(camera_infer_end(model, &out), "inference");
        for (int32_t c = 1; c < COLOURS; c++) {
            best = out.values[c] > out.values[best] ? c : best;
        }
        count += best == scene.colour;
    }
    return count;
}

static void print_right(const char *when, uint32_t count)
{
    port_print(when);
    print_number(thousandths_of(count, TESTED), true, 6);
    port_print("\n");
}

int main(void)
{
    camera_t *model;
    set_guards(memory.below, memory.above);
    check(camera_init(&model, memory.arena, sizeof memory.arena), "init");
    print_right("before training", right(model));
    random_state = 1;
    for (int i = 0; i < TRAINED; i++) {
        const scene_t scene = next_scene();
        float loss;
        check(camera_begin(model, CAMERA_TRAIN), "a picture");
        show_scene(model, &scene);
        check(camera_train_end(model, &scene.colour, &loss), "training");
    }
    print_right("after 600 scenes", right(model));
    int32_t file = port_open_output("trained.bin");
    check(camera_save(model, write_file, &file), "saving");
    port_close(file);
    return judge_guards(memory.below, memory.above);
}
