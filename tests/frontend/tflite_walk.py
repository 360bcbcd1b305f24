"""The numpy reference of a .tflite file's integer graph, node by node on LiteRT's own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.quantize.nets import prepared
from tinytrain_compile.ir.imported import FileTensor
from tinytrain_compile.ops.base import run_node
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.quantize import QuantOptions, quantise, storage_clamps
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclass(frozen=True)
class Stored:
    """Integers of LiteRT's, in the axes of the file, and what they mean."""

    array: np.ndarray
    scale: float
    zero: int


def stored_values(runner: Any) -> dict[str, Stored]:
    """Every tensor that LiteRT stores in eight bits, after a run."""
    found: dict[str, Stored] = {}
    for one in runner.get_tensor_details():
        scale, zero = one["quantization"]
        if np.dtype(one["dtype"]).name in LIMITS and scale:
            try:
                found[one["name"]] = Stored(runner.get_tensor(one["index"]).copy(), float(np.float32(scale)), zero)
            except ValueError:  # nothing was allocated for it
                continue
    return found


def walk(proto: onnx.ModelProto, x: np.ndarray, theirs: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Steps between us and LiteRT for every tensor that both have; each node reads LiteRT's integers.

    x: the input as int8, in the axes of the file.
    """
    known = prepared(proto, head="int8")
    training = TrainingOptions(loss="mse")
    floats = build_training(known, resolve_update(known.graph, "last:1"), training)
    train = quantise(floats, QuantOptions(0, "sr8", False))
    clamps, one = storage_clamps(known.graph), known.data[0]
    places: dict[str, list[tuple[str, FileTensor]]] = {}
    for name in theirs:
        tensor = known.tensors.get(f"{name}.q")
        if tensor is not None and name != one.name:
            value = clamps.get(tensor.value, tensor.value)
            for form in train.forms.get(value, (value,)):
                places.setdefault(form, []).append((name, tensor))
    graph = train.graph
    needed = graph.ancestors(graph.outputs)
    values = {**graph.constants, graph.inputs[0].name: x.transpose(one.perm).reshape(one.shape)}
    found: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        if node.name not in needed:
            continue
        node = plainly_rounded(node)
        results = run_node(node, tuple(values[value.name] for value in node.inputs), train.integer)
        for value, array in zip(node.outputs, results, strict=True):
            values[value.name] = array
            for name, tensor in places.get(value.name, ()):
                format_of = train.formats.get(value.name) if array.dtype == np.int8 else None
                off = _steps(array, tensor, theirs[name], format_of)
                if name not in found or np.abs(off).max() < np.abs(found[name]).max():
                    found[name] = off
                values[value.name] = _in_graph(theirs[name], tensor, array)
    return found


def _file_axes(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape or array.ndim != 4 else array.transpose(0, 2, 3, 1)


def _steps(array: np.ndarray, tensor: FileTensor, theirs: Stored, quant: Any) -> np.ndarray:
    real = array if quant is None else ((array.astype(np.float64) - quant.zero) * quant.scale[0])
    mine = _file_axes(tensor.to_onnx(np.asarray(real)), theirs.array.shape).reshape(theirs.array.shape)
    low, high = LIMITS[theirs.array.dtype.name]
    stored = np.clip(np.rint(mine / theirs.scale) + theirs.zero, low, high)
    return stored - theirs.array


def _in_graph(theirs: Stored, tensor: FileTensor, like: np.ndarray) -> np.ndarray:
    """LiteRT's integers as the graph holds them: as int8, or as real numbers."""
    array = theirs.array.astype(np.int32)
    if like.dtype == np.int8:
        array = (array - (128 if theirs.array.dtype == np.uint8 else 0)).astype(np.int8)
    else:
        array = ((array - theirs.zero) * np.float64(theirs.scale)).astype(np.float32)
    if array.shape != tensor.shape and array.ndim == 4:
        array = array.transpose(0, 3, 1, 2)
    array = array.reshape(tensor.shape)
    array = array[..., list(tensor.columns)] if tensor.columns else array
    return np.ascontiguousarray(array.transpose([axis for axis in tensor.order if axis >= 0])).reshape(like.shape)
