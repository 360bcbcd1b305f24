/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The check program's port for Cortex-M boards in QEMU: vectors, core set-up, faults, semihosting. */
#ifndef TT_CHECK
typedef int tt_no_check_program; /* an IDE that compiles every file it finds: nothing of this is for a firmware */
#else
#include "port.h"

#include <string.h>

extern uint32_t tt_stack_top[];
extern uint32_t tt_data_start[], tt_data_end[], tt_data_load[], tt_bss_start[], tt_bss_end[];

int main(void);
_Noreturn void Reset_Handler(void);
void Fault_Handler(void);
_Noreturn void tt_fault(uint32_t ipsr);

#define SCB_CCR (*(volatile uint32_t *)0xE000ED14u)
#define SCB_CFSR (*(volatile uint32_t *)0xE000ED28u)
#define SCB_CPACR (*(volatile uint32_t *)0xE000ED88u)
#define CCR_UNALIGN_TRP (1u << 3)
#define CCR_LOB (1u << 19)
#define CPACR_FULL_FPU (0xfu << 20)
#define FPSCR_FZ16_RMODE_FZ_DN_AHP ((1u << 19) | (3u << 22) | (1u << 24) | (1u << 25) | (1u << 26))

int32_t port_semihost(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

@SEMIHOSTING@
/* A fresh stack first: the fault may well be an overflow of the old one. */
__attribute__((naked)) void Fault_Handler(void)
{
    __asm__ volatile("mrs r0, ipsr\n ldr r1, =tt_stack_top\n mov sp, r1\n bl tt_fault\n .ltorg");
}

_Noreturn void tt_fault(uint32_t ipsr)
{
    print_hex("fault: exception ", ipsr);
    print_hex(", CFSR ", SCB_CFSR);
    port_print("\n");
    port_exit(EXIT_FAULT);
}

static void set_up_core(void)
{
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    SCB_CPACR |= CPACR_FULL_FPU;
    __asm__ volatile("dsb\n isb" ::: "memory");
    uint32_t fpscr; /* other bits stay: LTPSIZE must keep its reset value on Armv8.1-M */
    __asm__ volatile("vmrs %0, fpscr" : "=r"(fpscr));
    __asm__ volatile("vmsr fpscr, %0" ::"r"(fpscr & ~FPSCR_FZ16_RMODE_FZ_DN_AHP));
#endif
#if defined(__ARM_FEATURE_MVE)
    SCB_CCR |= CCR_LOB;
#endif
#if __ARM_ARCH == 6
    SCB_CCR |= CCR_UNALIGN_TRP; /* Armv6-M code on the M3 board: fault where a real Cortex-M0+ would */
#endif
@REGISTERS@    __asm__ volatile("dsb\n isb" ::: "memory");
}

_Noreturn void Reset_Handler(void)
{
    set_up_core();
    memcpy(tt_data_start, tt_data_load, (size_t)((uintptr_t)tt_data_end - (uintptr_t)tt_data_start));
    memset(tt_bss_start, 0, (size_t)((uintptr_t)tt_bss_end - (uintptr_t)tt_bss_start));
    port_exit(main());
}

typedef void (*handler)(void);
struct vector_table {
    const void *stack;
    handler handlers[15];
};

/* 1 reset, 2 NMI, 3 to 7 faults, 11 SVCall, 12 debug, 14 PendSV, 15 SysTick */
extern const struct vector_table tt_vectors;
__attribute__((section(".vectors"), used)) const struct vector_table tt_vectors = {
    tt_stack_top,
    {Reset_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, Fault_Handler, 0, 0, 0,
     Fault_Handler, Fault_Handler, 0, Fault_Handler, Fault_Handler},
};
#endif
