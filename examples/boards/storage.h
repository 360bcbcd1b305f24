/* SPDX-License-Identifier: Apache-2.0 */
/* Storage that is not there: RAM in the place of flash, EEPROM or a file. Both functions are callbacks as m_save and m_load
 * take them; yours goes here. */
#ifndef STORAGE_H
#define STORAGE_H

#include <stddef.h>
#include <string.h>

typedef struct {
    unsigned char *bytes;
    size_t size;
    size_t at; /* 0 before every m_save and m_load */
} storage;

static inline int storage_write(void *ctx, const void *data, size_t size)
{
    storage *const s = (storage *)ctx;
    if (size > s->size - s->at) {
        return -1;
    }
    memcpy(s->bytes + s->at, data, size);
    s->at += size;
    return 0;
}

static inline int storage_read(void *ctx, void *data, size_t size)
{
    storage *const s = (storage *)ctx;
    if (size > s->size - s->at) {
        return -1;
    }
    memcpy(data, s->bytes + s->at, size);
    s->at += size;
    return 0;
}

#endif
