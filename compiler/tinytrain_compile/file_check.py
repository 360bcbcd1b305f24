"""The first rung of the truth ladder: the model file, run by onnx.reference, against the graph that was imported."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.data import random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.imported_values import ImportedValues
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import FileAgreement
from tinytrain_compile.ir.types import Array, Graph
from tinytrain_compile.options import CompileOptions

SAMPLES = 2
"""Samples on which the two are compared."""
TOLERANCE = 1e-4
"""float32: |a - b| <= TOLERANCE max(1, max |b|)."""
STEPS = 1.0
"""Quantised tensors: steps of the format that the two may lie apart."""
_SLACK = 1e-3
"""Of a step, for the float32 arithmetic around it."""

_MOVES = "Concat Expand Flatten Gather Identity MaxPool Reshape Slice Split Squeeze Transpose Unsqueeze"
_INTEGER_MOVES = frozenset(_MOVES.split())
_QLINEAR = frozenset(("QLinearConv", "QLinearMatMul"))


def check_file(
    model: ImportedModel, floats: Graph | None, train: TrainGraph, samples: Samples, options: CompileOptions
) -> FileAgreement | None:
    """Compare on the first samples, one at a time; E0605 with the first tensor of the file that differs.

    floats: the forward graph to compare in float32 (a model that is quantised later is compared as it was); None: the
    integer graph of `train`, whose steps take one sample.
    """
    if options.verify == "none":
        return None
    start = time.monotonic()
    try:
        file = FileModel(options.model)
    except EvaluatorLacksError as lacks:
        return FileAgreement(0, 0, None, None, None, False, (lacks.reason,), time.monotonic() - start)
    if len(samples.x) < SAMPLES:
        more = random_samples(train, SAMPLES, options.seed)
        samples = Samples(*(np.concatenate(pair) for pair in ((samples.x, more.x), (samples.y, more.y))))
    pairs = [(samples.x[i : i + 1], samples.y[i : i + 1]) for i in range(SAMPLES)]
    found = compare(file, ImportedValues(model, train, floats), pairs)
    return replace(found, seconds=time.monotonic() - start)


def compare(file: FileModel, ours: ImportedValues, samples: Sequence[tuple[Array, Array | None]]) -> FileAgreement:
    """Every tensor that both have, on every sample (x, label) in the graph's layout; E0605 for the first difference."""
    walk = _Walk(file, ours)
    for index, (x, y) in enumerate(samples):
        walk.sample(index, x, y)
    return walk.found(len(samples))


@dataclass(frozen=True)
class _Format:
    """How the file stores a tensor: real = (q - zero) scale."""

    scale: float
    zero: int
    low: int
    high: int
    dtype: str

    def integers(self, real: Array) -> Array:
        q = np.rint(real.astype(np.float64) / self.scale) + self.zero
        return np.clip(q, self.low, self.high)

    def real(self, integer: float) -> float:
        return (integer - self.zero) * self.scale

    def outer_bounds(self) -> tuple[float, float]:
        """The range, open where it ends at 0 by the format's own zero point: a ReLU that became a part of rounding."""
        low, high = self.real(self.low), self.real(self.high)
        return (low if self.zero > self.low else -np.inf), (high if self.zero < self.high else np.inf)


@dataclass
class _State:
    """Of one sample: the values with which the walk goes on, and how integers among them are meant."""

    values: dict[str, Array]
    loss: str
    formats: dict[str, _Format] = field(default_factory=dict[str, _Format])


@dataclass
class _Tally:
    tensors: set[str] = field(default_factory=set[str])
    reached: set[str] = field(default_factory=set[str])
    error: float | None = None
    steps: float | None = None
    equal: int = 0
    integers: int = 0
    skipped: dict[str, None] = field(default_factory=dict[str, None])


class _Walk:
    """Goes through the nodes of the file, sample by sample, each on what the file gave so far.

    In a quantised file a node reads our own values of the tensors before it, where the graph has them: differences of
    a rounding do not pile up then. Behind a node that the evaluator lacks, ours are taken as well.
    """

    def __init__(self, file: FileModel, ours: ImportedValues) -> None:
        self._file, self._ours, self._model = file, ours, ours.model
        self._tally = _Tally()
        self._constants = dict(file.constants)
        self._rounded_next = {n.inputs[0] for n in file.nodes if n.op == "QuantizeLinear"}
        self._index = 0

    def found(self, samples: int) -> FileAgreement:
        """What was compared, once nothing has differed."""
        tally = self._tally
        whole = all(name in tally.reached for name in self._file.outputs)
        share = tally.equal / tally.integers if tally.integers else None
        skipped = tuple(tally.skipped)
        return FileAgreement(samples, len(tally.tensors), tally.error, tally.steps, share, whole, skipped)

    def sample(self, index: int, x: Array, y: Array | None) -> None:
        """Compare everything on one sample, in the graph's layout."""
        self._index = index
        self._ours.run(x, y)
        values: dict[str, Array] = dict(self._constants)
        values[self._model.input_name] = self._ours.onnx_input(x)
        loss = self._model.loss
        if loss is not None and y is not None:
            values[loss.label] = y.reshape(loss.label_shape).astype(self._file.inputs.get(loss.label, np.int64))
        ignored = y is None or self._ours.ignores(y)  # 0 / 0 in the file, no step in ours
        state = _State(values, self._file.outputs[0] if loss is not None and not ignored else "")
        behind = set(self._model.replaced)
        for node in self._file.nodes:
            if behind.intersection((*node.inputs, *node.outputs)):
                behind.update(node.outputs)
            else:
                self._node(node, state)

    def _node(self, node: FileNode, state: _State) -> None:
        if node.outputs[0] in self._constants:
            return
        constant = all(name in self._constants for name in node.inputs if name)
        try:
            results = self._run(node, state.values)
        except EvaluatorLacksError as lacks:
            if lacks.reason:
                self._tally.skipped.setdefault(str(lacks))
            results = None
        if constant and results is not None:
            known = dict(zip(node.outputs, results, strict=False))
            self._constants.update(known)
            state.values.update(known)
            return
        form = _format_of(node, state.values, state.formats)
        for index, name in enumerate(node.outputs):
            if name:
                theirs = None if results is None or index >= len(results) else results[index]
                self._output(node, name, theirs, form, state)

    def _run(self, node: FileNode, values: Mapping[str, Array]) -> tuple[Array, ...]:
        """The file's results; an empty reason where something before it is not known."""
        if any(name not in values for name in node.inputs if name):
            raise EvaluatorLacksError("", "")
        if not self._ours.integer and node.op in _QLINEAR:
            raise EvaluatorLacksError(f"{node.op} ({node.name})", "--quant fp32 does not round its operands")
        return self._file.run(node, values)

    def _output(self, node: FileNode, name: str, theirs: Array | None, form: _Format | None, state: _State) -> None:
        """Compare one tensor where both have it, and say with which value the walk goes on."""
        stored = form is not None or node.op == "DequantizeLinear"
        found = self._ours.tensor(name, stored)
        if found is not None and found[1] and not stored and name in self._rounded_next:
            found = None  # ours is rounded already: compared once the file's is, too
        if name == state.loss and self._ours.loss is not None:
            found = self._ours.loss, 0.0
        if form is not None:
            state.formats[name] = form
        if found is None or theirs is None:
            values = theirs if found is None else _as_stored(found[0], form)
            state.values.update({} if values is None else {name: values})
            return
        ours, step = found
        if form is not None:
            self._compare_steps(node, name, ours, theirs, form, head=self._ours.integer and not step)
        elif node.op != "DequantizeLinear":
            self._compare_floats(node, name, ours, theirs, step)
        self._tally.reached.add(name)
        state.values[name] = _as_stored(ours, form) if self._file.quantised else theirs

    # ---- comparisons --------------------------------------------------------------------------------------------

    def _compare_floats(self, node: FileNode, name: str, ours: Array, theirs: Array, step: float) -> None:
        """step: of the format that ours is stored in."""
        a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
        if ours.shape != theirs.shape:
            raise self._shapes(node, name, ours, theirs)
        error = _distance(a, b)
        finite = np.abs(b[np.isfinite(b)])
        allowed = max(TOLERANCE * max(1.0, float(finite.max(initial=0.0))), step * (STEPS + _SLACK))
        worst = int(np.argmax(error)) if error.size else 0
        if error.size and error[worst] > allowed:
            where = tuple(int(i) for i in np.unravel_index(worst, theirs.shape))
            what = f"{b[worst]:.7g} in the file, {a[worst]:.7g} as imported, at {list(where)} of {list(theirs.shape)}"
            raise self._differs(node, name, f"{what} (|err| {error[worst]:.2g}, allowed {allowed:.2g})")
        self._tally.tensors.add(name)
        if not step:
            self._tally.error = max(self._tally.error or 0.0, float(error.max(initial=0.0)))

    def _compare_steps(self, node: FileNode, name: str, ours: Array, theirs: Array, form: _Format, head: bool) -> None:
        """head: ours is not rounded, nor clamped to the range of the format (the float end of an integer network)."""
        if ours.shape != theirs.shape:
            raise self._shapes(node, name, ours, theirs)
        real = ours.astype(np.float64).ravel()
        if head:
            low, high = form.outer_bounds()
            real = np.clip(real, low, high)
        b = theirs.astype(np.float64).ravel()
        steps = np.abs(real / form.scale + form.zero - b)
        worst = int(np.argmax(steps)) if steps.size else 0
        if steps.size and steps[worst] > STEPS + _SLACK:
            where = tuple(int(i) for i in np.unravel_index(worst, theirs.shape))
            numbers = f"{form.real(b[worst]):.7g} in the file, {ours.ravel()[worst]:.7g} as imported"
            what = f"{numbers}, at {list(where)} of {list(theirs.shape)} ({steps[worst]:.3g} steps of {form.scale:.3g}"
            raise self._differs(node, name, f"{what}, allowed {STEPS:g})")
        tally = self._tally
        tally.tensors.add(name)
        tally.steps = max(tally.steps or 0.0, float(np.rint(steps.max(initial=0.0))))
        tally.equal += int(np.count_nonzero(form.integers(ours).ravel() == b))
        tally.integers += b.size

    def _shapes(self, node: FileNode, name: str, ours: Array, theirs: Array) -> CompileError:
        return self._differs(
            node, name, f"its shape is {list(theirs.shape)} in the file, {list(ours.shape)} as imported"
        )

    def _differs(self, node: FileNode, name: str, what: str) -> CompileError:
        where = f"tensor {name} (node {node.name or node.op}, {node.op})"
        sample = f", sample {self._index}" if self._index else ""
        return CompileError("E0605", where, f"{what}{sample}", "please report this with the model; see --explain E0605")


def _distance(a: Array, b: Array) -> Array:
    """|a - b|; 0 for equal infinities and for two that are no numbers, infinite for one that is none."""
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[np.isnan(error)] = np.inf
    return error


def _as_stored(real: Array, form: _Format | None) -> Array:
    return real if form is None else form.integers(real).astype(form.dtype)


def _format_of(node: FileNode, values: Mapping[str, Array], formats: Mapping[str, _Format]) -> _Format | None:
    """How the file stores the node's outputs; None for real numbers."""
    first = {"QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6}.get(node.op)
    if first is None:
        return formats.get(node.inputs[0]) if node.op in _INTEGER_MOVES and node.inputs else None
    scale = values.get(node.inputs[first])
    has_zero = len(node.inputs) > first + 1 and node.inputs[first + 1]
    zero = values.get(node.inputs[first + 1]) if has_zero else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.dtype not in (np.int8, np.uint8):
        return None
    info = np.iinfo(zero.dtype)
    return _Format(float(scale.ravel()[0]), int(zero.ravel()[0]), int(info.min), int(info.max), zero.dtype.name)
