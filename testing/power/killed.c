/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Learns and saves for ever, into flash.bin; done.bin gets the number of every save that has returned. Someone ends it
 * at any moment, and starts it again. `states N`, on a host: the CRC of the state after every round up to N. */
#include <string.h>

#include "learn.h"
#include "m_store.h"

#ifdef __arm__
enum { SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_SEEK = 0x0a, READ_AND_WRITE = 3 };
enum { SLOTS = 3, SECTOR = 4096, UNIT = 4, GUARD = 4096 };

/* The link script of a check has room for guards. */
static struct {
    uint8_t low[GUARD], arena[M_ARENA_BYTES], high[GUARD];
} memory PORT_ARENA_SECTION;

static int at_offset(const void *ctx, int32_t operation, uint32_t offset, const void *data, size_t size)
{
    const uint32_t file = (uint32_t)*(const int32_t *)ctx;
    const uint32_t seek[2] = {file, offset};
    const uint32_t block[3] = {file, (uint32_t)data, (uint32_t)size};
    return port_semihost(SYS_SEEK, seek) == 0 && port_semihost(operation, block) == 0 ? 0 : -1;
}

static int flash_read(void *ctx, uint32_t offset, void *data, size_t size)
{
    return at_offset(ctx, SYS_READ, offset, data, size);
}

static int flash_program(void *ctx, uint32_t offset, const void *data, size_t size)
{
    return at_offset(ctx, SYS_WRITE, offset, data, size);
}

static int flash_erase(void *ctx, uint32_t offset)
{
    static uint8_t blank[SECTOR];
    memset(blank, 0xff, sizeof blank);
    return at_offset(ctx, SYS_WRITE, offset, blank, sizeof blank);
}

int main(void)
{
    static m_slot_store_t store;
    m_t *m;
    int32_t flash = port_open("flash.bin", READ_AND_WRITE);
    int32_t done = port_open("done.bin", READ_AND_WRITE);
    const uint32_t slot = (M_STORE_SLOT_BYTES(UNIT) + SECTOR - 1u) / SECTOR * SECTOR + SECTOR;
    const m_medium_t medium = {flash_read, flash_program, flash_erase, &flash, SLOTS, slot, SECTOR, UNIT, 0xff};
    const bool ready = flash >= 0 && done >= 0 && m_init(&m, memory.arena, sizeof memory.arena) == M_OK;
    if (!ready || m_store_open(&store, &medium) != M_OK) {
        return 1;
    }
    const m_status loaded = m_store_load(&store, m);
    if (loaded != (m_store_sequence(&store) == 0 ? M_ERR_FORMAT : M_OK)) {
        return 2;
    }
    for (;;) {
        learn(m, (int)m_store_sequence(&store) + 1);
        if (m_store_save(&store, m) != M_OK) {
            return 3;
        }
        const uint32_t sequence = m_store_sequence(&store);
        if (at_offset(&done, SYS_WRITE, 4u * (sequence - 1u), &sequence, sizeof sequence) != 0) {
            return 4;
        }
    }
}
#else
static int write_piece(void *ctx, const void *data, size_t size)
{
    return fwrite(data, 1, size, ctx) == size ? 0 : -1;
}

int main(int count, char **arguments)
{
    static _Alignas(16) uint8_t arena[M_ARENA_BYTES];
    m_t *m;
    need(count == 2 && m_init(&m, arena, sizeof arena) == M_OK, "usage: states N");
    for (int n = 1; n <= atoi(arguments[1]); ++n) {
        learn(m, n);
        need(m_save(m, write_piece, stdout) == M_OK, "m_save");
    }
    return 0;
}
#endif
