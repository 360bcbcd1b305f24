/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The check program's port for Cortex-M boards in QEMU: vectors, core set-up, faults, semihosting. */
#ifndef TT_CHECK
typedef int tt_no_check_program; /* an IDE that compiles every file it finds: nothing of this is for a firmware */
#else
#include "port.h"

#include <string.h>

extern uint32_t tt_stack_top[];
extern uint32_t tt_data_start[], tt_data_end[], tt_data_load[], tt_bss_start[], tt_bss_end[];
extern unsigned char tt_spare_start[], tt_spare_end[];
extern uint32_t tt_free_start[], tt_free_end[];

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

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT = 0x20 };
enum { MODE_READ_BINARY = 1, MODE_WRITE_BINARY = 5, EXIT_FAULT = 99 };

int32_t port_semihost(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

int32_t port_open(const char *name, uint32_t mode)
{
    const uint32_t block[3] = {(uint32_t)name, mode, (uint32_t)strlen(name)};
    return port_semihost(SYS_OPEN, block);
}

int32_t port_open_input(const char *name)
{
    return port_open(name, MODE_READ_BINARY);
}

int32_t port_open_output(const char *name)
{
    return port_open(name, MODE_WRITE_BINARY);
}

int port_read(int32_t file, void *data, size_t size)
{
    const uint32_t block[3] = {(uint32_t)file, (uint32_t)data, (uint32_t)size};
    return size == 0u || port_semihost(SYS_READ, block) == 0 ? 0 : -1; /* the answer is what did not come */
}

int port_write(int32_t file, const void *data, size_t size)
{
    const uint32_t block[3] = {(uint32_t)file, (uint32_t)data, (uint32_t)size};
    return size == 0u || port_semihost(SYS_WRITE, block) == 0 ? 0 : -1;
}

void port_close(int32_t file)
{
    const uint32_t block[1] = {(uint32_t)file};
    (void)port_semihost(SYS_CLOSE, block);
}

void port_print(const char *text)
{
    (void)port_semihost(SYS_WRITE0, text);
}

_Noreturn void port_exit(int code)
{
    const uint32_t block[2] = {0x20026u /* ADP_Stopped_ApplicationExit */, (uint32_t)code};
    for (;;) {
        (void)port_semihost(SYS_EXIT, block);
    }
}

unsigned char *port_spare(size_t size)
{
    return size <= (size_t)(tt_spare_end - tt_spare_start) ? tt_spare_start : NULL;
}

void port_paint_free(void)
{
    for (volatile uint32_t *word = tt_free_start; word < tt_free_end; word++) {
        *word = PORT_PAINT;
    }
}

uint32_t port_damaged_free(void)
{
    uint32_t damaged = 0;
    for (const volatile uint32_t *word = tt_free_start; word < tt_free_end; word++) {
        damaged += *word == PORT_PAINT ? 0u : 4u;
    }
    return damaged;
}

static void print_hex(const char *label, uint32_t number)
{
    char text[11] = "0x00000000";
    for (uint32_t i = 0; i < 8u; i++) {
        text[9u - i] = "0123456789abcdef"[(number >> (4u * i)) & 15u];
    }
    port_print(label);
    port_print(text);
}

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
