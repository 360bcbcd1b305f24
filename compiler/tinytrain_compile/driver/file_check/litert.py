"""Comparison of the numpy reference with LiteRT, which runs the .tflite file, by every tensor that both have.

LiteRT's reference kernels are an oracle that shares no code with the translation of the file (`frontend/tflite`), nor
with the reference. Every node of the integer graph, rounded plainly, reads LiteRT's own values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tinytrain_compile.driver.file_check.check import SAMPLES
from tinytrain_compile.driver.file_check.compare import in_numbers
from tinytrain_compile.driver.file_check.imported_values import Held, ImportedValues
from tinytrain_compile.driver.file_check.litert_file import Stored, run_litert
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError
from tinytrain_compile.frontend.file.foreign import is_tflite
from tinytrain_compile.ir.imported import FileTensor, ImportedModel
from tinytrain_compile.ir.records import feeds
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import LiteRtAgreement
from tinytrain_compile.ir.types import Array, Graph, Node, Quant
from tinytrain_compile.ops.base import run_node
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.quantize import storage_clamps

STEPS = 1.0
"""Steps of its format that a stored tensor may be off: roundings of pools, sums and tables differ."""
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGE = 4


@dataclass(frozen=True, eq=False)
class Compared:
    """A tensor of the file that both have. off: distance in steps of its format; None if it is float32."""

    name: str
    off: Array | None


def check_litert(
    model: ImportedModel, floats: Graph | None, train: TrainGraph, samples: Samples, options: CompileOptions
) -> LiteRtAgreement | None:
    """Compare on the first samples; None if the model is no .tflite file. E0605 with the first tensor that differs.

    floats: as of `check_file`. train: a step of one sample.
    """
    if not options.model.is_file() or not is_tflite(options.model):
        return None
    ours, count = ImportedValues(model, train, floats), min(len(samples.x), SAMPLES)
    pairs = list(zip(samples.x[:count, None], samples.y[:count, None], strict=True))
    try:
        heard = run_litert(options.model, model.output_name, [ours.onnx_inputs(x) for x, _ in pairs], whole=True)
    except EvaluatorLacksError as lacks:
        return LiteRtAgreement(skipped=lacks.reason)
    found, apart, where = list[Compared](), list[float](), options.model.name
    for (x, y), theirs in zip(pairs, heard, strict=True):
        if ours.integer and train.integer:
            found += [_close(where, one) for one in compare_integers(model, train, x, theirs.steps)]
        else:
            ours.run(x, y)
            _compare_reals(where, model, ours, theirs.steps[-1], found)
        apart.append(_outputs_apart(model, train, x, theirs.output.real))
    stored = [one.off for one in found if one.off is not None]
    size = sum(off.size for off in stored)
    return LiteRtAgreement(
        count,
        len({one.name for one in found}),
        max((float(off.max(initial=0.0)) for off in stored), default=None),
        sum(int(np.count_nonzero(off == 0)) for off in stored) / size if size else None,
        max(apart, default=0.0),
        heard[0].output.scale or None,
        "" if found else "no tensor was found on both sides",
    )


def _close(where: str, one: Compared) -> Compared:
    """Return a stored tensor that agrees."""
    worst = 0.0 if one.off is None else float(one.off.max(initial=0.0))
    if worst <= STEPS:
        return one
    raise _differs(where, one.name, f"{worst:.0f} steps away")


def _differs(where: str, tensor: str, what: str) -> CompileError:
    text = f"the numpy reference differs from LiteRT: {what}"
    return CompileError("E0605", f"{where}, tensor {tensor}", text, "please report this with the model")


# ---- integers --------------------------------------------------------------------------------------------------------


def compare_integers(
    model: ImportedModel, train: TrainGraph, x: Array, steps: Sequence[Mapping[str, Stored]]
) -> list[Compared]:
    """Compare every tensor that both have, each node on LiteRT's own values. x: as a step takes it; steps: of a
    window, all tensors of LiteRT."""
    clamps, inputs = storage_clamps(model.graph), {one.name for one in model.data}
    places: dict[str, list[tuple[str, FileTensor]]] = {}
    for name in steps[-1]:
        tensor = model.tensors.get(f"{name}.q")
        if tensor is not None and name not in inputs:
            value = clamps.get(tensor.value, tensor.value)
            for form in train.forms.get(value, (value,)):
                places.setdefault(form, []).append((name, tensor))
    values, found = _given(train, x), dict[str, Array]()
    for node in _forward(train):
        made = run_node(plainly_rounded(node), tuple(values[value.name] for value in node.inputs), train.integer)
        for value, array in zip(node.outputs, made, strict=True):
            values[value.name] = array
            quant = train.formats.get(value.name) if array.dtype == np.int8 else None
            for name, tensor in places.get(value.name, ()):
                near = _nearest(array, quant, tensor, [one[name] for one in steps])
                if near is None:
                    continue
                off, theirs = near
                if name not in found or off.max(initial=0.0) < found[name].max(initial=0.0):
                    found[name] = off
                if quant is None or quant.scale[0] == theirs.scale:
                    values[value.name] = _in_graph(theirs, tensor, array)
    return [Compared(name, off) for name, off in found.items()]


def _given(train: TrainGraph, x: Array) -> dict[str, Array]:
    sums = {v.name: np.zeros(v.shape, np.int32 if v.dtype == "int32" else np.float32) for v in train.graph.accumulators}
    return {**sums, **train.graph.constants, **feeds(x, train.data)}


def _forward(train: TrainGraph) -> Iterator[Node]:
    needed = train.graph.ancestors(train.graph.outputs)
    return (node for node in train.graph.nodes if node.name in needed)


def _nearest(
    array: Array, quant: Quant | None, tensor: FileTensor, steps: Sequence[Stored]
) -> tuple[Array, Stored] | None:
    """Return how many steps off our integers are, and LiteRT's in ONNX axes; None if they cannot be laid beside ours.

    Which axes of an image come first, and how late a row of a stream is, the numbers tell: the nearest is taken.
    """
    real = array if quant is None else (array.astype(np.float64) - quant.zero) * quant.scale[0]
    mine, one = np.asarray(tensor.to_onnx(np.asarray(real)), np.float64), steps[-1]
    stored = np.clip(np.rint(mine / one.scale) + one.zero, *LIMITS[one.array.dtype.name])
    best: tuple[Array, Array] | None = None
    for theirs in _laid(stored.shape, [step.array for step in steps]):
        off = np.abs(stored - theirs)
        if best is None or off.max(initial=0.0) < best[0].max(initial=0.0):
            best = off, theirs
    return None if best is None else (best[0], Stored(best[1], one.scale, one.zero))


def _laid(shape: tuple[int, ...], steps: Sequence[Array]) -> Iterator[Array]:
    """Yield LiteRT's integers in every way that has this shape: rows of its steps joined, channels first."""
    yield from _rows(shape, steps)
    if len(shape) == _IMAGE:
        last = tuple(shape[axis] for axis in _CHANNELS_LAST)
        yield from (theirs.transpose(_CHANNELS_FIRST) for theirs in _rows(last, steps))


def _rows(shape: tuple[int, ...], steps: Sequence[Array]) -> Iterator[Array]:
    """Yield the last step's tensor, or the rows that the steps have added, from the last ones to older ones."""
    one = steps[-1]
    if one.size == np.prod(shape):
        yield one.reshape(shape)
        return
    longer = [axis for axis, (ours, theirs) in enumerate(zip(shape, one.shape, strict=False)) if ours != theirs]
    if one.ndim != len(shape) or len(longer) != 1 or one.shape[longer[0]] > shape[longer[0]]:
        return
    axis, rows = longer[0], shape[longer[0]]
    fresh = _fresh(steps, axis)
    joined = np.concatenate([np.take(step, range(-fresh, 0), axis) for step in steps], axis)
    for end in range(joined.shape[axis], rows - 1, -1):
        yield np.take(joined, range(end - rows, end), axis)


def _fresh(steps: Sequence[Array], axis: int) -> int:
    """Return how many rows a step adds to a tensor that may also hold older ones."""
    rows = steps[-1].shape[axis]
    for fresh in range(1, rows):
        old, again = range(fresh, rows), range(rows - fresh)
        if all(np.array_equal(np.take(a, old, axis), np.take(b, again, axis)) for a, b in pairwise(steps)):
            return fresh
    return rows


def _in_graph(theirs: Stored, tensor: FileTensor, like: Array) -> Array:
    """Return LiteRT's integers, in ONNX axes, as the graph holds them: as int8, or as real numbers."""
    if like.dtype == np.int8:
        array = (theirs.array.astype(np.int16) - (128 if theirs.array.dtype == np.uint8 else 0)).astype(np.int8)
    else:
        array = theirs.real
    array = array.reshape(tensor.shape)
    array = array[..., list(tensor.columns)] if tensor.columns else array
    order = [axis for axis in tensor.order if axis >= 0]
    return np.ascontiguousarray(array.transpose(order)).reshape(like.shape)


# ---- real numbers ----------------------------------------------------------------------------------------------------


def _compare_reals(
    where: str, model: ImportedModel, ours: ImportedValues, last: Mapping[str, Stored], found: list[Compared]
) -> None:
    """Add the float32 tensors that both have, by the tolerance of the file check."""
    for name, theirs in last.items():
        held = () if theirs.scale or name not in model.tensors else ours.tensor(name, False)
        for mine in held[:1]:
            whole = Held(mine.array, 0.0)
            laid = [in_numbers(whole, array) for array in _laid(mine.array.shape, [theirs.array])]
            if laid:
                near = min(laid, key=lambda distance: distance.largest)
                if near.wrong:
                    raise _differs(where, name, near.wrong)
                found.append(Compared(name, None))


def _outputs_apart(model: ImportedModel, train: TrainGraph, x: Array, theirs: Array) -> float:
    """Return how far the device's output of a sample, before training, is from the file's: real numbers.

    If the file ends in integers, both are rounded to them.
    """
    values = run_nodes(_forward(train), _given(train, x), train.integer)
    name = train.graph.outputs[0].name
    array, quant = values[name], train.formats.get(name)
    if array.dtype == np.int8 and quant is not None:
        array = (array.astype(np.float64) - quant.zero) * quant.scale[0]
    real, form = array.ravel().astype(np.float64), train.stored_output
    if form is not None:  # as m_quantise_output gives it
        real = (np.clip(np.rint(real / form.scale) + form.zero, *LIMITS[form.dtype]) - form.zero) * form.scale
    laid = theirs.reshape(model.output_shape).transpose(model.output_perm).ravel()
    apart = np.abs(real - laid).max(initial=0.0)
    return 0.0 if form is not None and apart < form.scale / 2 else float(apart)
