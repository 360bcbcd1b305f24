"""Exact counts of the instructions of API calls, by function: a TCG plugin for QEMU, built with the host's compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface
from tinytrain_compile.ir.summary import InstructionCounts
from tinytrain_compile.verify.firmware import WHOLE_CALLS
from tinytrain_compile.verify.symbols import defined_functions, open_elf
from tinytrain_compile.verify.tools import TOOL_TIMEOUT_S, Tools, first_line, run_program

COUNTED_STEP = 1
"""Number of the counted step: the second, because the first may also find the exponents of errors."""
_PLUGIN = "count_calls"
_RANGES, COUNTS = "ranges.txt", "counts.txt"
_API, _KERNEL, _PROGRAM = "a", "k", "p"


@dataclass(frozen=True)
class CountedFunction:
    """A function of an image: addresses [low, high), and its kind for the plugin (verify/plugin/count_calls.c)."""

    name: str
    low: int
    high: int
    kind: str


@dataclass(frozen=True)
class Call:
    """One call of the API from the check program, and the instructions executed in it, by function."""

    name: str
    instructions: dict[str, int]


def functions_of(image: Path, model_objects: Iterable[Path], prefix: str) -> list[CountedFunction]:
    """Return the functions of a linked image that belong to the model or to the check program; helpers are left out."""
    model = {name.with_suffix(".c").name for name in model_objects}
    sources = [path for path in model_objects if path.stem.endswith(("_kernels", "_kernels_small"))]
    kernels = {f.name for path in sources for f in defined_functions(path) if f.external}
    with open_elf(image) as elf:
        return [f for f in _functions(elf, model, kernels, f"{prefix}_") if f is not None]


def _functions(elf: Any, model: set[str], kernels: set[str], prefix: str) -> Iterator[CountedFunction | None]:
    source = ""
    for symbol in elf.get_section_by_name(".symtab").iter_symbols():
        kind, size = symbol["st_info"]["type"], symbol["st_size"]
        if kind == "STT_FILE":
            source = symbol.name
        if kind != "STT_FUNC" or size == 0 or symbol.name.startswith("tt_"):
            continue
        low = symbol["st_value"] & ~1
        if symbol["st_info"]["bind"] == "STB_LOCAL":
            role = _KERNEL if source in model else _PROGRAM if source in ("main.c", "startup.c") else ""
        elif symbol.name.startswith(prefix):
            role = _KERNEL if symbol.name in kernels else _API
        else:
            role = _PROGRAM if symbol.name == "main" or symbol.name.startswith(("port_", "Reset_")) else ""
        if role:
            yield CountedFunction(symbol.name.partition(".")[0], low, low + size, role)


def prepare_count(
    functions: Iterable[CountedFunction], tools: Tools, folder: Path, blocks: str = ""
) -> tuple[str, ...]:
    """Build the plugin in the folder where QEMU will run; return its options for QEMU. Errors: E0602.

    blocks: file for the number of executions of every block of code; "" for none.
    """
    if tools.host_cc is None:
        raise CompileError("E0114", "--count", "no C compiler for the counting plugin", "install gcc")
    source = (Path(__file__).parent / "plugin" / f"{_PLUGIN}.c").read_text(encoding="utf-8")
    (folder / f"{_PLUGIN}.c").write_text(source, encoding="utf-8")
    lines = (f"{f.low:x} {f.high:x} {f.kind}\n" for f in functions)
    (folder / _RANGES).write_text("".join(lines), encoding="ascii")
    command = [tools.host_cc, "-shared", "-fPIC", "-O2", "-o", f"{_PLUGIN}.so", f"{_PLUGIN}.c"]
    finished = run_program(
        command, folder, TOOL_TIMEOUT_S, "compiling the counting plugin", makes=[folder / f"{_PLUGIN}.so"]
    )
    if finished.exit_code != 0:
        raise CompileError("E0602", "the counting plugin", first_line(finished.output), "leave out --count")
    more = f",blocks={blocks}" if blocks else ""
    return ("-plugin", f"./{_PLUGIN}.so,ranges={_RANGES},out={COUNTS}{more}")


def read_calls(folder: Path, functions: list[CountedFunction]) -> list[Call]:
    """Return the calls written by the plugin, in order."""
    calls: list[Call] = []
    for line in (folder / COUNTS).read_text(encoding="ascii").splitlines():
        first, second = line.split()
        if first == "call":
            calls.append(Call(functions[int(second)].name, {}))
        else:
            name = functions[int(first)].name
            calls[-1].instructions[name] = calls[-1].instructions.get(name, 0) + int(second)
    return calls


def instruction_counts(
    calls: list[Call], functions: list[CountedFunction], interface: Interface, batch: int
) -> InstructionCounts:
    """Select the counts of step COUNTED_STEP (for a batch: its first micro-batch, and the update) and of the inference
    after training."""
    prefix = interface.prefix
    train, infer = _ends(interface)
    calls = _whole(calls, interface)
    applied = _nth(calls, f"{prefix}_apply", COUNTED_STEP) if interface.accumulates else None
    code: dict[str, int] = {}
    for function in functions:
        if function.kind != _PROGRAM:
            code[function.name] = code.get(function.name, 0) + function.high - function.low
    step = _nth(calls, train, _counted(calls, train, interface, batch))
    infers = _nth(calls, infer, 0 if interface.input_rows else 1)
    behind = f"{train}_features" if interface.accumulates else f"{prefix}_train_features"
    taken, given = (_first(calls, name) for name in (f"{prefix}_features", behind))
    heard = _first(calls, f"{prefix}_hear")
    return InstructionCounts(COUNTED_STEP, step, infers, applied, code, None, taken, given, heard)


def _counted(calls: list[Call], train: str, interface: Interface, batch: int) -> int:
    """Return which call of a step is counted; for a build with features, the nearest call on a sample."""
    call = COUNTED_STEP * (batch // interface.micro_batch if interface.accumulates else 1)
    if not interface.feature_bytes:
        return call
    turns, rest = divmod(call, 2 * WHOLE_CALLS)
    made = sum(each.name == train for each in calls)
    return min(turns * WHOLE_CALLS + min(rest, WHOLE_CALLS), made - 1)


def _first(calls: list[Call], name: str) -> dict[str, int] | None:
    return next((call.instructions for call in calls if call.name == name), None)


def _ends(interface: Interface) -> tuple[str, str]:
    """Return the calls that end a step and an inference."""
    train, infer = ("accumulate" if interface.accumulates else "train_step"), "infer"
    if interface.input_rows:
        train, infer = ("accumulate_end" if interface.accumulates else "train_end"), "infer_end"
    return f"{interface.prefix}_{train}", f"{interface.prefix}_{infer}"


def _whole(calls: list[Call], interface: Interface) -> list[Call]:
    """Merge the calls that begin an image and take its rows into the one that ends it."""
    begin, open_calls = f"{interface.prefix}_begin", {f"{interface.prefix}_{name}" for name in ("begin", "push_rows")}
    found, before = list[Call](), dict[str, int]()
    for call in calls if interface.input_rows else ():
        before = {} if call.name == begin else before
        for name, count in call.instructions.items():
            before[name] = before.get(name, 0) + count
        if call.name not in open_calls:
            found.append(Call(call.name, before))
            before = {}
    return found if interface.input_rows else calls


def counted_calls(calls: list[Call], interface: Interface, batch: int) -> tuple[int, int]:
    """Return the indices of the calls that instruction_counts uses: (step, inference)."""
    prefix = interface.prefix
    train = f"{prefix}_accumulate" if interface.accumulates else f"{prefix}_train_step"
    step = COUNTED_STEP * (batch if interface.accumulates else 1)
    places = ([i for i, call in enumerate(calls) if call.name == name] for name in (train, f"{prefix}_infer"))
    steps, infers = places
    return steps[_counted(calls, train, interface, batch) if interface.feature_bytes else step], infers[1]


def _nth(calls: list[Call], name: str, index: int) -> dict[str, int]:
    found = [call.instructions for call in calls if call.name == name]
    if index >= len(found):
        what = f"{name} was called {len(found)} times"
        raise CompileError("E0602", "the counting plugin", what, "please report this with the model")
    return found[index]
