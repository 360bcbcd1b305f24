/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The CRC of tt_runtime.h, eight bytes a turn: campaigns of millions of cases spend most of their time in it. */
#ifndef CRC_H
#define CRC_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t fast_crc32(uint32_t crc, const void *data, size_t size)
{
    static uint32_t table[8][256]; /* table[k][b]: of byte b with k zeros behind it */
    if (table[0][1] == 0) {
        for (uint32_t b = 0; b < 256; ++b) {
            uint32_t c = b;
            for (int i = 0; i < 8; ++i) {
                c = (c >> 1) ^ (c & 1u ? 0xedb88320u : 0u);
            }
            table[0][b] = c;
        }
        for (int k = 1; k < 8; ++k) {
            for (uint32_t b = 0; b < 256; ++b) {
                table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xffu];
            }
        }
    }
    const unsigned char *at = (const unsigned char *)data;
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = table[7][crc & 0xffu] ^ table[6][crc >> 8 & 0xffu] ^ table[5][crc >> 16 & 0xffu] ^ table[4][crc >> 24] ^
              table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    }
    for (; size > 0; --size, ++at) {
        crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xffu];
    }
    return ~crc;
}

#endif
