"""The file check: the model file, run by onnx.reference, against the graph that was imported."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.file_check.compare import Distance, Format, in_numbers, in_steps
from tinytrain_compile.driver.file_check.imported_values import Held, ImportedValues
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel, FileNode
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import FileAgreement
from tinytrain_compile.ir.types import Array, Graph
from tinytrain_compile.ops.int8.pointwise import quantised
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import build_training

SAMPLES = 2
"""Samples on which the two are compared."""
_MOVED = "Concat Expand Flatten Gather Identity MaxPool Pad Reshape Slice Split Squeeze Transpose Unsqueeze"
_MOVED_OPS = frozenset(_MOVED.split())
"""Operators that do to integers what they do to the real numbers that these stand for."""
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def check_file(
    model: ImportedModel, floats: Graph | None, train: TrainGraph, samples: Samples, options: CompileOptions
) -> FileAgreement:
    """Compare on the first samples, one at a time; E0605 with the first tensor of the file that differs.

    floats: the forward graph to compare in float32 (a model that is quantised later is compared as it was); None: the
    integer graph of `train`, whose steps take one sample.
    """
    start = time.process_time()
    try:
        file = FileModel(options.model, options.model_output, options.weights)
    except EvaluatorLacksError as lacks:
        return FileAgreement(0, 0, None, None, None, False, (lacks.reason,), time.process_time() - start)
    if len(samples.x) < SAMPLES:
        more = random_samples(train, SAMPLES, options.seed, model)
        samples = Samples(np.concatenate((samples.x, more.x)), np.concatenate((samples.y, more.y)))
    judge = _float_judge(model, floats, options) if floats is not None and train.integer and model.loss else None
    ours = ImportedValues(model, train, floats, judge)
    chosen = sorted(range(len(samples.x)), key=lambda i: ours.ignores(samples.y[i]))[:SAMPLES]  # whose loss says more
    found = compare(file, ours, [(samples.x[i : i + 1], samples.y[i : i + 1]) for i in chosen])
    skipped = (*found.skipped, *(_check_state(options) if file.is_unrolled else ()))
    return replace(found, skipped=skipped, seconds=time.process_time() - start)


def _check_state(options: CompileOptions) -> tuple[str, ...]:
    """Compare a file with state, call by call, with its window; why that could not be done. E0605 if they differ."""
    from tinytrain_compile.frontend.evaluator.steps import check_steps

    try:
        check_steps(options.model, options.model_output, options.seed)
    except EvaluatorLacksError as lacks:
        return (lacks.reason,)
    return ()


def _float_judge(model: ImportedModel, floats: Graph, options: CompileOptions) -> TrainGraph:
    """Build training of the float32 graph, for the loss that the model ends in.

    What is trained plays no part in that.
    """
    chosen = training_options(options, model)
    return build_training(replace(model, graph=floats), resolve_update(floats, "all"), chosen)


def compare(file: FileModel, ours: ImportedValues, samples: Sequence[tuple[Array, Array | None]]) -> FileAgreement:
    """Compare every tensor that both have, on every sample (x, label) in the graph's layout.

    E0605 for the first difference.
    """
    walk = _Walk(file, ours)
    for index, (x, y) in enumerate(samples):
        walk.sample(index, x, y)
    return walk.found(len(samples))


@dataclass
class _WalkState:
    """Of one sample: the values with which the walk goes on, and how integers among them are meant.

    values: twice, as our integer nodes read them and as our float32 nodes do; the same in a float graph.
    unrounded: real numbers of tensors that the file stores as integers and we do not, clamped to their range: for the
    second.
    """

    values: tuple[dict[str, Array], dict[str, Array]]
    loss: str
    formats: dict[str, Format] = field(default_factory=dict[str, Format])
    unrounded: dict[str, Array] = field(default_factory=dict[str, Array])


@dataclass
class _Tally:
    tensors: set[str] = field(default_factory=set[str])
    reached: set[str] = field(default_factory=set[str])
    error: float | None = None
    steps: float | None = None
    equal: int = 0
    integers: int = 0
    skipped: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, name: str, found: Distance, size: int, form: Format | None) -> None:
        """Count a tensor that agrees."""
        self.tensors.add(name)
        if form is None:
            self.error = max(self.error or 0.0, found.largest)
        else:
            self.steps = max(self.steps or 0.0, found.largest)
            self.equal += found.equal
            self.integers += size


class _Walk:
    """Goes through the nodes of the file, sample by sample, each on what the file gave so far.

    In a quantised file a node reads our own values of the tensors before it, where the graph has them: differences of
    a rounding do not pile up then. Behind a node that the evaluator lacks, ours are taken as well.
    """

    def __init__(self, file: FileModel, ours: ImportedValues) -> None:
        self._file, self._ours, self._model = file, ours, ours.model
        self._tally = _Tally()
        self._constants = dict(file.constants)
        self._anew = set(ours.quantised_anew(file.constants))
        self._makers = {name: node for node in file.nodes for name in node.outputs}
        self._before_rounding = _before_rounding(file.nodes)
        self._index = 0
        self._batch = 1 if self._model.input_shape[:1] != (1,) else file.batch_of(self._model.input_name)

    def found(self, samples: int) -> FileAgreement:
        """Return what was compared, once nothing has differed."""
        tally = self._tally
        loss = self._model.loss
        whole = all(name in tally.reached for name in (self._file.outputs if loss is None else (loss.output,)))
        share = tally.equal / tally.integers if tally.integers else None
        skipped = tuple(tally.skipped)
        return FileAgreement(samples, len(tally.tensors), tally.error, tally.steps, share, whole, skipped)

    def sample(self, index: int, x: Array, y: Array | None) -> None:
        """Compare everything on one sample, in the graph's layout."""
        self._index = index
        self._ours.run(x, y)
        values: dict[str, Array] = dict(self._constants)
        given = self._ours.onnx_inputs(x)
        for one in self._model.data:
            array = given[one.name]
            indices = array.dtype.kind == "i" or one.whole is not None
            kind = self._file.inputs.get(one.name) if indices else None
            values[one.name] = batch_with(array if kind is None else array.astype(kind), self._batch)
        loss = self._model.loss
        if loss is not None and self._batch > 1:
            self._tally.skipped.setdefault(f"the loss: of {self._batch} samples in the file, of one here")
        elif loss is not None and loss.label and y is not None:
            values[loss.label] = self._ours.onnx_label(y).astype(self._file.inputs.get(loss.label, np.int64))
        ignored = y is None or self._ours.ignores(y)  # 0 / 0 in the file, no step in ours
        state = _WalkState((values, dict(values)), loss.output if loss is not None and not ignored else "")
        behind = set(self._model.replaced)
        for node in self._file.nodes:
            if behind.intersection((*node.inputs, *node.outputs)):
                behind.update(node.outputs)
            else:
                self._node(node, state)

    def _node(self, node: FileNode, state: _WalkState) -> None:
        if node.outputs[0] in self._constants:
            return
        results = self._results(node, state)
        form = _format_of(node, state.values[0], state.formats)
        # Weights that the file computes and stores stay real numbers in a float graph: not a constant that both have.
        real = form is not None and not self._ours.integer and bool(self._ours.tensor(node.outputs[0], True))
        if results and not real and all(name in self._constants for name in node.inputs if name):
            known = {name: array for name, array in zip(node.outputs, results[0], strict=False) if name}
            anew = self._anew.intersection(node.inputs)
            self._anew.update(known if anew else self._ours.computed_anew(known))
            self._constants.update(known)
            for values in state.values:
                values.update(known)
            return
        for index, name in enumerate(node.outputs):
            if name:
                self._output(node, name, [each[index] for each in results if index < len(each)], form, state)

    def _results(self, node: FileNode, state: _WalkState) -> list[tuple[Array, ...]]:
        """Return the node's outputs as the file gives them, from either way of reading.

        Nothing if there is no answer.
        """
        rounded, plain = state.values
        names = [name for name in node.inputs if name]
        differ = any(rounded.get(name) is not plain.get(name) or name in state.unrounded for name in names)
        results: list[tuple[Array, ...]] = []
        for values in state.values if differ else (rounded,):
            if any(name not in values for name in names):
                return []
            try:
                results.append(self._run(node, values, state.unrounded if values is plain else {}))
            except EvaluatorLacksError as lacks:
                self._tally.skipped.setdefault(str(lacks))
                return []
        return results

    def _run(self, node: FileNode, values: Mapping[str, Array], unrounded: Mapping[str, Array]) -> tuple[Array, ...]:
        moved = node.op in _MOVED_OPS or node.op == "QLinearConcat"  # both store it by the same scale
        if self._anew.intersection(node.inputs) and not (moved or all(n in self._constants for n in node.inputs if n)):
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", "its weight is quantised anew")
        return self._file.run(node, values, unrounded)

    def _output(
        self, node: FileNode, name: str, theirs: Sequence[Array], form: Format | None, state: _WalkState
    ) -> None:
        """Compare one tensor where both have it, and say with which values the walk goes on."""
        ours = self._counterparts(node, name, form, state)
        if name == state.loss and theirs and theirs[0].size == 1:  # a file may give it axes of length 1
            ours = tuple(replace(held, array=held.array.reshape(theirs[0].shape)) for held in ours)
        if form is not None:
            state.formats[name] = form
        if ours and theirs:
            if form is not None or node.op != "DequantizeLinear":
                self._compare(node, name, ours, theirs, form)
            self._tally.reached.add(name)
            ours = tuple(self._of_batch(held, theirs[0]) for held in ours)
        if form is not None:
            self._unrounded(node, name, ours, form, state)
        if ours and (self._file.quantised or not theirs):
            kept = [as_stored(held.array, form) for held in ours]
            if theirs and self._ours.integer and node.op == "DequantizeLinear" and not ours[0].step:
                kept.insert(0, theirs[0])  # we may round it behind a view, which the file does not have
        else:
            kept = list(theirs)
        if kept:
            state.values[0][name], state.values[1][name] = kept[0], kept[-1]

    def _unrounded(self, node: FileNode, name: str, ours: Sequence[Held], form: Format, state: _WalkState) -> None:
        """Take down the real numbers of what the file stores as integers and we do not, clamped to their range."""
        source = state.values[1].get(node.inputs[0]) if not ours and node.op == "QuantizeLinear" else None
        if not ours and node.op in _MOVED_OPS:
            source = self._moved(node, name, state)
        real = next((held.array for held in ours if not held.step), source)
        if real is not None:
            state.unrounded[name] = np.clip(real, form.real(form.low), form.real(form.high)).astype(np.float32)

    def _moved(self, node: FileNode, name: str, state: _WalkState) -> Array | None:
        """Move the real numbers of moved integers (not of a Pad, which puts others beside them)."""
        data = node.inputs if node.op == "Concat" else (node.inputs[0],)
        if node.op == "Pad" or not all(source in state.unrounded for source in data):
            return None
        known = {**state.values[1], **{source: state.unrounded[source] for source in data}}
        try:
            return self._file.run(node, known)[node.outputs.index(name)]
        except EvaluatorLacksError:
            return None

    def _counterparts(self, node: FileNode, name: str, form: Format | None, state: _WalkState) -> tuple[Held, ...]:
        if name == state.loss and self._ours.loss is not None:
            return (Held(self._ours.loss, 0.0),)
        stored = form is not None or node.op == "DequantizeLinear"
        if not stored and name in self._before_rounding:
            return ()  # ours may be rounded here, and clamped to the range: compared once the file's is, too
        return self._ours.tensor(name, stored or self._is_stored(name))

    def _is_stored(self, name: str) -> bool:
        """Tell whether a tensor only shows under another name what was read from integers."""
        known, value = self._model.tensors, self._model.tensors.get(name)
        node = self._makers.get(name)
        while value is not None and node is not None and (node.op in _MOVED_OPS or node.op == "Dropout"):
            source = known.get(node.inputs[0])
            if source is None or source.value != value.value:
                return False
            node = self._makers.get(node.inputs[0])
        return node is not None and node.op == "DequantizeLinear"

    def _compare(
        self, node: FileNode, name: str, ours: Sequence[Held], theirs: Sequence[Array], form: Format | None
    ) -> None:
        """Check that one of the forms that we hold agrees with what the file makes of one of the forms before it."""
        found: list[Distance] = []
        for held, array in itertools.product(ours, [self._of_sample(each, ours[0]) for each in theirs]):
            if form is None:
                found.append(in_numbers(held, array))
            else:
                found.append(in_steps(held, array, form))
            if not found[-1].wrong:
                self._tally.add(name, found[-1], array.size, form)
                return
        raise self._differs(node, name, found[0].wrong)

    def _sample_axis(self, theirs: Array, ours: Array) -> int | None:
        """Return the axis along which the file has a batch of its own, if it has one."""
        pairs = enumerate(zip(theirs.shape, ours.shape, strict=False))
        longer = [axis for axis, (a, b) in pairs if self._batch > 1 and a == self._batch * b]
        return longer[0] if len(longer) == 1 and theirs.ndim == ours.ndim else None

    def _of_sample(self, theirs: Array, ours: Held) -> Array:
        """Return the first sample of such a batch."""
        axis = self._sample_axis(theirs, ours.array)
        return theirs if axis is None else theirs.take(range(ours.array.shape[axis]), axis)

    def _of_batch(self, ours: Held, theirs: Array) -> Held:
        """Repeat ours as often as such a batch has samples."""
        axis = self._sample_axis(theirs, ours.array)
        return ours if axis is None else replace(ours, array=np.concatenate([ours.array] * self._batch, axis))

    def _differs(self, node: FileNode, name: str, what: str) -> CompileError:
        where = f"tensor {name} (node {node.name}, {node.op})"
        sample = f", sample {self._index}" if self._index else ""
        return CompileError("E0605", where, f"{what}{sample}", "please report this with the model; see --explain E0605")


def _before_rounding(nodes: Sequence[FileNode]) -> frozenset[str]:
    """Name tensors that are only ever read to be rounded, some of them moved first."""
    readers: dict[str, list[FileNode]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    found: set[str] = set()
    for node in reversed(nodes):
        for name in node.outputs:
            after = readers.get(name, [])
            if after and all(n.op == "QuantizeLinear" or (n.op in _MOVED_OPS and n.outputs[0] in found) for n in after):
                found.add(name)
    return frozenset(found)


def batch_with(x: Array, size: int) -> Array:
    """Return a sample, and others after it if the file takes so many at once: it must not matter which."""
    return np.concatenate([np.roll(x.ravel(), index).reshape(x.shape) for index in range(size)])


def as_stored(real: Array, form: Format | None) -> Array:
    """Round our numbers as the file stores them: a number between two may be rounded otherwise there."""
    return real if form is None else quantised(real, form.scale, form.zero, form.low, form.high).astype(form.dtype)


def _format_of(node: FileNode, values: Mapping[str, Array], formats: Mapping[str, Format]) -> Format | None:
    """Tell how the file stores the node's outputs; None for real numbers."""
    first = node.result_scale
    if first is None:
        return formats.get(node.inputs[0]) if node.op in _MOVED_OPS and node.inputs else None
    has_zero = len(node.inputs) > first + 1 and node.inputs[first + 1]
    scale: Array | None = values.get(node.inputs[first])
    zero: Array | None = values.get(node.inputs[first + 1]) if has_zero else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.dtype.name not in _RANGES:
        return None
    kind = zero.dtype.name
    return Format(float(scale.ravel()[0]), int(zero.ravel()[0]), *_RANGES[kind], kind)
