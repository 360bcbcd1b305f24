"""State of a .tflite file: which variables are rings, and what they hold at first.

A ring keeps the last rows of a sequence from one call to the next. Converters of streaming networks write it as

    READ_VARIABLE -> CONCATENATION with the new rows -> STRIDED_SLICE of the last rows -> ASSIGN_VARIABLE
"""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.rings.unroll import Ring
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph, TfliteFile
from tinytrain_compile.frontend.tflite.slices import constant_bounds
from tinytrain_compile.ir.types import Array

STATE = frozenset(("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"))
"""Operators of a file that keeps something from one call to the next."""
PATTERN = "READ_VARIABLE, CONCATENATION with new rows, STRIDED_SLICE of the last rows, ASSIGN_VARIABLE"


@dataclass(frozen=True, eq=False)
class FileRing(Ring[int]):
    """A ring of a file.

    initial: what it holds before the first call, as integers of the file; None: the file does not say.
    parts: the operators that are the ring, by their places.
    """

    initial: Array | None
    parts: frozenset[int]


def not_a_ring(name: str, variable: str, why: str) -> CompileError:
    """Return the error for state that is used in another way."""
    try_ = f"the pattern that is understood: {PATTERN} (docs/tflite.md)"
    return CompileError("E0501", name, f"variable {variable}: {why}", try_)


def find_rings(file: TfliteFile) -> tuple[FileRing, ...]:
    """Return the rings of a model; E0501 for any other use of a variable, with the pattern."""
    finder = _Finder(file)
    return tuple(finder.ring(variable) for variable in finder.variables)


def _handles(graph: Subgraph) -> dict[int, str]:
    """Return handle -> name of its variable."""
    handles = (one for one in graph.operators if one.op == "VAR_HANDLE" and one.outputs)
    return {one.outputs[0]: str(one.options["SharedName"]) or one.name for one in handles}


def _initial(file: TfliteFile) -> dict[str, Array]:
    """Return variable -> its first content, as CALL_ONCE sets it."""
    found = dict[str, Array]()
    for operator in file.subgraphs[0].operators:
        if operator.op != "CALL_ONCE":
            continue
        place = operator.number("InitSubgraphIndex")
        if not 0 < place < len(file.subgraphs):
            what = f"CALL_ONCE calls subgraph {place} of {len(file.subgraphs)}"
            raise CompileError("E0214", file.name, what, "copy or download it again")
        graph = file.subgraphs[place]
        names = _handles(graph)
        for one in graph.operators:
            if one.op == "VAR_HANDLE":
                continue
            data = None if one.input(1) == ABSENT else graph.tensors[one.input(1)].data
            if one.op != "ASSIGN_VARIABLE" or one.input(0) not in names or data is None:
                raise not_a_ring(file.name, names.get(one.input(0), "?"), f"CALL_ONCE sets it by {one.op}")
            found[names[one.input(0)]] = data
    return found


class _Finder:
    """Follows each variable from its READ_VARIABLE to its ASSIGN_VARIABLE; operators by their places."""

    def __init__(self, file: TfliteFile) -> None:
        self._name, self._graph = file.name, file.subgraphs[0]
        self._handles, self._initial = _handles(self._graph), _initial(file)
        self.variables = tuple(dict.fromkeys(self._handles.values()))

    def ring(self, variable: str) -> FileRing:
        """Return the ring that a variable is; E0501 if it is none."""
        at_read, at_write = self._accesses(variable)
        operators, shapes = self._graph.operators, [one.shape for one in self._graph.tensors]
        held, kept = operators[at_read].outputs[0], operators[at_write].inputs[1]
        at_joint = self._joint(variable, held)
        joint = operators[at_joint]
        new, joined = joint.inputs[1], joint.outputs[0]
        axis = joint.number("Axis") % max(len(shapes[joined]), 1)
        if not len(shapes[held]) == len(shapes[new]) == len(shapes[joined]) or axis == 0:
            raise not_a_ring(self._name, variable, "it is not joined with rows along one axis")
        at_cut, rows = self._maker(variable, kept), shapes[held][axis]
        cut = operators[at_cut]
        if not _is_end(self._graph, cut, joined, axis, rows):
            raise not_a_ring(self._name, variable, f"what is written is not the last {rows} rows ({cut.op})")
        parts = frozenset((at_read, at_joint, at_cut, at_write))
        return FileRing(variable, axis, rows, new, joined, self._initial.get(variable), parts)

    def _accesses(self, variable: str) -> tuple[int, int]:
        """Return the only operator that reads a variable, and the only one that writes it."""
        uses = [k for k, one in enumerate(self._graph.operators) if self._handles.get(one.input(0)) == variable]
        kinds = [self._graph.operators[k].op for k in uses]
        reads, writes = kinds.count("READ_VARIABLE"), kinds.count("ASSIGN_VARIABLE")
        if not reads == writes == 1 or len(uses) != 2:
            raise not_a_ring(self._name, variable, f"it is read {reads} times and written {writes} times")
        read, write = sorted(uses, key=lambda k: self._graph.operators[k].op, reverse=True)
        if not self._graph.operators[read].outputs or self._graph.operators[write].input(1) == ABSENT:
            raise not_a_ring(self._name, variable, "an operand is missing")
        return read, write

    def _joint(self, variable: str, held: int) -> int:
        """Return the CONCATENATION of what is read and the new rows, which nothing else reads."""
        found = [k for k, one in enumerate(self._graph.operators) if held in one.inputs]
        readers = [self._graph.operators[k] for k in found]
        if [one.op for one in readers] != ["CONCATENATION"]:
            goes = ", ".join(one.op for one in readers) or "nothing"
            raise not_a_ring(self._name, variable, f"what is read goes to {goes}")
        joint = readers[0]
        two = len(joint.inputs) == 2 and joint.inputs[0] == held and joint.inputs[1] not in (held, ABSENT)
        if not two or len(joint.outputs) != 1 or joint.number("FusedActivationFunction"):
            raise not_a_ring(self._name, variable, "it is not joined with new rows behind it")
        return found[0]

    def _maker(self, variable: str, kept: int) -> int:
        """Return what makes the rows that are written, which nothing else reads."""
        makers = [k for k, one in enumerate(self._graph.operators) if kept in one.outputs]
        readers = [one for one in self._graph.operators if kept in one.inputs]
        if len(makers) != 1 or len(readers) != 1 or kept in self._graph.outputs:
            raise not_a_ring(self._name, variable, "what is written is not made for it alone")
        return makers[0]


def _is_end(graph: Subgraph, cut: Operator, joined: int, axis: int, rows: int) -> bool:
    """Tell whether an operator takes the last rows along an axis, and all there is along the others."""
    if cut.op not in ("STRIDED_SLICE", "SLICE") or cut.input(0) != joined or cut.number("ShrinkAxisMask"):
        return False
    shape = graph.tensors[joined].shape
    try:
        bounds = constant_bounds(graph, cut)
    except Refused:
        return False
    wanted = [(size - rows if k == axis else 0, size, 1) for k, size in enumerate(shape)]
    return [*bounds] == wanted
