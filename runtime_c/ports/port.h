/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What a check program needs from the machine it runs on: files, text, an exit code, spare RAM, a stack to measure.
 * Implementations: startup.c of cortex_m and of riscv32 (semihosting, bare metal), host.c (stdio). Not part of a user's
 * firmware. */
#ifndef TT_PORT_H
#define TT_PORT_H

#include <stddef.h>
#include <stdint.h>

int32_t port_open_input(const char *name);  /* negative: failed */
int32_t port_open_output(const char *name); /* negative: failed */
int port_read(int32_t file, void *data, size_t size);        /* 0 when all bytes came */
int port_write(int32_t file, const void *data, size_t size); /* 0 when all bytes went */
void port_close(int32_t file);
void port_print(const char *text);
_Noreturn void port_exit(int code);
unsigned char *port_spare(size_t size); /* RAM that the model does not own, aligned to 16; NULL if there is less */

/* RAM between the arena and the stack, which nobody may touch: fill it, and count the bytes that changed since. */
void port_paint_free(void);
uint32_t port_damaged_free(void);

#if (defined(__arm__) || defined(__riscv)) && !defined(__unix__)
#define PORT_BARE_METAL
int32_t port_semihost(int32_t operation, const void *argument); /* one operation of Arm's semihosting; its answer */
int32_t port_open(const char *name, uint32_t mode);             /* in a mode of SYS_OPEN; negative: failed */

/* High-water mark of one call: paint the free stack, call, look for the lowest word that changed. Nothing here may
 * call a function, so the painted range starts exactly where a callee's frame does. */
extern uint32_t tt_stack_low[];
#define PORT_ARENA_SECTION __attribute__((section(".tt_arena"), aligned(16)))
#define PORT_FURTHER_SECTION __attribute__((section(".tt_further"), aligned(16))) /* in the board's second RAM */
#define PORT_PAINT 0x7ac5be11u

static inline __attribute__((always_inline)) uint32_t *port_stack_pointer(void)
{
    uint32_t *pointer;
#ifdef __riscv
    __asm__ volatile("mv %0, sp" : "=r"(pointer));
#else
    __asm__ volatile("mov %0, sp" : "=r"(pointer));
#endif
    return pointer;
}

#define PORT_MEASURED(high_water, call)                                                                                \
    do {                                                                                                               \
        uint32_t *const port_top = port_stack_pointer();                                                               \
        for (volatile uint32_t *word = tt_stack_low; word < port_top; word++) {                                        \
            *word = PORT_PAINT;                                                                                        \
        }                                                                                                              \
        call;                                                                                                          \
        volatile uint32_t *port_mark = tt_stack_low;                                                                   \
        while (port_mark < port_top && *port_mark == PORT_PAINT) {                                                     \
            port_mark++;                                                                                               \
        }                                                                                                              \
        const uint32_t port_used = (uint32_t)((uintptr_t)port_top - (uintptr_t)port_mark);                             \
        (high_water) = port_used > (high_water) ? port_used : (high_water);                                            \
    } while (0)
#else
#define PORT_ARENA_SECTION __attribute__((aligned(16)))
#define PORT_FURTHER_SECTION __attribute__((aligned(16)))
#define PORT_MEASURED(high_water, call) call
#endif

#endif
