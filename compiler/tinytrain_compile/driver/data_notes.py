"""What looks like a mistake in the user's data or options: never an error, but a note with a word on what to do.

Every rule is one that sound data hardly meets: better no note than one too many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.files.samples import class_count, is_binary, label_shape, load_inputs, raw_labels
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Graph
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.names import operand

ENOUGH = 8
"""Samples from which on labels that are all the same are a remark worth."""
COMPARED = 256
"""Samples whose numbers are looked at."""
OUTSIDE_SHARE = 0.2
"""Share of inputs outside the range of the model's input from which on they are scaled in another way."""
LARGE_SUM = 20.0
"""Sums of the first layer, in the root mean square, that a network with inputs of about 1 does not have."""
_BEFORE_THE_DATA = ("Reshape", "Transpose", "Clip", "Embed")


def option_notes(options: CompileOptions) -> tuple[str, ...]:
    """Notes on options that do not do what anybody wants."""
    if options.learning_rate == 0:
        return ("--lr 0: nothing is learned until m_set_lr gives another learning rate",)
    return ()


def data_notes(model: ImportedModel, train: TrainGraph, options: CompileOptions) -> tuple[str, ...]:
    """Notes on --data and --calib, which have been read without an error before."""
    paths = dict.fromkeys(path for path in (options.data, options.calib) if path is not None)
    return tuple(note for path in paths for note in _of_file(path, model, train))


def _of_file(path: Path, model: ImportedModel, train: TrainGraph) -> Iterator[str]:
    x, y = load_inputs(path, model), raw_labels(path)
    yield from _of_inputs(path.name, x, model)
    if y is not None and y.dtype.kind in "fiub" and y.size:
        yield from _of_labels(path.name, y, label_shape(len(x), model, train), train)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _of_inputs(name: str, x: Array, model: ImportedModel) -> Iterator[str]:
    if x.min() == x.max():
        yield f"x of {name} is {x.min():g} everywhere: is it the right array?"
        return
    if len(x) > 1 and (x == x[0]).all():
        yield f"all {len(x)} samples x of {name} are the same: are they the right ones?"
    x = x[:COMPARED].astype(np.float64)
    pixels = x.min() >= 0 and 20 < x.max() <= 255 and (x == np.rint(x)).all()
    known = _input_range(model.graph)
    misfit = "" if known is None else _misfit(x, *known)
    if known is not None and misfit:
        source = "of the model's input" if model.quantised else "that --calib shows"
        what = f"{misfit} the range {source}, {known[0]:g} to {known[1]:g}"
        yield f"x of {name}: {what}: {'divide pixels' if pixels else 'scale it'} as in training"
    elif not model.quantised and pixels and _first_sums(model.graph) * np.sqrt((x**2).mean()) > LARGE_SUM:
        what = f"x of {name} looks like pixels from 0 to 255, the model like one for numbers of about 1"
        yield f"{what}: divide them as in training"


def _misfit(x: Array, low: float, high: float) -> str:
    """What is wrong with inputs for a format that holds numbers from low to high; "" if nothing is."""
    step = (high - low) / 255
    outside = float(((x < low - step) | (x > high + step)).mean())
    if outside > OUTSIDE_SHARE:
        return f"{outside:.0%} is outside"
    return "it has less than a twentieth of" if x.max() - x.min() < (high - low) / 20 else ""


def _input_range(graph: Graph) -> tuple[float, float] | None:
    """What the format of the input holds; None if it has none."""
    source = graph.inputs[0]
    if source.quant is not None:
        q = source.quant
        return (q.low - q.zero) * q.scale[0], (q.high - q.zero) * q.scale[0]
    readers = graph.consumers().get(source.name, [])
    attrs = readers[0].attrs if len(readers) == 1 else None
    if isinstance(attrs, ClipAttrs) and math.isfinite(attrs.high - attrs.low):
        return attrs.low, attrs.high
    return None


def _first_sums(graph: Graph) -> float:
    """Root mean square of a first layer's typical sum, for inputs of root mean square 1; 0 if others come first."""
    readers, pending, norms = graph.consumers(), [graph.inputs[0].name], list[Array]()
    while pending:
        for node in readers.get(pending.pop(), []):
            if node.op in _BEFORE_THE_DATA:
                pending.append(node.outputs[0].name)
            elif node.op in ("Conv", "Gemm") and operand(node, "w").name in graph.constants:
                weight = graph.constants[operand(node, "w").name]
                norms.append(np.sqrt((weight.reshape(len(weight), -1).astype(np.float64) ** 2).sum(axis=1)))
            else:  # it may scale its input itself
                return 0.0
    return float(np.median(np.concatenate(norms))) if norms else 0.0


# ---- labels ---------------------------------------------------------------------------------------------------------


def _of_labels(name: str, y: Array, wanted: tuple[int, ...], train: TrainGraph) -> Iterator[str]:
    classes = class_count(train)
    if y.size != math.prod(wanted):
        return
    if y.shape != wanted:
        yield f"y of {name} has shape {y.shape}, and is taken as {wanted}"
    found = np.unique(y)
    kind = "class" if classes else "label"
    if len(found) == 1 and len(y) >= ENOUGH:
        yield f"all {len(y)} samples of {name} have {kind} {found[0]:g}: nothing can be told apart"
    if classes and found[0] == 1 and len(found) == classes - 1 and classes > 2 and y.size >= 10 * classes:
        yield f"no sample of {name} has class 0, all others are there: class indices begin at 0"
    if is_binary(train) and (found[0] < 0 or found[-1] > 1):
        yield f"labels y of {name} go from {found[0]:g} to {found[-1]:g}: bce takes 0 to 1"
