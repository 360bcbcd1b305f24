"""The planned call sequence: kernels with their addresses, cut into functions of readable length."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.emit.c_text import ACCESS, C_TYPES, Label, Names, Row, comment_text, places
from tinytrain_compile.emit.watch import Watch
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, StepPart, StepPieces, TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import alias_of, op_def, shown_name
from tinytrain_compile.ops.names import ErrorOperands, operand, position
from tinytrain_compile.ops.stream import UNTIL, StreamAttrs, errors_of, pieces_of

CALLS_PER_FUNCTION = 14
"""Kernels called by one function of a step, for readability. It hardly matters otherwise: for the digits on a Cortex-M4
(--count), 7 needs 88 bytes of code and 40 of stack less, and 5 more instructions per inference; 28 is the same."""


@dataclass(frozen=True)
class Section:
    """One static function of the sequence: its name, body lines, and parameters besides the arena.

    first: the node that it calls first; piece: number of the piece of that node (see `pieces_of`), if the function is
    only one piece. finds_exponents: it has errors whose exponents the first step finds. reads_row: it takes a row of
    the image from the caller.
    """

    name: str
    first: str
    lines: tuple[str, ...]
    reads_label: bool
    finds_exponents: bool
    reads_row: bool = False
    piece: int = 0

    @property
    def call(self) -> str:
        """The call of this function from a caller whose variables have the names of its parameters."""
        more = (("label", self.reads_label), ("first", self.finds_exponents), ("row", self.reads_row))
        return f"{self.name}({', '.join(['arena', *(name for name, taken in more if taken)])});"


class Sequencer:
    """Converter of nodes to calls; it collects the offsets and tables that the calls use.

    small: no call is written twice. pieces: every call is one function or several, after which a step may pause; None:
    no pauses.
    """

    def __init__(
        self,
        train: TrainGraph,
        plan: MemoryPlan,
        kernels: KernelSet,
        tables: Names,
        watches: Sequence[Watch] = (),
        small: bool = False,
        pieces: StepPieces | None = None,
    ) -> None:
        self._watches = watches
        self._small = small
        self._most = CALLS_PER_FUNCTION if pieces is None else 1
        self._pieces = StepPieces({}) if pieces is None else pieces
        self._turns = kernels.turns
        self._train = train
        self._plan = plan
        self._kernels: Mapping[str, Kernel] = {kernel.name: kernel for kernel in kernels.kernels}
        self._calls = kernels.calls
        self._numbers = kernels.numbers
        self._transposed = kernels.transposed
        self._tables = tables
        self._labels = Names("AT_")
        self._state = {value.name for value in train.graph.state}
        nodes = (*train.graph.nodes, *(node for each in plan.beside for node in each.graph.nodes))
        self._views = {n.outputs[0].name: n.inputs[0] for n in nodes if op_def(n.op).view}
        self._constants = set(train.graph.constants)
        self._places = dict(plan.offsets)
        self._scratch = dict(plan.scratch_offsets)
        for each in plan.beside:
            self._constants |= set(each.graph.constants) - {value.name for value in each.graph.state}
            self._places |= each.plan.offsets
            self._scratch |= each.plan.scratch_offsets
        self._offsets: dict[str, Label] = {}
        of_nodes = (value for node in (*nodes, *plan.all_nodes) for value in (*node.inputs, *node.outputs))
        kept = (*train.graph.inputs, *train.graph.state, *train.graph.accumulators)
        self._values = {value.name: value for value in (*kept, *of_nodes)}
        self._steps = {node.name: index for index, node in enumerate(plan.order)}
        for each in plan.beside:
            self._steps |= {node.name: index for index, node in enumerate(each.plan.order)}
        self._accesses: set[tuple[str, bool]] = set()
        """Macros that calls and templates use: (name, whether it is for a further memory)."""
        self._coming: set[str] = set()
        """Values that page moves of the current pass bring in and that no call has read yet."""

    def offsets(self) -> list[tuple[str, list[Row]]]:
        """Return (heading, rows of name, byte offset and comment) of every buffer addressed so far."""
        return places(self._train, self._plan, self._offsets.values())

    def accesses(self, further: bool = False) -> list[tuple[str, str]]:
        """Return (macro, C type) of the used macros that make pointers from offsets."""
        return [(ACCESS[t], ctype) for t, ctype in C_TYPES.items() if (ACCESS[t], further) in self._accesses]

    def at(self, value_name: str) -> str:
        """Return the C name of a value's offset."""
        return self._label(value_name, self._places[value_name])

    def pointer(self, value_name: str) -> str:
        """Return the C expression of a value's first byte, if `arena` is the arena."""
        memory, at = self.memory(value_name), self.at(value_name)
        return f"memory_{memory}(arena) + {at}" if memory else f"arena + {at}"

    def typed(self, access: str, value_name: str) -> str:
        """Return the C expression of a value's first byte as a pointer to a type: F32, I32, ..."""
        return self._typed(access, self.memory(value_name), self.at(value_name))

    def _typed(self, access: str, memory: int, label: str) -> str:
        self._accesses.add((access, memory > 0))
        return f"{access}_AT({memory}, {label})" if memory else f"{access}({label})"

    def memory(self, value_name: str) -> int:
        """Return the number of the memory that holds a value; 0 is the arena."""
        return self._plan.place(self._places[value_name])[0]

    def _label(self, key: str, offset: int, scratch: str = "") -> str:
        name = self._labels.of(key)
        self._offsets[name] = Label(name, *self._plan.place(offset), key, self._values.get(key), scratch)
        return name

    def scratch(self, node: Node, offset: int = 0) -> str:
        """Return the C expression of a place in a node's working memory."""
        memory, _ = self._plan.place(self._scratch[node.name])
        label = self._label(f"{node.name}.scratch", self._scratch[node.name])
        base = f"memory_{memory}(arena)" if memory else "arena"
        return f"{base} + {label}" + (f" + {offset}" if offset else "")

    def sections(
        self, stem: str, nodes: Iterable[Node], known: Sequence[Section] = (), starts: Container[str] = ()
    ) -> list[Section]:
        """Write the calls of these nodes, in order, as functions `stem`_1, `stem`_2 ...; use `known` functions again.

        starts: nodes with which a function begins.
        """
        self._coming.clear()
        runs: list[list[Node]] = []
        for node in nodes:
            if op_def(node.op).view:
                continue
            if not runs or len(runs[-1]) == self._most or node.name in starts:
                runs.append([])
            runs[-1].append(node)
        result: list[Section] = []
        for run in runs:
            for piece in range(self._piece_count(run[0])):
                section = self._section(f"{stem}_{len(result) + 1}", run, piece)
                same = [other for other in known if other.lines == section.lines]
                result.append(same[0] if same else section)
        return result

    def step_parts(self, sections: Iterable[Section]) -> tuple[StepPart, ...]:
        """Return the parts of a step that can be computed in slices; () if it is computed whole."""
        known = ((part.first, self._pieces.cycles.get(part.first, ()), part.piece) for part in sections)
        return tuple(StepPart(node, cycles[piece]) for node, cycles, piece in known if cycles)

    def pending(self, nodes: Sequence[Node]) -> list[str]:
        """Wait for values that page moves of these nodes bring in but none of them reads, if only these nodes run."""
        read = {name for node in nodes if not op_def(node.op).view for v in node.inputs for name in self._shown(v)}
        moved = [node.outputs[0].name for node in nodes if op_def(node.op).page == "in"]
        return [f"tt_page_wait({self.pointer(name)});" for name in moved if name not in read]

    def _section(self, name: str, nodes: Sequence[Node], piece: int = 0) -> Section:
        lines: list[str] = []
        for node in nodes:
            lines.append(
                f"/* [{self._steps[node.name]}] {comment_text(node.origin or node.name)}: {shown_name(node)} */"
            )
            lines += [f"/* {said} */" for said in self._views_of(node)]
            watch = next((watch for watch in self._watches if watch.knows(node)), None)
            lines += watch.around(node, self._call(node, piece)) if watch else self._call(node, piece)
        reads_label = any(self._base(value) == self._train.label for node in nodes for value in node.inputs)
        finds = not self._train.exponents_known and piece == 0 and any(errors_of(node) for node in nodes)
        return Section(name, nodes[0].name, tuple(lines), reads_label, finds, self._read_rows(nodes), piece)

    def _read_rows(self, nodes: Sequence[Node]) -> bool:
        """Tell whether any of these nodes reads the image while it comes row by row, without a place of its own."""
        image = self._train.graph.inputs[0].name
        return image not in self._places and any(value.name == image for node in nodes for value in node.inputs)

    def _views_of(self, node: Node) -> list[str]:
        """Write comments for operands of a call that are views of bytes with another name."""
        found: list[str] = []
        for value in dict.fromkeys(node.inputs):
            base = self._base(value)
            if base != value and value.name in self._places and base.name in self._places:
                apart = self._places[value.name] - self._places[base.name]
                inside = f", {apart} bytes in" if apart else ""
                found.append(f"{self.at(value.name)} is a view of {self.at(base.name)}{inside} (no copy)")
        return found

    def _call(self, node: Node, piece: int = 0) -> list[str]:
        if op_def(node.op).page:
            return self._page(node)
        waits, errors = self._waits(node), [] if self._train.exponents_known else errors_of(node)
        call = self._kernel_call(node, piece)
        if not errors or piece > 0:
            return [*waits, *call]
        if isinstance(node.attrs, StreamAttrs):
            return [*waits, *self._first_times(node, errors), *call]
        if node.name in self._pieces.turns:
            return [*waits, *self._first_time(errors[0][1], self._kernel_call(node)), *call]
        return self._first_time(errors[0][1], [*waits, *call], twice=True)

    def _first_times(self, node: Node, errors: Sequence[tuple[int, ErrorOperands]]) -> list[str]:
        """Let the first step after m_init find the exponents of a stream's errors, one after the other.

        For each exponent, the nodes up to its own are computed.
        """
        lines, peaks = list[str](), list[str]()
        for index, error in errors:
            probe, found = self._exponent_calls(error)
            peak = self._operand(error.peak)
            until = self._kernel_call(node, ending=UNTIL, more=[str(index + 1)])
            cleared = [f"*{peak} = 0;" for peak in peaks]
            lines += [*probe, *until, *found, *cleared]
            peaks.append(peak)
        return ["if (first) {", *(f"    {line}" for line in lines), "}"]

    def _exponent_calls(self, error: ErrorOperands) -> tuple[list[str], list[str]]:
        """Give an error an exponent that cannot overflow, and then the right one."""
        own, peak, *read = (self._operand(value) for value in (error.exponent, error.peak, *error.read))
        probe = wrap_call(f"tt_probe{len(read)}", [own, *read, str(error.probe)])
        return probe, wrap_call("tt_first_exponent", [own, peak, "true" if error.float_peak else "false"])

    def _first_time(self, error: ErrorOperands, call: list[str], twice: bool = False) -> list[str]:
        """Let the first step after m_init find an error's exponent: it computes with one that cannot overflow.

        twice: then again, as every step does.
        """
        probe, update_exponent = self._exponent_calls(error)
        if self._small and twice:
            return [
                "for (int32_t again = first ? 1 : 0; again >= 0; --again) {",
                *_under("if (again > 0) {", probe),
                *(f"    {line}" for line in call),
                *_under("if (again > 0) {", update_exponent),
                "}",
            ]
        found = ["if (first) {", *(f"    {line}" for line in (*probe, *call, *update_exponent)), "}"]
        return [*found, *call] if twice else found

    def _page(self, node: Node) -> list[str]:
        """Begin a page move; the first reader waits for a value that comes in."""
        (source,), (target,) = node.inputs, node.outputs
        if op_def(node.op).page == "in":
            self._coming.add(target.name)
        waits = self._waits(node)
        pointers = [self.pointer(target.name), self.pointer(source.name), f"{target.size_bytes}u"]
        return [*waits, *wrap_call(f"tt_page_{op_def(node.op).page}", pointers)]

    def _waits(self, node: Node) -> list[str]:
        """Wait, before a value's first reader, for the page move that brings it in."""
        read = [name for value in node.inputs for name in self._shown(value)]
        names = [name for name in dict.fromkeys(read) if name in self._coming]
        self._coming.difference_update(names)
        return [f"tt_page_wait({self.pointer(name)});" for name in names]

    def _shown(self, value: Value) -> list[str]:
        """Return the names of a value and of the values that it views."""
        names = [value.name]
        while value.name in self._views:
            value = self._views[value.name]
            names.append(value.name)
        return names

    def _kernel_call(
        self, node: Node, piece: int | None = None, ending: str = "", more: Sequence[str] = ()
    ) -> list[str]:
        """Call a node's kernel, or the one with this suffix, which takes more arguments. piece: only this piece."""
        kernel = self._kernels[self._calls[node.name]]
        aliased = {out for out, _ in alias_of(node)}
        arguments = [self._operand(value) for value in node.inputs]
        if node.name in self._transposed:
            arguments[position(node, "w")] = self._tables.of(transposed_name(node))
        arguments += [self._operand(value) for i, value in enumerate(node.outputs) if i not in aliased]
        arguments += self._turns_of_piece(node, piece)
        if kernel.scratch_dtype:
            offset = self._scratch[node.name]
            label = self._label(f"{node.name}.scratch", offset, kernel.scratch_dtype)
            arguments.append(self._typed(ACCESS[kernel.scratch_dtype], self._plan.place(offset)[0], label))
        if node.name in self._numbers:
            arguments.append(self._numbers[node.name])
        return wrap_call(f"{kernel.name}{ending}", [*arguments, *_calls_of_piece(node, piece), *more])

    def _piece_count(self, node: Node) -> int:
        if isinstance(node.attrs, StreamAttrs):
            return len(pieces_of(node.attrs))
        return len(self._pieces.turns.get(node.name, (0, 0))) - 1

    def _turns_of_piece(self, node: Node, piece: int | None) -> list[str]:
        """Return the arguments of a kernel that can compute some of its turns: those of a piece, or all."""
        if node.name not in self._turns:
            return []
        bounds = (0, self._turns[node.name])
        if piece is not None and node.name in self._pieces.turns:
            bounds = self._pieces.turns[node.name][piece : piece + 2]
        return list(map(str, bounds))

    def _base(self, value: Value) -> Value:
        """Return the base of a view: views of constants and of labels have no place in the arena."""
        while value.name in self._views:
            value = self._views[value.name]
        return value

    def _operand(self, value: Value) -> str:
        if value.name not in self._places:
            value = self._base(value)
        if value == self._train.label:
            return "label"
        if value.name == self._train.graph.inputs[0].name and value.name not in self._places:
            return "row"
        if value.name in self._constants and value.name not in self._state:
            return self._tables.of(value.name)
        return self.typed(ACCESS[value.dtype], value.name)


def in_halves(sections: Sequence[Section], cut: int, known: Sequence[Section]) -> list[Section]:
    """Name the functions of a step by their half: up to the loss (the first `cut`), or after it.

    known: functions that an inference calls too; they keep their names.
    """
    named: list[Section] = []
    for stem, half in (("step_forward", sections[:cut]), ("step_backward", sections[cut:])):
        own = [section for section in half if section not in known]
        names = {id(section): f"{stem}_{i}" if len(own) > 1 else stem for i, section in enumerate(own, 1)}
        named += [replace(each, name=names[id(each)]) if id(each) in names else each for each in half]
    return named


def _calls_of_piece(node: Node, piece: int | None) -> list[str]:
    """Return the additional arguments of a stream that may pause: the calls of a piece, or of all pieces."""
    attrs = node.attrs
    if not isinstance(attrs, StreamAttrs) or not attrs.pauses:
        return []
    return list(map(str, (0, len(attrs.calls)) if piece is None else pieces_of(attrs)[piece]))


def transposed_name(node: Node) -> str:
    """Name the copy of a data gradient's weight that has its channel axes swapped."""
    return f"{operand(node, 'w').name}.transposed"


def _under(condition: str, lines: Sequence[str]) -> list[str]:
    """Put an indented `if` around statements."""
    return [f"    {condition}", *(f"        {line}" for line in lines), "    }"]


def wrap_call(function: str, arguments: Sequence[str], width: int = 112) -> list[str]:
    """Write a call statement, broken after a comma if it would be too wide."""
    lines = [f"{function}("]
    for index, argument in enumerate(arguments):
        text = argument + (");" if index == len(arguments) - 1 else ", ")
        if len(lines[-1]) + len(text) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("    ")
        lines[-1] += text
    return lines
