/* Whether the state is that of another instance, which has loaded nothing. */
static int is_initial(const struct instance_ *instance, unsigned char *spare, const size_t *offset)
{
    struct instance_ second;
    @prefix@_t *other;
    for (size_t i = 0; i < @PREFIX@_MEMORIES; i++) {
        second.at[i] = spare + offset[i];
    }
    if (start(&other, &second) != @PREFIX@_OK) {
        return 0;
    }
    return same_state(instance, &second);
}

/* Loads the checkpoint of the file: damaged first, then as it is. 0, or the number of the check that failed
 * (verify/results.py). */
static uint32_t load(@prefix@_t *model, const struct instance_ *instance)
{
    const size_t size = @prefix@_state_size();
    size_t offset[@PREFIX@_MEMORIES];
    unsigned char *const spare = port_spare(room_behind(size, offset));
    struct blob_ blob = {spare, size, 0};
    if (spare == NULL) {
        return 1;
    }
    get(spare, size);
    spare[size / 2u] ^= 0x10u;
    if (@prefix@_load(model, blob_read, &blob) == @PREFIX@_OK) {
        return 6;
    }
    if (!is_initial(instance, spare, offset)) {
        return 7;
    }
    spare[size / 2u] ^= 0x10u;
    blob.position = 0;
    return @prefix@_load(model, blob_read, &blob) == @PREFIX@_OK && blob.position == size ? 0 : 4;
}

