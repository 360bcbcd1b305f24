"""The planned call sequence: which kernel runs with which addresses, cut into functions that a person can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tinytrain_compile.emit.names import Names, comment_text
from tinytrain_compile.emit.watch import Watch
from tinytrain_compile.ir.stages import Kernel, KernelSet, MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.qupdate import ERROR_OPS, exponents_read

CALLS_PER_FUNCTION = 14
_ACCESS = {"float32": "F32", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bits": "U8"}


@dataclass(frozen=True)
class Part:
    """One static function of the sequence: its name and body lines, and what it takes besides the arena.

    finds_exponents: it holds errors whose exponents the first step finds.
    """

    name: str
    lines: tuple[str, ...]
    reads_label: bool
    finds_exponents: bool


class Sequencer:
    """Turns nodes into calls; collects the offsets and tables that the calls use."""

    def __init__(
        self, train: TrainGraph, plan: MemoryPlan, kernels: KernelSet, tables: Names, watch: Watch | None = None
    ) -> None:
        self._watch = watch
        self._train = train
        self._plan = plan
        self._kernels: Mapping[str, Kernel] = {kernel.name: kernel for kernel in kernels.kernels}
        self._calls = kernels.calls
        self._tables = tables
        self._labels = Names("AT_")
        self._state = {value.name for value in train.graph.state}
        self._views = {n.outputs[0].name: n.inputs[0] for n in train.graph.nodes if op_def(n.op).view}
        self._offsets: dict[str, int] = {}

    def offsets(self) -> list[tuple[str, int]]:
        """(name, byte offset) of every buffer that was addressed so far, by offset."""
        return sorted(self._offsets.items(), key=lambda item: (item[1], item[0]))

    def at(self, value_name: str) -> str:
        """The C name of a value's offset."""
        return self._label(value_name, self._plan.offsets[value_name])

    def _label(self, key: str, offset: int) -> str:
        name = self._labels.of(key)
        self._offsets[name] = offset
        return name

    def parts(self, stem: str, nodes: Iterable[Node], known: Sequence[Part] = ()) -> list[Part]:
        """The calls of these nodes, in order, as functions `stem`_1, `stem`_2 ...; `known` functions are used again."""
        calls = [node for node in nodes if not op_def(node.op).view]
        result: list[Part] = []
        for i in range(0, len(calls), CALLS_PER_FUNCTION):
            part = self._part(f"{stem}_{len(result) + 1}", calls[i : i + CALLS_PER_FUNCTION])
            same = [other for other in known if other.lines == part.lines]
            result.append(same[0] if same else part)
        return result

    def _part(self, name: str, nodes: Sequence[Node]) -> Part:
        lines: list[str] = []
        for node in nodes:
            lines.append(f"/* {comment_text(node.origin or node.name)}: {node.op} */")
            lines += self._watch.around(node, self._call(node)) if self._watch else self._call(node)
        reads_label = any(self._base(value) == self._train.label for node in nodes for value in node.inputs)
        finds = not self._train.settled and any(node.op in ERROR_OPS for node in nodes)
        return Part(name, tuple(lines), reads_label, finds)

    def _call(self, node: Node) -> list[str]:
        call = self._kernel_call(node)
        if self._train.settled or node.op not in ERROR_OPS:
            return call
        return [*self._first_time(node, call), *call]

    def _first_time(self, node: Node, call: list[str]) -> list[str]:
        """The first step after m_init: find the error's exponent with one that cannot overflow, then compute anew."""
        read = [self._operand(v) for v in node.inputs[2 : 2 + exponents_read(node.op)]]
        own, peak = self._operand(node.inputs[1]), self._operand(node.inputs[0])
        above = getattr(node.attrs, "probe", 0)
        probe = wrap_call(f"tt_probe{len(read)}", [own, *read, str(above)])
        settle = wrap_call("tt_settle_first", [own, peak, "true" if node.op == "QuantizeError" else "false"])
        return ["if (first) {", *(f"    {line}" for line in (*probe, *call, *settle)), "}"]

    def _kernel_call(self, node: Node) -> list[str]:
        kernel = self._kernels[self._calls[node.name]]
        aliased = {out for out, _ in op_def(node.op).alias}
        arguments = [self._operand(value) for value in node.inputs]
        arguments += [self._operand(value) for i, value in enumerate(node.outputs) if i not in aliased]
        if kernel.scratch_dtype:
            offset = self._plan.scratch_offsets[node.name]
            arguments.append(f"{_ACCESS[kernel.scratch_dtype]}({self._label(f'{node.name}.scratch', offset)})")
        return wrap_call(kernel.name, arguments)

    def _base(self, value: Value) -> Value:
        """What a view shows: views of constants and of labels have no place in the arena."""
        while value.name in self._views:
            value = self._views[value.name]
        return value

    def _operand(self, value: Value) -> str:
        if value.name not in self._plan.offsets:
            value = self._base(value)
        if value == self._train.label:
            return "label"
        if value.name in self._train.graph.constants and value.name not in self._state:
            return self._tables.of(value.name)
        return f"{_ACCESS[value.dtype]}({self.at(value.name)})"


def wrap_call(function: str, arguments: Sequence[str], width: int = 112) -> list[str]:
    """A call statement, broken behind a comma where it would be too wide."""
    lines = [f"{function}("]
    for index, argument in enumerate(arguments):
        text = argument + (");" if index == len(arguments) - 1 else ", ")
        if len(lines[-1]) + len(text) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("    ")
        lines[-1] += text
    return lines
