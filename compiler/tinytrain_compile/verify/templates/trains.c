static @prefix@_label_t @LABELS@;
@SCORES@
static void train_samples(@prefix@_t *model)
{
    uint32_t status;
    float loss = 0.0f;
@TRAIN@    put_tag(TAG_SAMPLE, sizeof status + sizeof loss);
    put(&status, sizeof status);
    put(&loss, sizeof loss);
    repaint();
}

static void train_step(@prefix@_t *model, const struct instance_ *instance, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i += @MICRO_BATCH@) {
        train_samples(model);
    }
@APPLY@    put_state(instance);
}

static int blob_write(void *context, const void *data, size_t size)
{
    struct blob_ *blob = context;
    if (size > blob->size - blob->position) {
        return -1;
    }
    memcpy(blob->data + blob->position, data, size);
    blob->position += size;
    return 0;
}

/* Save, load into a second instance, compare; 0, or the number of the check that failed (verify/results.py). */
static uint32_t check_checkpoint(@prefix@_t *model, const struct instance_ *instance)
{
    const size_t size = @prefix@_state_size();
    size_t offset[@PREFIX@_MEMORIES];
    struct instance_ second;
    @prefix@_t *other;
    unsigned char *const spare = port_spare(room_behind(size, offset));
    struct blob_ blob = {spare, size, 0};
    if (spare == NULL) {
        return 1;
    }
    if (@prefix@_save(model, blob_write, &blob) != @PREFIX@_OK || blob.position != size) {
        return 2;
    }
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        second.at[i] = spare + offset[i];
    }
    if (start(&other, &second) != @PREFIX@_OK) {
        return 3;
    }
    blob.position = 0;
    if (@prefix@_load(other, blob_read, &blob) != @PREFIX@_OK) {
        return 4;
    }
    if (!same_state(instance, &second)) {
        return 5;
    }
    blob.position = 0;
    blob.data[size / 2u] ^= 0x10u;
    return @prefix@_load(other, blob_read, &blob) == @PREFIX@_OK ? 6 : 0;
}

