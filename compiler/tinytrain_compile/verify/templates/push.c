/* The image of a training step, row by row from the file: a fault shows when the step ends. */
static void push_file(@prefix@_t *model)
{
    static @prefix@_row_t next;
    uint32_t status;
    PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_begin(model, @PREFIX@_TRAIN));
    for (size_t row = 0; row < @PREFIX@_INPUT_ROWS; row++) {
        get(&next, sizeof next);
        PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_push_rows(model, &next, 1));
    }
    (void)status;
}

