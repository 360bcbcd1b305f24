"""Texts of the check program: main, start-up, link script, Makefile; and the vectors that it reads."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path

from tinytrain_compile.data.samples import in_slots
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import read_text
from tinytrain_compile.ir.records import parts
from tinytrain_compile.ir.stages import Interface, Samples, SourceBundle
from tinytrain_compile.target import QemuBoard, Region, Target, Toolchain

GUARD_BYTES = 4096
"""On each side of the arena; a multiple of every arena alignment."""

MEMORY_ALIGNMENT = 16
"""Of every memory with its guards (ports/port.h)."""

STACK_EXTRA_BYTES = 16384
"""Stack of the check program itself, and room to measure an overflow of the target's budget rather than crash."""

INPUT_MAGIC = 0x56495454

WHOLE_CALLS = 2
"""Calls on a sample, before as many on its features, where a build has these."""

COMPILE_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-vectorize")
CHECK_FLAG = "-DTT_CHECK"
"""Behind the others, for files of the check program, which are empty without it."""
SMALL_FLAG = "-Os"
"""Behind the others, for files that are made for small code."""
EXTERNAL_FLAG = "-w"
"""Behind the others, for files of the user: our warnings do not judge them."""
WARNING_FLAGS = (
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wvla", "-Wdouble-promotion", "-pedantic", "-Werror"),
)
HOST_FLAGS = ("-Og", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-fno-pie")
"""Behind the others on a host: a distribution's hardening stays out of the code. -Og compiles three times as fast as
-O2, which is more than a run of some steps takes; any level gives the same bytes."""


def model_sources(bundle: SourceBundle) -> tuple[str, ...]:
    """The C files of the generated project, without its check program."""
    return tuple(sorted(path for path in bundle.files if path.endswith(".c") and "/" not in path))


def file_flags(bundle: SourceBundle) -> dict[str, tuple[str, ...]]:
    """Flags of C files that need some besides the common ones."""
    return {**dict.fromkeys(bundle.small, (SMALL_FLAG,)), **dict.fromkeys(bundle.external, (EXTERNAL_FLAG,))}


def verification_files(bundle: SourceBundle, target: Target, place: str = "") -> dict[str, str]:
    """Path in the output folder -> text of everything that a user needs to repeat the check (vectors apart).

    place: where in that folder the sources are, "" or a path that ends in a slash.
    """
    interface = bundle.interface
    files = {
        "verify/main.c": _main(interface),
        "verify/port.h": read_text("runtime_c", "ports/port.h"),
        "verify/host.c": read_text("runtime_c", "ports/host.c"),
    }
    if target.qemu is not None and target.toolchain is not None:
        files["verify/startup.c"] = _start_up(target.toolchain, target.qemu)
        files["verify/link.ld"] = _link_script(interface, target, target.qemu, target.toolchain)
    files["verify/Makefile"] = _makefile(bundle, target, place)
    files["verify/README.md"] = _readme(interface, target)
    return files


def _template(name: str, values: Mapping[str, str]) -> str:
    text = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    return fill(text, values)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every @NAME@; KeyError for one without a value."""
    return re.sub(r"@([A-Za-z_]+)@", lambda match: values[match[1]], text)


def _main(interface: Interface) -> str:
    prefix = interface.prefix
    prefixes = {"prefix": prefix, "PREFIX": prefix.upper()}
    apply = (
        f"    uint32_t status;\n    PORT_MEASURED(stack_high_water, status = (uint32_t){prefix}_apply(model));\n"
        "    put_word(TAG_APPLY, status);\n"
    )
    together = f"predictions, {interface.micro_batch}u" if interface.counted else "&predictions"
    infer_batch = (
        f"    memcpy({prefix}_input(model), &probe, sizeof probe);\n"
        f"    PORT_MEASURED(stack_high_water, status = (uint32_t){prefix}_infer_batch(model, {together}));\n"
        "    put_tag(TAG_INFER_BATCH, sizeof status + sizeof predictions);\n"
        "    put(&status, sizeof status);\n    put(&predictions, sizeof predictions);\n    repaint();\n"
    )
    table = "".join(
        f"    {{{slot.offset}u, {slot.size_bytes}u, {slot.memory}u}}, /* {_comment(slot.name)} */\n"
        for slot in interface.state
    )
    arena = f"{prefix.upper()}_{interface.arena_macro or 'ARENA_BYTES'}"
    sizes = [arena, *(f"{prefix.upper()}_MEMORY_{k}_BYTES" for k in _further(interface))]
    image = _image(interface)
    calls = _calls(interface, image["TRAIN"], apply)
    return _template(
        "main.c",
        {
            **image,
            **prefixes,
            "CALLS": _template("trains.c" if interface.trains else "loads.c", calls),
            "RUN": _template("train_run.c" if interface.trains else "load_run.c", prefixes),
            "GUARD_SIZE": str(GUARD_BYTES),
            "ARENA": arena,
            "TRANSIENT_OFFSETS": ", ".join(f"{offset}u" for offset in _transient_offsets(interface)),
            "STATE_TABLE": table,
            "MEMORIES": "".join(_memory(k, size) for k, size in enumerate(sizes)),
            "MEMORY_TABLE": "".join(
                f"    {{memory_{k}.low, memory_{k}.bytes, memory_{k}.high, {size}}},\n" for k, size in enumerate(sizes)
            ),
            "BATCH_OUTPUT": _batch_output(interface) if interface.micro_batch > 1 else "",
            "INFER_BATCH": infer_batch if interface.micro_batch > 1 else "",
        },
    )


def _batch_output(interface: Interface) -> str:
    """Where the outputs of all samples of a call go to."""
    if interface.counted:
        return f"static {interface.prefix}_output_t predictions[{interface.micro_batch}];\n"
    return f"static {interface.prefix}_output_batch_t predictions;\n"


def _calls(interface: Interface, train: str, apply: str) -> dict[str, str]:
    """How the check program trains; train: of a micro-batch, apply: behind several."""
    prefix, end = interface.prefix, apply if interface.accumulates else ""
    scores = "static uint32_t scores = 1u; /* the first step is for the choice of channels */\n"
    return {
        "prefix": prefix,
        "PREFIX": prefix.upper(),
        "TRAIN": train,
        "MICRO_BATCH": f"{interface.micro_batch}u",
        "LABELS": f"label[{interface.micro_batch}]" if interface.counted else "label",
        "SCORES": scores if interface.chooses else "",
        "APPLY": _choosing_end(prefix, end) if interface.chooses else end,
    }


def _image(interface: Interface) -> dict[str, str]:
    """How the check program gives an image to the model: as a whole, or row by row."""
    prefix = interface.prefix
    prefixes = {"prefix": prefix, "PREFIX": prefix.upper()}
    if interface.input_rows:
        end = f"{prefix}_accumulate_end" if interface.accumulates else f"{prefix}_train_end"
        return {
            "IMAGE": f"struct {{\n    {prefix}_row_t rows[{prefix.upper()}_INPUT_ROWS];\n}}",
            "LINES": "".join(
                _template(name, prefixes) for name in ("lines.c", "push.c")[: 2 if interface.trains else 1]
            ),
            "MORE_PROBES": "",
            "GET_PROBES": "",
            "INFER": "    status = infer_lines(model);\n",
            "TRAIN": "    push_file(model);\n    get(&label, sizeof label);\n"
            f"    PORT_MEASURED(stack_high_water, status = (uint32_t){end}(model, &label, &loss));\n",
        }
    more = [slot.number for slot in interface.more_inputs]
    call = f"{prefix}_accumulate" if interface.accumulates else f"{prefix}_train_step"
    label = f"label, {interface.micro_batch}u" if interface.counted else "&label"
    step = f"    PORT_MEASURED(stack_high_water, status = (uint32_t){call}(model, {label}, &loss));\n"
    if interface.chooses:
        score = step.replace(call, f"{prefix}_score")
        step = f"    if (scores != 0u) {{\n    {score}    }} else {{\n    {step}    }}\n"
    return {
        "IMAGE": f"struct {{\n    {prefix}_input_t samples[{interface.micro_batch}];\n}}"
        if interface.counted
        else f"{prefix}_input_t",
        "LINES": "",
        "MORE_PROBES": "".join(f"static {prefix}_input_{n}_t probe_{n};\n" for n in more),
        "GET_PROBES": "".join(f"    get(&probe_{n}, sizeof probe_{n});\n" for n in more),
        "INFER": f"    memcpy({prefix}_input(model), &probe, sizeof probe);\n"
        + "".join(f"    memcpy({prefix}_input_{n}(model), &probe_{n}, sizeof probe_{n});\n" for n in more)
        + f"    PORT_MEASURED(stack_high_water, status = (uint32_t){prefix}_infer(model, &prediction));\n",
        "TRAIN": f"    get({prefix}_input(model), sizeof probe);\n"
        + "".join(f"    get({prefix}_input_{n}(model), sizeof probe_{n});\n" for n in more)
        + "    get(&label, sizeof label);\n"
        + (_by_features(interface, step) if interface.feature_bytes else step),
    }


def _choosing_end(prefix: str, apply: str) -> str:
    """Behind the samples of a step: behind the first one channels are chosen, once."""
    ok, state = (f"{prefix.upper()}_{name}" for name in ("OK", "ERR_STATE"))
    return (
        "    if (scores != 0u) {\n"
        "        scores = 0u;\n"
        "        uint32_t status;\n"
        f"        PORT_MEASURED(stack_high_water, status = (uint32_t){prefix}_rescore(model));\n"
        "        float loss = 0.0f;\n"
        f"        const uint32_t once = {prefix}_rescore(model) == {state}\n"
        f"            && {prefix}_score(model, &label, &loss) == {state};\n"
        f"        put_word(TAG_APPLY, status == (uint32_t){ok} && once == 0u ? UINT32_MAX : status);\n"
        "    } else {\n" + "".join(f"    {line}\n" for line in apply.splitlines()) + "    }\n"
    )


def _by_features(interface: Interface, step: str) -> str:
    """Of every four calls that train, two by features, between which all is overwritten that no call may rely on."""
    prefix, call = interface.prefix, "accumulate_features" if interface.accumulates else "train_features"
    return (
        f"    static unsigned char features[{prefix.upper()}_FEATURE_BYTES];\n"
        "    static uint32_t calls;\n"
        f"    if (calls++ % {WHOLE_CALLS * 2}u < {WHOLE_CALLS}u) {{\n    {step}    }} else {{\n"
        f"        PORT_MEASURED(stack_high_water, status = (uint32_t){prefix}_features(model, features));\n"
        "        repaint();\n"
        "        PORT_MEASURED(\n            stack_high_water,\n"
        f"            status = (uint32_t){prefix}_{call}(model, features, &label, &loss));\n"
        "    }\n"
    )


def _further(interface: Interface) -> range:
    """Numbers of the memories besides the arena."""
    return range(1, 1 + len(interface.further_bytes))


def _memory(number: int, size: str) -> str:
    """One memory between its guards; where it lies is the port's choice."""
    fields = f"low[GUARD_BYTES], bytes[{size}], high[GUARD_BYTES]"
    section = "PORT_FURTHER_SECTION" if number else "PORT_ARENA_SECTION"
    return f"static struct {{\n    unsigned char {fields};\n}} memory_{number} {section};\n"


def _transient_offsets(interface: Interface) -> tuple[int, ...]:
    """Where in every memory that begins which means nothing between two calls; its end where nobody said."""
    return interface.transient_offsets or (interface.arena_bytes, *interface.further_bytes)


def _comment(name: str) -> str:
    """A tensor's name, which comes from an untrusted file, inside a C comment."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " ._-:") else "_" for c in name)


def _start_up(toolchain: Toolchain, board: QemuBoard) -> str:
    """The port's start-up code, which first makes the machine as strict as the core."""
    lines = "".join(
        f"    *(volatile uint32_t *){bits.address:#010x}u |= {bits.set_bits:#010x}u; /* {bits.why} */\n"
        for bits in board.registers
    )
    return fill(read_text("runtime_c", f"ports/{toolchain.port}/startup.c"), {"REGISTERS": lines})


def _link_script(interface: Interface, target: Target, board: QemuBoard, toolchain: Toolchain) -> str:
    vectors = board.vectors
    memory = f"    VECTORS (rx) : ORIGIN = {vectors.origin:#010x}, LENGTH = {vectors.size_bytes}\n" if vectors else ""
    values = {
        "MACHINE": board.machine,
        "VECTORS_MEMORY": memory,
        "VECTORS_ALIAS": "" if vectors else 'REGION_ALIAS("VECTORS", CODE)',
        "STACK_SIZE": str(target.stack_budget_bytes + STACK_EXTRA_BYTES),
        "GUARD_SIZE": str(GUARD_BYTES),
        "ARENA_SIZE": str(interface.arena_bytes),
        "FURTHER_SIZE": str(sum(_object_bytes(size) for size in interface.further_bytes)),
    }
    regions: dict[str, Region] = {"CODE": board.code, "DATA": board.data, "SPARE": board.extra}
    for name, region in regions.items():
        values[f"{name}_ORIGIN"], values[f"{name}_SIZE"] = f"{region.origin:#010x}", str(region.size_bytes)
    return fill(read_text("runtime_c", f"ports/{toolchain.port}/link.ld"), values)


def _object_bytes(size: int) -> int:
    """Of a memory with its guards, rounded up as the linker does for the next one."""
    return -(-(size + 2 * GUARD_BYTES) // MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT


def qemu_arguments(target: Target) -> tuple[str, ...]:
    """The emulator's options for a target with a machine, without the image."""
    assert target.qemu is not None and target.toolchain is not None, "only a target with a machine runs in QEMU"
    quiet = ("-display", "none", "-monitor", "none", "-serial", "none")
    return ("-M", target.qemu.machine, *quiet, *target.toolchain.semihosting)


def _makefile(bundle: SourceBundle, target: Target, place: str) -> str:
    more = file_flags(bundle)
    sources = " ".join(f"../{place}{path}" for path in model_sources(bundle) if path not in more)
    common = " ".join((*COMPILE_FLAGS, *WARNING_FLAGS, CHECK_FLAG, f"-I../{place}".rstrip("/"), "-I."))
    host, models = " ".join(HOST_FLAGS), "$(MODEL) $(MORE)" if more else "$(MODEL)"

    def objects(folder: str) -> str:
        """What is linked: sources, and objects of those that have flags of their own."""
        return " ".join(("$(MODEL)", *(f"{folder}/{path.removesuffix('.c')}.o" for path in more)))

    lines = [
        "# SPDX-License-Identifier: LicenseRef-model-owner",
        f"# Repeats the check of {bundle.interface.prefix}: vectors.bin holds the samples that it was made with.",
        f"MODEL = {sources}",
        *([f"MORE = {' '.join(f'../{place}{path}' for path in more)}"] if more else []),
        f"FLAGS = {common}",
        "",
        f"host/output.bin: {models} main.c host.c vectors.bin",
        "\tmkdir -p host && cp vectors.bin host/input.bin",
        *_more_objects(bundle, place, "host", f"$(CC) $(FLAGS) {host}"),
        f"\t$(CC) $(FLAGS) {host} {objects('host')} main.c host.c -no-pie -o host/check",
        "\tcd host && ./check",
    ]
    if target.qemu is not None and target.toolchain is not None:
        options, link = " ".join(qemu_arguments(target)), " ".join(target.toolchain.link_flags)
        cross = " ".join((target.toolchain.compiler.name, *target.gcc_flags))
        lines += [
            "",
            f"qemu/output.bin: {models} main.c startup.c link.ld vectors.bin",
            "\tmkdir -p qemu && cp vectors.bin qemu/input.bin",
            *_more_objects(bundle, place, "qemu", f"{cross} $(FLAGS)"),
            f"\t{cross} $(FLAGS) {link} {objects('qemu')} main.c startup.c -o qemu/check.elf",
            f"\tcd qemu && {target.toolchain.emulator.name} {options} -kernel check.elf",
            "",
            "# The board writes one more record, its stack; all before it is equal (but for the payload of NaNs).",
            "compare: host/output.bin qemu/output.bin",
            "\tcmp -n `wc -c < host/output.bin` host/output.bin qemu/output.bin && echo equal",
        ]
    return "\n".join(lines) + "\n"


def _more_objects(bundle: SourceBundle, place: str, folder: str, compiler: str) -> list[str]:
    """Recipe lines that compile the files with flags of their own."""
    more = ((path.removesuffix(".c"), " ".join(flags)) for path, flags in file_flags(bundle).items())
    return [f"\t{compiler} {flags} -c ../{place}{name}.c -o {folder}/{name}.o" for name, flags in more]


def _readme(interface: Interface, target: Target) -> str:
    board = f"QEMU machine {target.qemu.machine}" if target.qemu else "the host"
    goal = "compare" if target.qemu else "host/output.bin"
    trained = (
        "outputs before and after training, the loss and\n"
        "every persistent tensor after every step, a checkpoint written and read back, and the guards of the arena."
    )
    loaded = "outputs before and\nafter a checkpoint was loaded, what of it is kept, and the guards of the arena."
    compared = trained if interface.trains else loaded
    return (
        f"# Check of {interface.prefix} for {target.name}\n\n"
        f"`make {goal}` builds main.c with the generated code for the host and for {board},\n"
        f"runs it on vectors.bin and compares what the two wrote: {compared}\n"
        f"{_further_text(interface)}"
        f"The arena has exactly {interface.arena_bytes} bytes; the link script asserts it.\n"
    )


def _further_text(interface: Interface) -> str:
    sizes = ", ".join(f"{size} bytes" for size in interface.further_bytes)
    return (
        f"Besides the arena it uses further memory ({sizes}), which lies in the board's second RAM.\n" if sizes else ""
    )


def verification_input(
    interface: Interface, samples: Samples, steps: int, batch: int, learning_rate: float | None
) -> bytes:
    """The vector file: header, the input slot to infer, then inputs and labels of every call in steps * batch samples.

    Samples are taken in turn, from the start again when they run out; a call takes a micro-batch.
    """
    count, together = len(samples.x), interface.micro_batch
    held = in_slots(interface, samples)
    arrays = [*parts(held.x), held.y]
    slots = [("x", interface.input_elements), *((slot.name, slot.elements) for slot in interface.more_inputs)]
    for whole, (name, expected) in zip(arrays, (*slots, ("y", interface.label_elements)), strict=True):
        array = whole.reshape(count, -1)
        if count == 0 or array.shape[1] * together != expected:
            what = f"{name}: {array.shape[1]} elements in a sample, the model takes {expected // together}"
            raise CompileError("E0105", "verification data", what, "give at least one sample of the model's shape")
    rate = 0.0 if learning_rate is None else learning_rate
    calls = sample_indices(interface, samples, steps, batch)
    if not interface.trains:
        head = struct.pack("<IIIIf", INPUT_MAGIC, 0, 0, 0, rate)
        return b"".join([head, *(array[:1].tobytes() for array in arrays[:-1]), samples.checkpoint])
    head = struct.pack("<IIIIf", INPUT_MAGIC, steps, batch, int(learning_rate is not None), rate)
    first = (array[calls[0]].tobytes() for array in arrays[:-1])
    return b"".join([head, *first, *(array[call].tobytes() for call in calls for array in arrays)])


def sample_indices(interface: Interface, samples: Samples, steps: int, batch: int) -> list[list[int]]:
    """Which samples each call takes: a micro-batch, in turn."""
    count, together = len(samples.x), interface.micro_batch
    return [[i % count for i in range(k, k + together)] for k in range(0, steps * batch, together)]
