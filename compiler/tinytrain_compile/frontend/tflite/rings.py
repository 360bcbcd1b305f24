"""State of a .tflite file: which variables are rings, and what they hold at first.

A ring keeps the last rows of a sequence from one call to the next. Converters of streaming networks write it as

    READ_VARIABLE -> CONCATENATION with the new rows -> STRIDED_SLICE of the last rows -> ASSIGN_VARIABLE
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph, TfliteFile
from tinytrain_compile.frontend.tflite.slices import constant_bounds
from tinytrain_compile.ir.types import Array

STATE = frozenset(("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"))
"""Operators of a file that keeps something from one call to the next."""
PATTERN = "READ_VARIABLE, CONCATENATION with new rows, STRIDED_SLICE of the last rows, ASSIGN_VARIABLE"


@dataclass(frozen=True, eq=False)
class Ring:
    """Rows of a sequence along an axis: `joined` are the `rows` that are kept, then the new ones.

    initial: what it holds before the first call, as integers of the file; None: the file does not say.
    parts: the operators that are the ring, by their places.
    """

    variable: str
    axis: int
    rows: int
    new: int
    joined: int
    initial: Array | None
    parts: frozenset[int]


def not_a_ring(name: str, variable: str, why: str) -> CompileError:
    """Return the error for state that is used in another way."""
    try_ = f"the pattern that is understood: {PATTERN} (docs/tflite.md)"
    return CompileError("E0501", name, f"variable {variable}: {why}", try_)


def find_rings(file: TfliteFile) -> tuple[Ring, ...]:
    """Return the rings of a model; E0501 for any other use of a variable, with the pattern."""
    graph = file.subgraphs[0]
    names = _handles(graph)
    initial = _initial(file)
    return tuple(_ring(file.name, graph, variable, names, initial) for variable in dict.fromkeys(names.values()))


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


def _ring(name: str, graph: Subgraph, variable: str, names: Mapping[int, str], initial: Mapping[str, Array]) -> Ring:
    uses = [(k, one) for k, one in enumerate(graph.operators) if names.get(one.input(0)) == variable]
    reads, writes = ([use for use in uses if use[1].op == f"{kind}_VARIABLE"] for kind in ("READ", "ASSIGN"))
    if len(reads) != 1 or len(writes) != 1 or len(uses) != 2:
        raise not_a_ring(name, variable, f"it is read {len(reads)} times and written {len(writes)} times")
    (at_read, read), (at_write, write) = reads[0], writes[0]
    if not read.outputs or write.input(1) == ABSENT:
        raise not_a_ring(name, variable, "an operand is missing")
    held = read.outputs[0]
    joints = [(k, one) for k, one in enumerate(graph.operators) if held in one.inputs]
    if len(joints) != 1 or joints[0][1].op != "CONCATENATION" or joints[0][1].inputs[:1] != (held,):
        raise not_a_ring(name, variable, f"what is read goes to {', '.join(one.op for _, one in joints) or 'nothing'}")
    at_joint, joint = joints[0]
    if len(joint.inputs) != 2 or len(joint.outputs) != 1 or joint.number("FusedActivationFunction"):
        raise not_a_ring(name, variable, "it is joined with more than new rows")
    joined, kept = joint.outputs[0], write.input(1)
    shape, old = graph.tensors[joined].shape, graph.tensors[held].shape
    axis = joint.number("Axis") % max(len(shape), 1)
    cuts = [(k, one) for k, one in enumerate(graph.operators) if kept in one.outputs]
    readers = [one for one in graph.operators if kept in one.inputs]
    if len(old) != len(shape) or axis == 0 or len(cuts) != 1 or len(readers) != 1 or kept in graph.outputs:
        raise not_a_ring(name, variable, "what is written is not made for it alone, from rows along one axis")
    at_cut, cut = cuts[0]
    if not _is_end(graph, cut, joined, axis, old[axis]):
        raise not_a_ring(name, variable, f"what is written is not the last {old[axis]} rows ({cut.op})")
    parts = frozenset((at_read, at_joint, at_cut, at_write))
    return Ring(variable, axis, old[axis], joint.inputs[1], joined, initial.get(variable), parts)


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
