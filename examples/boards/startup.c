/* SPDX-License-Identifier: Apache-2.0 */
/* A start-up for any Cortex-M, for a firmware without an SDK: vectors of the core, FPU, .data, .bss, main. Clocks and
 * flash wait states stay as after a reset. Its symbols are those of board/link.ld. */
#include <stdint.h>

extern uint32_t _estack[], _sidata[], _sdata[], _edata[], _sbss[], _ebss[];
extern void (*__init_array_start[])(void), (*__init_array_end[])(void);

int main(void);
void example_exit(int code);
void Reset_Handler(void);
void Fault_Handler(void);

#define SCB_CPACR (*(volatile uint32_t *)0xE000ED88u)
#define SCB_CCR (*(volatile uint32_t *)0xE000ED14u)

__attribute__((weak)) void example_exit(int code)
{
    (void)code;
}

void Fault_Handler(void)
{
    example_exit(99);
    for (;;) {
    }
}

void Reset_Handler(void)
{
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    SCB_CPACR |= 0xfu << 20; /* full access to the FPU, before any code that uses it */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
#if defined(__ARM_FEATURE_MVE)
    SCB_CCR |= 1u << 19; /* loops of the Cortex-M55 may be low-overhead ones */
#endif
    for (uint32_t *to = _sdata, *from = _sidata; to < _edata;) {
        *to++ = *from++;
    }
    for (uint32_t *to = _sbss; to < _ebss;) {
        *to++ = 0u;
    }
    for (void (**start)(void) = __init_array_start; start < __init_array_end; start++) {
        (*start)();
    }
    example_exit(main());
    for (;;) {
    }
}

typedef void (*handler)(void);
extern const struct vectors {
    const void *stack;
    handler handlers[15];
} vectors;
__attribute__((section(".vectors"), used)) const struct vectors vectors = {
    _estack,
    {Reset_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, 0, 0, 0,
     Fault_Handler, Fault_Handler, 0, Fault_Handler, Fault_Handler},
};
