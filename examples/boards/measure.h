/* SPDX-License-Identifier: Apache-2.0 */
/* Cycles and stack of a call, on any Cortex-M. Elsewhere both are 0. docs/measure-your-board.md explains the figures. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>

#define MEASURE_REGISTER(address) (*(volatile uint32_t *)(address))

#if !defined(__arm__)
static inline int cycles_start(void)
{
    return 0;
}
static inline uint32_t cycles_now(void)
{
    return 0;
}
#elif __ARM_ARCH_ISA_THUMB == 2 /* Cortex-M3 and above: the data watchpoint unit counts, modulo 2^32 */
static inline int cycles_start(void)
{
    MEASURE_REGISTER(0xE000EDFCu) |= 1u << 24;   /* DEMCR.TRCENA */
    MEASURE_REGISTER(0xE0001FB0u) = 0xC5ACCE55u; /* DWT_LAR: the Cortex-M7 has a lock, others ignore this */
    MEASURE_REGISTER(0xE0001004u) = 0u;          /* DWT_CYCCNT */
    MEASURE_REGISTER(0xE0001000u) |= 1u;         /* DWT_CTRL.CYCCNTENA */
    return (MEASURE_REGISTER(0xE0001000u) & 1u) != 0u;
}
static inline uint32_t cycles_now(void)
{
    return MEASURE_REGISTER(0xE0001004u);
}
#else /* Cortex-M0+ and M23: SysTick, 24 bits that count down. A call has to end in 16.7 million cycles. */
static inline int cycles_start(void)
{
    MEASURE_REGISTER(0xE000E014u) = 0xFFFFFFu; /* SYST_RVR */
    MEASURE_REGISTER(0xE000E018u) = 0u;        /* SYST_CVR */
    MEASURE_REGISTER(0xE000E010u) = 5u;        /* SYST_CSR: the core's clock, no interrupt */
    return 1;
}
static inline uint32_t cycles_now(void)
{
    return MEASURE_REGISTER(0xE000E018u);
}
#endif

/* Returns the cycles between two readings. */
static inline uint32_t cycles_between(uint32_t before, uint32_t after)
{
#if defined(__arm__) && __ARM_ARCH_ISA_THUMB != 2
    return (before - after) & 0xFFFFFFu;
#else
    return after - before;
#endif
}

/* Sets `used` to the stack bytes of `call`: paints `depth` bytes below the stack pointer, calls, and looks for the lowest
 * word that changed. Nothing else here may call a function. Turn interrupts off, or their frames count too. */
#if defined(__arm__)
#define MEASURE_STACK(used, depth, call)                                                                               \
    do {                                                                                                               \
        uint32_t *measure_top;                                                                                         \
        __asm__ volatile("mov %0, sp" : "=r"(measure_top));                                                            \
        volatile uint32_t *const measure_low = measure_top - (depth) / sizeof(uint32_t);                               \
        for (volatile uint32_t *word = measure_low; word < measure_top; word++) {                                      \
            *word = 0x7AC5BE11u;                                                                                       \
        }                                                                                                              \
        call;                                                                                                          \
        volatile uint32_t *measure_mark = measure_low;                                                                 \
        while (measure_mark < measure_top && *measure_mark == 0x7AC5BE11u) {                                           \
            measure_mark++;                                                                                            \
        }                                                                                                              \
        (used) = (uint32_t)((uintptr_t)measure_top - (uintptr_t)measure_mark);                                         \
    } while (0)
#else
#define MEASURE_STACK(used, depth, call)                                                                               \
    do {                                                                                                               \
        call;                                                                                                          \
        (used) = 0;                                                                                                    \
    } while (0)
#endif

#endif
