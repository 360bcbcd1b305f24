/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the emulator with the program's result (semihosting, SYS_EXIT_EXTENDED). Not for a board. */
#include <stdint.h>

void example_exit(int code);

void example_exit(int code)
{
    const uint32_t block[2] = {0x20026u, (uint32_t)code};
    register uint32_t r0 __asm__("r0") = 0x20u;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
