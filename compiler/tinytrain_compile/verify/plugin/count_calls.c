/* TCG plugin for QEMU (plugin API 1, QEMU 7.2 and later): instructions executed in every call of the model's API, by
 * function. Needs no QEMU header: the few functions of the stable interface that it uses are declared here.
 *
 *   qemu-system-arm ... -plugin count_calls.so,ranges=FILE,out=FILE[,blocks=FILE]
 *
 * `ranges` has a line "low high kind" (hex, hex, letter) per function: a = API, k = function of the model, p = check
 * program. A call starts where an API function is entered from the check program and ends where that continues.
 * Functions in no range (scalar helpers, libgcc) count for the function of the model that called them. `out` gets a
 * line "call N" per call, N the number of the API function's range, then "N count" for every range that executed.
 * `blocks` gets "call", then "address instructions executions" (the first in hex) per executed block of straight code. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int qemu_plugin_version = 1;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int flags, void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
EXPORTED int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv);

enum { HELPER = 'h', CALL = 'a', KERNEL = 'k', PROGRAM = 'p' };

struct range {
    uint64_t low, high, count;
    char kind;
};
struct block { /* of straight code: instructions, and the range it lies in */
    uint64_t address, instructions, executions;
    struct block *next;
    size_t range;
    char kind;
};

static struct range *ranges;
static size_t range_count;
static struct block *blocks;
static FILE *out, *block_out;
static int active;
static size_t call, owner;

static void put_blocks(void)
{
    fprintf(block_out, "call\n");
    for (struct block *b = blocks; b != NULL; b = b->next) {
        if (b->executions != 0) {
            fprintf(block_out, "%" PRIx64 " %" PRIu64 " %" PRIu64 "\n", b->address, b->instructions, b->executions);
            b->executions = 0;
        }
    }
}

static void end_call(void)
{
    fprintf(out, "call %zu\n", call);
    for (size_t i = 0; i < range_count; i++) {
        if (ranges[i].count != 0) {
            fprintf(out, "%zu %" PRIu64 "\n", i, ranges[i].count);
            ranges[i].count = 0;
        }
    }
    if (block_out != NULL) {
        put_blocks();
    }
    active = 0;
}

static void execute(unsigned cpu, void *data)
{
    struct block *block = data;
    (void)cpu;
    if (block->kind == PROGRAM && active) {
        end_call();
    }
    if (block->kind == CALL && !active) {
        call = block->range;
        active = 1;
    }
    if (block->kind == CALL || block->kind == KERNEL) {
        owner = block->range;
    }
    if (active) {
        ranges[owner].count += block->instructions;
        block->executions++;
    }
}

static void translate(plugin_id id, struct qemu_plugin_tb *tb)
{
    const uint64_t address = qemu_plugin_tb_vaddr(tb);
    struct block *block = calloc(1, sizeof *block);
    (void)id;
    block->address = address;
    block->instructions = qemu_plugin_tb_n_insns(tb);
    block->next = blocks;
    blocks = block;
    block->kind = HELPER;
    for (size_t i = 0; i < range_count; i++) {
        if (ranges[i].low <= address && address < ranges[i].high) {
            block->range = i;
            block->kind = ranges[i].kind;
        }
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb, execute, 0, block); /* lives as long as the translation: for ever */
}

static void finish(plugin_id id, void *data)
{
    (void)id;
    (void)data;
    fclose(out);
    if (block_out != NULL) {
        fclose(block_out);
    }
}

static int read_ranges(const char *path)
{
    FILE *file = fopen(path, "r");
    struct range next = {0};
    if (file == NULL) {
        return -1;
    }
    while (fscanf(file, "%" SCNx64 " %" SCNx64 " %c", &next.low, &next.high, &next.kind) == 3) {
        ranges = realloc(ranges, (range_count + 1) * sizeof *ranges);
        ranges[range_count++] = next;
    }
    fclose(file);
    return 0;
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    const char *from = "", *to = "", *more = "";
    (void)info;
    for (int i = 0; i < argc; i++) {
        from = strncmp(argv[i], "ranges=", 7) == 0 ? argv[i] + 7 : from;
        to = strncmp(argv[i], "out=", 4) == 0 ? argv[i] + 4 : to;
        more = strncmp(argv[i], "blocks=", 7) == 0 ? argv[i] + 7 : more;
    }
    out = fopen(to, "w");
    block_out = *more != '\0' ? fopen(more, "w") : NULL;
    if (out == NULL || read_ranges(from) != 0) {
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_atexit_cb(id, finish, NULL);
    return 0;
}
