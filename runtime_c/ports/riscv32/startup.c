/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The check program's port for 32-bit RISC-V machines in QEMU: start in machine mode, traps, semihosting. */
#ifndef TT_CHECK
typedef int tt_no_check_program; /* an IDE that compiles every file it finds: nothing of this is for a firmware */
#else
#include "port.h"

#include <string.h>

extern uint32_t tt_data_start[], tt_data_end[], tt_data_load[], tt_bss_start[], tt_bss_end[];

int main(void);
_Noreturn void Reset_Handler(void);
void Trap_Handler(void);
_Noreturn void tt_start(void);
_Noreturn void tt_fault(uint32_t cause, uint32_t address);

/* The three instructions by which the emulator knows the call: uncompressed, and in one page ("RISC-V Semihosting"). */
__attribute__((noinline, aligned(16))) int32_t port_semihost(int32_t operation, const void *argument)
{
    register int32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(".balign 16\n .option push\n .option norvc\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
}

@SEMIHOSTING@
/* GCC 12 chooses its libraries by the exact -march, and has none with zicsr in it: what reads registers of the machine
 * asks the assembler alone. */
#define WITH_CSR(code) ".option push\n .option arch, +zicsr\n " code "\n .option pop\n"

/* A fresh stack first: the trap may well be an overflow of the old one. Its address is a multiple of 4 (mtvec). */
__attribute__((naked, aligned(4))) void Trap_Handler(void)
{
    __asm__ volatile("la sp, tt_stack_top\n" WITH_CSR("csrr a0, mcause\n csrr a1, mepc") "tail tt_fault");
}

_Noreturn void tt_fault(uint32_t cause, uint32_t address)
{
    print_hex("fault: trap ", cause);
    print_hex(" at ", address);
    port_print("\n");
    port_exit(EXIT_FAULT);
}

/* The machine starts here. Without an FPU in the core's flags none is switched on: its instructions would trap. */
__attribute__((naked, section(".vectors"))) void Reset_Handler(void)
{
    __asm__ volatile("la sp, tt_stack_top\n la t0, Trap_Handler\n" WITH_CSR("csrw mtvec, t0"));
#ifdef __riscv_flen
    __asm__ volatile("li t0, 0x6000\n" WITH_CSR("csrs mstatus, t0\n fscsr zero")); /* FS; rounds to nearest, ties to even */
#endif
    __asm__ volatile("tail tt_start");
}

_Noreturn void tt_start(void)
{
@REGISTERS@    memcpy(tt_data_start, tt_data_load, (size_t)((uintptr_t)tt_data_end - (uintptr_t)tt_data_start));
    memset(tt_bss_start, 0, (size_t)((uintptr_t)tt_bss_end - (uintptr_t)tt_bss_start));
    port_exit(main());
}
#endif
