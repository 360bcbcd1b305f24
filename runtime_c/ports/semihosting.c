/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Arm's semihosting, which QEMU has for RISC-V too: files, text, an exit code. Part of the start-up code of every port, which
 * has port_semihost itself. */
extern unsigned char tt_spare_start[], tt_spare_end[];
extern uint32_t tt_free_start[], tt_free_end[];

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT = 0x20 };
enum { MODE_READ_BINARY = 1, MODE_WRITE_BINARY = 5, EXIT_FAULT = 99 };

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
