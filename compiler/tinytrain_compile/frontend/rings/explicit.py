"""Explicit state of an ONNX file: which inputs and outputs are rings.

The caller hands the output back as the input of the next call. Two forms keep the last rows of a sequence:

    Concat (state, new rows), whose result is read; Slice of its last rows is the next state
    Slice of the state's last rows, Concat with new rows, whose result is read and is the next state

In the first, the new rows themselves may be the next state, if they are as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, Refused, reachable
from tinytrain_compile.frontend.rings.unroll import Ring

PATTERN = "Concat of a state input with new rows behind it, and Slice of its last rows as the state output"
_TRY = f"the pattern that is understood: {PATTERN} (docs/listening.md)"

_PASSING = frozenset(("Identity", "QuantizeLinear", "DequantizeLinear"))
"""Operators that may be anywhere on the way of a state."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class State:
    """Rings of a file, by what they join; names of the inputs and outputs that are no state.

    next: state input -> the output that is this state at the next call.
    """

    rings: Mapping[str, Ring[str]]
    next: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def find_state(model: OnnxModel, shapes: Shapes, output: str) -> State | None:
    """Return the state of a file, if it has any ring. output: the one that counts, if the user has named it.

    E0501 for a further input and output that look like state and are no ring.
    """
    finder = _Finder(model, shapes)
    rings, reasons = finder.rings()
    kept = {name for name, _ in rings.values()}
    if not rings or output in kept:  # then it is the result that counts, not state
        return None
    inputs = tuple(source.name for source in model.inputs if source.name not in rings)
    outputs = (output,) if output else tuple(name for name in model.outputs if name not in kept)
    finder.check(inputs, outputs, reasons, _TRY)
    if not outputs:
        raise CompileError("E0218", model.name, "all of its outputs are state", "export it with the output that counts")
    follows = {name: kept for name, (kept, _) in rings.items()}
    return State({ring.joined: ring for _, ring in rings.values()}, follows, inputs, outputs)


def refuse_state(model: OnnxModel, shapes: Shapes) -> None:
    """Raise E0501 if a file without rings, of several outputs, has an input and an output that look like state."""
    finder = _Finder(model, shapes)
    way = f"{_TRY}; if it is no state, choose an output with --model-output NAME"
    finder.check(tuple(source.name for source in model.inputs), model.outputs, finder.rings()[1], way)


def constant_rows(model: OnnxModel, node: OnnxNode, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return begin, end and step of a Slice for each axis of its input; Refused where they are not known."""
    tables = [model.numbers(name) if name else None for name in node.inputs[1:]]
    if any(table is None for name, table in zip(node.inputs[1:], tables, strict=True) if name):
        raise Refused(node.op, "its bounds are computed at run time", "constants")
    numbers = [None if table is None else [int(one) for one in table.reshape(-1)] for table in (*tables, None, None)]
    starts, ends = numbers[0] or [], numbers[1] or []
    axes, steps = numbers[2] or list(range(len(starts))), numbers[3] or [1] * len(starts)
    bounds = [(0, size, 1) for size in shape]
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Refused(node.op, "its bounds are of different lengths", "a bound for each axis")
    for begin, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if step < 1:
            raise Refused(node.op, f"it goes by {step} along axis {axis}", "steps above 0")
        begin, end = (min(max(one + size if one < 0 else one, 0), size) for one in (begin, end))
        bounds[axis % max(len(shape), 1)] = (begin, end, step)
    return bounds


class _Finder:
    def __init__(self, model: OnnxModel, shapes: Shapes) -> None:
        self._model, self._shapes = model, shapes
        self._links = Links(model.nodes, model.outputs, model.constants)

    def rings(self) -> tuple[dict[str, tuple[str, Ring[str]]], dict[str, Refused]]:
        """Return state input -> its output and ring, and why others that are joined with rows are none."""
        rings, reasons = dict[str, tuple[str, Ring[str]]](), dict[str, Refused]()
        for source in self._model.inputs:
            try:
                found = self.ring(source.name)
            except Refused as reason:
                reasons[source.name] = reason
                continue
            if found is not None:
                rings[source.name] = found
        return rings, reasons

    def ring(self, state: str) -> tuple[str, Ring[str]] | None:
        """Return the output that keeps a ring, and the ring that an input is.

        None: the input is not joined with anything. Refused: it is, and yet is no ring.
        """
        first = self._reader(state)
        if first is None or first.op not in ("Concat", "Slice"):
            return None
        cut, joint = (first, self._reader(first.output(0))) if first.op == "Slice" else (None, first)
        if joint is None or joint.op != "Concat" or len(joint.inputs) != 2:
            return None
        held, new = self._real(joint.input(0)), self._real(joint.input(1))
        if held != (state if cut is None else cut.output(0)) or new == state:
            return None
        shape, joined = self._shapes.get(state), self._shapes.get(joint.output(0))
        if shape is None or joined is None or not len(shape) == len(joined) > 1:
            return None
        axis = joint.integer("axis", 0) % len(joined)
        next_state = self._next(joint.output(0), new if cut is None else "")
        if not next_state or axis == 0:
            return None
        if self._shapes.get(next_state) != shape:
            what = f"it has shape {list(shape)}, and {next_state} {list(self._shapes.get(next_state, ()))}"
            raise Refused(joint.op, what, "")
        if cut is None and self._real(next_state) == new:  # as many rows as a call brings: they are the next state
            self._check_formats(*joint.inputs, next_state)
            return next_state, Ring(state, axis, shape[axis], joint.input(1), joint.output(0))
        end = cut or self._links.maker(self._real(next_state))
        assert end is not None
        rows = shape[axis] if cut is None else self._shapes.get(cut.output(0), joined)[axis]
        source = self._shapes.get(end.input(0), ())
        wanted = [(n - rows if k == axis else 0, n, 1) for k, n in enumerate(source)]
        if constant_rows(self._model, end, source) != wanted:
            raise Refused(end.op, f"what {next_state} keeps are not the last {rows} rows", "")
        self._check_formats(joint.input(0), next_state, end.input(0))
        return next_state, Ring(state, axis, rows, joint.input(1), joint.output(0))

    def _next(self, joined: str, new: str) -> str:
        """Return the output that is made of what is joined; "" if there is none.

        new: the new rows, where the state is joined with them as it is: a Slice of both, or these alone. "": else it is
        what is joined.
        """
        reals = {name: self._real(name) for name in self._model.outputs}
        makers = {name: self._links.maker(real) for name, real in reals.items()}
        cuts = (k for k, one in makers.items() if one and one.op == "Slice" and self._real(one.input(0)) == joined)
        return next(chain(cuts if new else (), (k for k, real in reals.items() if real == (new or joined))), "")

    def _reader(self, name: str) -> OnnxNode | None:
        """Return the only node that reads a tensor, behind what passes it on."""
        while len(readers := self._links.readers(name)) == 1 and readers[0].op in _PASSING:
            name = readers[0].output(0)
        return readers[0] if len(readers) == 1 else None

    def _real(self, name: str) -> str:
        """Return what a tensor is in front of what passes it on."""
        while (maker := self._links.maker(name)) is not None and maker.op in _PASSING:
            name = maker.input(0)
        return name

    def _check_formats(self, *ends: str) -> None:
        """Refuse rows that are rounded anew at each call: in front of these tensors all scales have to be the same."""
        found = set[tuple[bytes, ...]]()
        for name in ends:
            while (maker := self._links.maker(name)) is not None and maker.op in _PASSING:
                numbers = [self._model.numbers(one) for one in maker.inputs[1:]]
                found |= {tuple(b"" if one is None else one.tobytes() for one in numbers)} if numbers else set()
                name = maker.input(0)
        if len(found) > 1:
            raise Refused("QuantizeLinear", "its rows are stored in other scales from call to call", "")

    def check(
        self, inputs: tuple[str, ...], outputs: tuple[str, ...], reasons: Mapping[str, Refused], way: str
    ) -> None:
        """Raise E0501 for inputs that look like state: an output has their shape and depends on them.

        Data comes first by custom, so the last such input is named.
        """
        for name in reversed(inputs):
            others = [one for one in outputs if self._looks_like_state(name, one)]
            if name in reasons or (others and len(inputs) > 1 and len(outputs) > 1):
                raise CompileError("E0501", self._model.name, self._why(name, others, reasons.get(name)), way)

    def _looks_like_state(self, name: str, output: str) -> bool:
        if self._shapes.get(name) is None or self._shapes.get(name) != self._shapes.get(output):
            return False
        return any(name in node.inputs for node in reachable(self._model.nodes, (output,)))

    def _why(self, name: str, outputs: list[str], reason: Refused | None) -> str:
        if reason is not None:
            return f"state {name}, {reason.attribute}: {reason.reason}"
        readers = ", ".join(dict.fromkeys(node.op for node in self._links.readers(name)))
        maker = self._links.maker(self._real(outputs[-1]))
        made = "itself" if maker is None else maker.op
        return f"input {name} (read by {readers}) and output {outputs[-1]} (made by {made}) look like state, not a ring"
