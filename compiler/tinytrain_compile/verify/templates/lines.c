/* A callback of which the first image is asked for: rows of the probe. */
static int probe_row(void *context, size_t row, void *to)
{
    (void)context;
    memcpy(to, &probe.rows[row], sizeof probe.rows[row]);
    return 0;
}

/* The first image is asked for by the model, the second is pushed, some rows at a time. */
static uint32_t infer_lines(@prefix@_t *model)
{
    static int pushes;
    uint32_t status;
    if (!pushes) {
        pushes = 1;
        return (uint32_t)@prefix@_infer_rows(model, probe_row, NULL, &prediction);
    }
    PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_begin(model, @PREFIX@_INFER));
    for (size_t row = 0, count = 1; row < @PREFIX@_INPUT_ROWS && status == @PREFIX@_OK; count = count % 3u + 1u) {
        const size_t n = count < @PREFIX@_INPUT_ROWS - row ? count : @PREFIX@_INPUT_ROWS - row;
        PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_push_rows(model, &probe.rows[row], n));
        row += n;
    }
    if (status == @PREFIX@_OK) {
        PORT_MEASURED(stack_high_water, status = (uint32_t)@prefix@_infer_end(model, &prediction));
    }
    return status;
}

