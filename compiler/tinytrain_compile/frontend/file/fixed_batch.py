"""A batch that the file has fixed to N becomes 1, where the network treats each of the N samples by itself.

Literal shapes (of Reshape and Expand) that hold N are divided by it. Whether that is the same network is then seen from
the shapes that onnx infers for both: every tensor that depends on the input has exactly one axis that is N times as
long in the file, and no operator works across that axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.forms import inferred_types
from tinytrain_compile.frontend.file.model import INDICES, LOSS_OPS, Links, OnnxModel, OnnxNode, rewritten
from tinytrain_compile.ir.types import Array

_Shapes = Mapping[str, tuple[int, ...]]
_IMAGES = """
AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool GroupNormalization
InstanceNormalization LRN LpPool MaxPool Resize SpaceToDepth Upsample
"""
_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_FIRST_AXIS = frozenset(_IMAGES.split())
"""Operators whose first axis is that of the samples."""
_ALONG = {"CumSum": 0, "LogSoftmax": -1, "LpNormalization": -1, "Hardmax": -1, "Softmax": -1}
"""Operators that work along one axis, and its default."""


def at_batch_1(model: OnnxModel) -> OnnxModel:
    """Return the model for one sample, with a note; itself if that is what it is for. E0211 where its samples meet."""
    sizes = {value.shape[0] for value in model.inputs if len(value.shape) > 1}
    if len(sizes) != 1 or (batch := sizes.pop()) == 1:
        return model
    labels = [value for value in model.inputs if len(value.shape) == 1 and value.shape[0] != batch]
    if labels:
        raise _refused(model, batch, f"input {labels[0].name} is not")
    links = Links(model.nodes, model.outputs, model.constants)
    before = _shapes(model)
    one = _Rewriter(model, links, before, batch).run()
    after = _shapes(one)
    axes = {value.name: 0 for value in model.inputs}
    for node in model.nodes:
        for name in () if node.op in LOSS_OPS else filter(None, node.outputs):
            if links.is_constant(name):
                continue
            axis = _axis(before.get(name), after.get(name), batch)
            if axis is None or _crosses(node, axes, before):
                if _is_time_first(model):
                    note = f"input {model.inputs[0].name} holds time first: one sample of {batch} steps"
                    return replace(model, notes=(*model.notes, note))
                what = f"tensor {name} (node {node.name}, {node.op}) does not keep them apart"
                raise _refused(model, batch, what, node.op in _RECURRENT)
            axes[name] = axis
    note = f"batch {batch} of the file is 1 here: --batch says how many samples an update takes"
    return replace(one, notes=(*model.notes, note))


def _is_time_first(model: OnnxModel) -> bool:
    """Tell whether the first axis can be the steps of one sample's sequence, and no operator of images denies it."""
    source = next(value for value in model.inputs if len(value.shape) > 1)
    rank = 2 if source.elem_type in INDICES else 3
    images = any(node.op in _FIRST_AXIS for node in model.nodes)
    return source is model.inputs[0] and len(source.shape) == rank and source.shape[1] == 1 and not images


def _refused(model: OnnxModel, batch: int, what: str, time: bool = False) -> CompileError:
    source = next(value for value in model.inputs if len(value.shape) > 1)
    why = f"the batch is fixed to {batch} samples (shape {list(source.shape)}), and {what}"
    try_ = "put samples first, time behind them (batch_first=True)" if time else "use --batch to accumulate"
    return CompileError("E0211", f"input {source.name}", why, f"export with batch 1 and {try_}")


def _axis(long: tuple[int, ...] | None, short: tuple[int, ...] | None, batch: int) -> int | None:
    """Return the one axis that is `batch` times as long."""
    if long is None or short is None or len(long) != len(short):
        return None
    differing = [axis for axis, (a, b) in enumerate(zip(long, short, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and long[differing[0]] == batch * short[differing[0]] else None


def _crosses(node: OnnxNode, axes: Mapping[str, int], shapes: _Shapes) -> bool:
    """Tell whether an operator that keeps its shape works along the axis of the samples."""
    name = node.input(0)
    if name not in axes or name not in shapes:
        return False
    axis, rank = axes[name], max(len(shapes[name]), 1)
    if node.op in _FIRST_AXIS:
        return axis != 0
    if node.op in _RECURRENT:  # time steps are no samples
        return axis != (0 if node.integer("layout", 0) else 1)
    if node.op == "LayerNormalization":
        return axis >= node.integer("axis", -1) % rank
    return node.op in _ALONG and node.integer("axis", _ALONG[node.op]) % rank == axis


def _shapes(model: OnnxModel) -> _Shapes:
    return {name: shape for name, (shape, _) in inferred_types(model).items()}


class _Rewriter:
    def __init__(self, model: OnnxModel, links: Links, shapes: _Shapes, batch: int) -> None:
        self._model, self._links, self._shapes, self._batch = model, links, shapes, batch
        self._constants = dict(model.constants)

    def run(self) -> OnnxModel:
        inputs = tuple(replace(value, shape=(1, *value.shape[1:])) for value in self._model.inputs)
        nodes = tuple(self._shaped(node) for node in self._model.nodes)
        return replace(self._model, inputs=inputs, nodes=nodes, constants=self._constants)

    def _shaped(self, node: OnnxNode) -> OnnxNode:
        """Return a Reshape or Expand to a literal shape, to that of one sample."""
        literal = self._literal(node.input(1)) if node.op in ("Reshape", "Expand") else None
        long = self._shapes.get(node.output(0))
        if literal is None or long is None or (node.op == "Reshape" and self._links.is_constant(node.input(0))):
            return node
        at = self._samples(literal, long[-len(literal) :])
        if at is None or literal[at] <= 0:
            return node
        name = f"{node.name}.shape"
        self._constants[name] = np.asarray(
            [d // self._batch if i == at else d for i, d in enumerate(literal)], np.int64
        )
        return rewritten(node, (node.input(0), name, *node.inputs[2:]))

    def _samples(self, literal: list[int], long: tuple[int, ...]) -> int | None:
        """Return the place that holds the samples: the first if it can be, or the only one that can."""
        fitting = [place for place, size in enumerate(long) if size % self._batch == 0 and literal[place] != 1]
        return fitting[0] if fitting[:1] == [0] or len(fitting) == 1 else None

    def _literal(self, name: str) -> list[int] | None:
        array: Array | None = self._model.constants.get(name)
        maker = self._links.maker(name)
        if maker is not None and maker.op == "Constant" and not maker.domain:
            array = maker.attrs.get("value", maker.attrs.get("value_ints"))
        return None if array is None else [int(d) for d in np.asarray(array).reshape(-1)]
