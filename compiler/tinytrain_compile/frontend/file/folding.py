"""Evaluates, at compile time, nodes whose inputs are all known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.file.protobuf import check_dims, check_finite, with_finite_masks
from tinytrain_compile.ir.types import Array

FOLDED_BYTES, FOLDED_ELEMENTS, GROWTH = 1 << 29, 1 << 24, 4
"""Room for results: of all, of one, or so many times what the file itself holds."""
_GROWING = "Add Sub Mul Div Pow Mod And Or Xor Equal Less Greater Where Max Min Sum Mean"
_BROADCASTING = frozenset(_GROWING.split())

_FOLDABLE = """
Abs Add And ArgMax ArgMin BatchNormalization Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape
Cos CumSum DepthToSpace Div Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND
Gemm Greater GreaterOrEqual Identity Less LessOrEqual Log MatMul Max Mean Min Mod Mul Neg Not Or Pad Pow
Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round
ScatterElements ScatterND Sigmoid Sign Sin Size Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh
Tile Transpose Trilu Unsqueeze Where Xor
"""
FOLDABLE = frozenset(_FOLDABLE.split())
"""Operators without state or randomness that are evaluated when all inputs are known."""

NEVER_FOLDED = frozenset(("Dropout", "GRU", "LSTM", "RNN"))
"""Operators that are imported even if all inputs are known: random ones, and those that have weights to train and
attributes that onnx.reference does not look at."""

VIEWS = frozenset(("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"))
"""Operators whose result is still the same weight to the user."""

MOVES = VIEWS - {"Cast"}
"""Those that mean the same on stored integers as on real numbers."""

PARTS = frozenset(("Slice", "Split", "Gather"))
"""Operators whose result is some elements of their first input."""


class FoldingRoom:
    """How much may come of the constants of a file, all of which is in memory at once: a small file may ask for any."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        own = sum(array.nbytes for array in constants.values())
        self._bytes = FOLDED_BYTES + GROWTH * own
        self.elements = max(FOLDED_ELEMENTS, GROWTH * max((array.size for array in constants.values()), default=0))
        """Most that one result may have."""

    def take(self, arrays: Iterable[Array]) -> None:
        """Count results; MemoryError when it is too much."""
        self._bytes -= sum(array.nbytes for array in arrays)
        if self._bytes < 0:
            raise MemoryError


def fold(node: OnnxNode, inputs: Mapping[str, Array], opset: int, room: FoldingRoom | None = None) -> tuple[Array, ...]:
    """Return outputs of a node on known inputs. E0212 if it cannot take them, E0217 if huge, E0205 if not finite.

    room: that is left for constants of the model; None for a result that is not kept.
    """
    where = f"node {node.name} ({node.op})"
    room = room or FoldingRoom(inputs)
    try:
        _check_size(node, inputs, room.elements)
        evaluator: Any = ReferenceEvaluator(node.proto, opsets={"": opset})  # its typing leaves results open
        with np.errstate(all="ignore"):
            results = [np.asarray(result) for result in evaluator.run(None, dict(inputs))]
        room.take(results)
        for result in results:
            check_dims(where, result.shape, allow_zero=True)
    except CompileError:
        raise
    except MemoryError as error:
        raise CompileError("E0217", where, "its constant result is too large", "use smaller shapes") from error
    except Exception as error:  # the evaluator raises whatever numpy raises
        raise CompileError(
            "E0212", where, f"it cannot be computed: {error}", "check its inputs and attributes"
        ) from error
    results = [with_finite_masks(result) for result in results]
    for result in results:
        check_finite(result, where)
    return tuple(results)


def fold_all(
    nodes: Iterable[OnnxNode], constants: Mapping[str, Array], opset: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return everything that follows from `constants` through foldable nodes, and which of them each view shows."""
    known, sources = dict(constants), {name: name for name in constants}
    room = FoldingRoom(constants)
    for node in nodes:
        if node.op in FOLDABLE and not node.domain and all(name in known for name in node.inputs if name):
            arrays = {name: known[name] for name in node.inputs if name}
            known.update(zip(node.outputs, fold(node, arrays, opset, room), strict=False))
            if node.op in VIEWS and node.input(0) in sources:
                sources[node.output(0)] = sources[node.input(0)]
    return known, sources


def _check_size(node: OnnxNode, inputs: Mapping[str, Array], most: int) -> None:
    """Raise MemoryError before an operator that can make much out of little makes more elements than `most`."""
    arrays = [inputs[name] for name in node.inputs if name]
    elements = 0
    if node.op == "ConstantOfShape":
        elements = math.prod(int(d) for d in arrays[0].flat)
    elif node.op in ("Expand", "Tile"):
        elements = arrays[0].size * math.prod(int(d) for d in arrays[1].flat)
    elif node.op == "Pad":
        elements = math.prod(dim + sum(abs(int(p)) for p in arrays[1].flat) for dim in arrays[0].shape)
    elif node.op == "Range":
        start, limit, delta = (float(a) for a in arrays)
        elements = int(abs(limit - start) / abs(delta)) if delta else 0
    elif node.op in ("MatMul", "Gemm"):
        elements = _product_size(node, tuple(arrays[0].shape), tuple(arrays[1].shape))
    elif node.op in ("Gather", "GatherND"):
        axis = int(node.attrs.get("axis", 0)) % max(arrays[0].ndim, 1)
        kept = arrays[0].shape[:axis] + arrays[0].shape[axis + 1 :] if node.op == "Gather" else arrays[0].shape[1:]
        elements = arrays[1].size * math.prod(kept)
    else:
        elements = math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) if node.op in _BROADCASTING else 0
    if elements > most:
        raise MemoryError


def _product_size(node: OnnxNode, first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return elements of a MatMul or a Gemm."""
    rows = first[-1] if node.attrs.get("transA", 0) else math.prod(first[-2:-1])
    columns = second[0] if node.attrs.get("transB", 0) else math.prod(second[-1:] if second[1:] else ())
    return math.prod(np.broadcast_shapes(first[:-2], second[:-2])) * rows * columns
