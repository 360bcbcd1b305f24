/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The check program's port for a host: stdio. */
#ifndef TT_CHECK
typedef int tt_no_check_program; /* an IDE that compiles every file it finds: nothing of this is for a firmware */
#else
#include "port.h"

#include <stdio.h>
#include <stdlib.h>

enum { FILES = 2 };
static FILE *files[FILES];

static int32_t open_file(const char *name, const char *mode)
{
    for (int32_t i = 0; i < FILES; i++) {
        if (files[i] == NULL) {
            files[i] = fopen(name, mode);
            return files[i] == NULL ? -1 : i;
        }
    }
    return -1;
}

int32_t port_open_input(const char *name)
{
    return open_file(name, "rb");
}

int32_t port_open_output(const char *name)
{
    return open_file(name, "wb");
}

int port_read(int32_t file, void *data, size_t size)
{
    return fread(data, 1, size, files[file]) == size ? 0 : -1;
}

int port_write(int32_t file, const void *data, size_t size)
{
    return fwrite(data, 1, size, files[file]) == size ? 0 : -1;
}

void port_close(int32_t file)
{
    if (fclose(files[file]) != 0) {
        port_exit(1);
    }
    files[file] = NULL;
}

void port_print(const char *text)
{
    (void)fputs(text, stderr);
}

_Noreturn void port_exit(int code)
{
    exit(code);
}

void port_paint_free(void)
{
}

uint32_t port_damaged_free(void)
{
    return 0; /* the process has pages, not a RAM that could be watched */
}

unsigned char *port_spare(size_t size)
{
    return malloc(size); /* the process ends soon: never freed; aligned to 16 on 64-bit hosts */
}
#endif
