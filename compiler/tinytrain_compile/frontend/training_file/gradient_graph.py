"""A training graph: forward pass, loss and gradients as one graph of nodes, with weights as inputs.

ONNX Runtime writes such graphs (training_model.onnx, beside it optimizer_model.onnx and a checkpoint), and tools that
build on it, as Deeploy (network.onnx, beside it optimizer.onnx and an .npz). What leads to the first output, the loss,
is the model; gradients are made anew. dialects.py says what the tools' own operators mean.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES, open_file, read_file
from tinytrain_compile.frontend.file.model import MICROSOFT
from tinytrain_compile.frontend.file.protobuf import MAX_RANK, is_accumulator, read_proto
from tinytrain_compile.frontend.training_file.dialects import standard_form
from tinytrain_compile.frontend.training_file.proto import number_of, refused, up_to
from tinytrain_compile.ir.imported import FileTraining
from tinytrain_compile.ir.types import Array

OPTIMIZER_MODELS = ("optimizer_model.onnx", "optimizer.onnx")
_BUFFER = "_grad.accumulation.buffer"


def read_gradient_graph(
    proto: onnx.ModelProto, path: Path, weights: Path | None
) -> tuple[onnx.ModelProto, FileTraining]:
    """Return the model up to its loss with its weights, and how it is trained. E0231, E0105."""
    graph = proto.graph
    inputs = [value for value in graph.input if not value.name.endswith(_BUFFER)]
    names = [value.name for value in inputs]
    trained = _trained(graph, names, path.name)
    data = min(names.index(name) for name in trained)
    forward = standard_form(
        up_to(proto, list(graph.node), inputs, graph.initializer, graph.output[:1]), graph, path.name
    )
    found = find_weights(path, weights, names, data)
    missing = [name for name in trained if name not in found.arrays]
    if missing:
        what = f"{found.source} has no weight {missing[0]}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, or the checkpoint beside the model")
    read = {value.name for value in forward.graph.input}
    tensors = [found.tensor(value) for value in inputs if value.name in found.arrays and value.name in read]
    given = {tensor.name for tensor in tensors}
    left = [value for value in forward.graph.input if value.name not in given]
    if any(names.index(value.name) >= data for value in left):
        listed = ", ".join(value.name for value in left)
        what = f"{found.source} leaves open which of its inputs are weights: {listed}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, frozen ones too")
    del forward.graph.input[:]
    forward.graph.input.extend(left)
    forward.graph.initializer.extend(tensors)
    return forward, _training(path, trained)


def _trained(graph: onnx.GraphProto, inputs: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the inputs that have an accumulator."""
    buffers = [next(iter(node.input), "") for node in graph.node if is_accumulator(node)]
    trained = tuple(buffer.removesuffix(_BUFFER) for buffer in buffers if buffer.endswith(_BUFFER))
    if len(trained) != len(buffers) or not set(inputs).issuperset(trained) or not graph.output:
        raise refused(name, "its accumulators do not say which weights they are of")
    return trained


# ---- the optimizer --------------------------------------------------------------------------------------------------

_Said = tuple[str, dict[str, Any], float | None]
"""Optimizer, settings, learning rate."""


def _training(path: Path, trained: tuple[str, ...]) -> FileTraining:
    """Return the optimizer: of its own model, if that is beside; else that of the options."""
    place = next((path.parent / name for name in OPTIMIZER_MODELS if (path.parent / name).is_file()), None)
    if place is None:
        note = "training: no optimizer_model.onnx or optimizer.onnx, the options say how"
        return FileTraining(4, trained, "", {}, None, {}, (note,))
    nodes = [node for node in read_proto(place).graph.node if node.domain == MICROSOFT or _rule_of(node)]
    kinds = {node.op_type for node in nodes}
    rule = _rule_of(nodes[0]) if len(kinds) == 1 else None
    if rule is None:
        raise refused(place.name, f"it has {', '.join(sorted(kinds)) or 'no optimizer'}", "use SGD or AdamW")
    optimizer, settings, rate = rule(nodes, place.name, trained)
    return FileTraining(4, trained, optimizer, settings, rate, {}, ())


def _sgd_of_weights(nodes: Sequence[onnx.NodeProto], name: str, trained: tuple[str, ...]) -> _Said:
    """Return the learning rate of a model with one SGD node for each weight."""
    updated = {next(iter(node.input), "") for node in nodes}
    if updated != set(trained):
        other = sorted(updated ^ set(trained))[0]
        raise refused(name, f"weight {other} has an accumulator or an update, and not both", "train what it updates")
    further = {a.name for node in nodes for a in node.attribute if a.name not in ("lr", "description")}
    rates = {number_of(node, "lr", 0.0) for node in nodes}
    if further or len(rates) != 1:
        what = f"SGD has {sorted(further)[0]}" if further else "weights have learning rates of their own"
        raise refused(name, what, "use plain SGD with one learning rate")
    return "sgd", {}, rates.pop()


def _adamw(nodes: Sequence[onnx.NodeProto], name: str, _trained: tuple[str, ...]) -> _Said:
    """Read AdamW: adam_mode 0 is PyTorch's; 1 is that of transformers, with epsilon beside sqrt(v), decay last."""
    if len(nodes) != 1:
        raise refused(name, f"it has {len(nodes)} AdamW nodes", "use one for all weights")
    node = nodes[0]
    if number_of(node, "correct_bias", 1) != 1:
        raise refused(name, "correct_bias is 0", "use the corrected form")
    mode = int(number_of(node, "adam_mode", 0))
    if mode not in (0, 1):
        raise refused(name, f"adam_mode {mode} is unknown", "use 0 or 1")
    settings = {
        "betas": (number_of(node, "alpha", 0.9), number_of(node, "beta", 0.999)),
        "epsilon": number_of(node, "epsilon", 1e-8),
        "weight_decay": number_of(node, "weight_decay", 0.01),
        "raw_epsilon": mode == 1,
        "decay_after": mode == 1,
    }
    return "adamw", settings, None


_Rule = Callable[[Sequence[onnx.NodeProto], str, tuple[str, ...]], _Said]
_RULES: Mapping[tuple[str, str], _Rule] = {
    (MICROSOFT, "SGDOptimizerV2"): lambda _nodes, _name, _trained: ("sgd", {}, None),
    (MICROSOFT, "AdamWOptimizer"): _adamw,
    ("", "SGD"): _sgd_of_weights,
}
"""Domain and operator of an optimizer -> what it says."""


def _rule_of(node: onnx.NodeProto) -> _Rule | None:
    return _RULES.get((node.domain, node.op_type))


# ---- weights: an .npz by names or by positions, or a checkpoint ------------------------------------------------------


CHECKPOINT = "checkpoint"
_POSITION = re.compile(r"arr_0*(\d+)")
"""Name that numpy.savez gives an unnamed array: the N-th input, not counting accumulators."""
_BESIDE = re.compile(r"mb\d+_arr_\d+|meta_\w+")
"""Names of other arrays in a Deeploy file: samples of further micro-batches, and counts."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Arrays by input. source: what messages call the file; called: how it calls the array of an input."""

    arrays: Mapping[str, Array]
    source: str
    called: Mapping[str, str]

    def tensor(self, declared: onnx.ValueInfoProto) -> onnx.TensorProto:
        """Return the initializer in place of an input. E0231 for another shape or kind of numbers."""
        array, name = self.arrays[declared.name], declared.name
        dims = [d.dim_value for d in declared.type.tensor_type.shape.dim]
        where = f"weight {name}" if self.called[name] == name else f"weight {name} ({self.called[name]})"
        if list(array.shape) != dims:
            raise refused(where, f"its values have shape {list(array.shape)}, the model wants {dims}", _GIVE)
        kind = declared.type.tensor_type.elem_type
        known = kind in helper.get_all_tensor_dtypes()
        wanted = np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if known else np.dtype(np.void)
        if array.dtype.kind != wanted.kind:
            raise refused(where, f"its values are {array.dtype}, the model wants {wanted}", _GIVE)
        with np.errstate(over="ignore"):  # infinity is reported with the other numbers
            return numpy_helper.from_array(np.array(array, wanted, order="C"), name)


_GIVE = "give --weights FILE.npz of this model"


def find_weights(path: Path, file: Path | None, inputs: Sequence[str], data: int) -> Weights:
    """Read --weights, or else the checkpoint beside the model.

    inputs: names of the model's inputs, without its accumulators; the first `data` of them are no weights.
    Raises E0105 for a file that cannot be read, E0231 for arrays that no input takes.
    """
    if file is not None:
        return _of_npz(_npz(file), file.name, inputs, data)
    checkpoint = path.parent / CHECKPOINT
    if not checkpoint.is_file():
        return Weights({}, "no checkpoint is beside the model, which", {})
    try:
        found = checkpoint_tensors(read_file(checkpoint))
    except (OSError, ValueError) as problem:
        try_ = "copy it again, or give --weights FILE.npz"
        raise CompileError("E0105", CHECKPOINT, f"cannot be read ({problem})", try_) from problem
    return Weights(found, CHECKPOINT, {name: name for name in found})


def _of_npz(found: Mapping[str, Array], source: str, inputs: Sequence[str], data: int) -> Weights:
    """Read arrays of an .npz by what they are called, or else by their numbers."""
    known = set(inputs)
    if known.isdisjoint(found) and any(_POSITION.fullmatch(name) for name in found):
        numbers = {name: int(match[1]) for name in found if (match := _POSITION.fullmatch(name))}
        extra = [
            name for name in found if numbers.get(name, 0 if _BESIDE.fullmatch(name) else len(inputs)) >= len(inputs)
        ]
        called = {inputs[number]: name for name, number in numbers.items() if data <= number < len(inputs)}
    else:
        extra = [name for name in found if name not in known]
        called = {name: name for name in found}
    if extra:
        what = f"{source} holds {extra[0]}, and the model has no such input"
        some = ", ".join(inputs[:8]) + (f" and {len(inputs) - 8} more" if len(inputs) > 8 else "")
        raise refused(f"weight {extra[0]}", what, f"its inputs are: {some}")
    return Weights({name: found[key] for name, key in called.items()}, source, called)


def _npz(path: Path) -> Mapping[str, Array]:
    try:
        found: dict[str, Array] = {}
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            for item in archive.infolist():
                if item.file_size > MOST_DATA_BYTES:
                    raise ValueError(f"{item.filename} is too large")
                with archive.open(item) as data:
                    array = np.asarray(np.lib.format.read_array(data, allow_pickle=False))
                found[item.filename.removesuffix(".npy")] = array
        return found
    except Exception as problem:  # a damaged or hostile file breaks zipfile and numpy in many ways
        reason = getattr(problem, "strerror", None) or problem
        raise CompileError("E0105", path.name, f"cannot be read ({reason})", "give an .npz of weights") from problem


# ---- the checkpoint --------------------------------------------------------------------------------------------------
# The checkpoint of ONNX Runtime's training, a flatbuffer: only its tables of weights, every offset checked. A table
# begins with the distance back to its vtable, which says where each field lies. The root has the state of the module
# as field 1; that has the trained weights as field 0 and the frozen ones as field 1; a tensor has its name (0),
# dimensions (2), type (3, as in onnx.TensorProto) and bytes (4).

IDENTIFIER = b"ODTC"


class _Table:
    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        self._vtable = place - _unpacked(data, place, "<i")
        self._size = _unpacked(data, self._vtable, "<H")

    def field(self, index: int) -> int | None:
        """Return where a field lies; None where it is absent."""
        slot = 4 + 2 * index
        if slot + 2 > self._size:
            return None
        offset = _unpacked(self._data, self._vtable + slot, "<H")
        return self._place + offset if offset else None

    def target(self, index: int) -> int | None:
        """Return what a field that is an offset points to."""
        place = self.field(index)
        return None if place is None else place + _unpacked(self._data, place, "<I")

    def table(self, index: int) -> _Table | None:
        """Return a field that is a table."""
        place = self.target(index)
        return None if place is None else _Table(self._data, place)

    def tables(self, index: int) -> list[_Table]:
        """Return a field that is a vector of tables."""
        place = self.target(index)
        if place is None:
            return []
        count = _unpacked(self._data, place, "<I")
        if 4 * count > len(self._data):
            raise ValueError("a list is longer than the file")
        places = [place + 4 + 4 * i for i in range(count)]
        return [_Table(self._data, at + _unpacked(self._data, at, "<I")) for at in places]

    def bytes(self, index: int, unit: int = 1) -> bytes:
        """Return a field that is a string, or a vector of numbers of so many bytes."""
        place = self.target(index)
        if place is None:
            return b""
        size = unit * _unpacked(self._data, place, "<I")
        found = self._data[place + 4 : place + 4 + size]
        if len(found) != size:
            raise ValueError("a vector is longer than the file")
        return found

    def integer(self, index: int) -> int:
        """Return a field that is an int32."""
        place = self.field(index)
        return 0 if place is None else _unpacked(self._data, place, "<i")


def checkpoint_tensors(data: bytes) -> dict[str, Array]:
    """Return weights by name, trained and frozen ones; ValueError for what is no such file."""
    if data[4:8] != IDENTIFIER:
        raise ValueError("it is no checkpoint of ONNX Runtime")
    module = _Table(data, _unpacked(data, 0, "<I")).table(1)
    if module is None:
        raise ValueError("it holds no weights")
    return dict(_tensor(table) for index in (0, 1) for table in module.tables(index))


def _tensor(table: _Table) -> tuple[str, Array]:
    name = table.bytes(0).decode("utf-8", "replace")
    dims = [int(v) for v in np.frombuffer(table.bytes(2, 8), "<i8")]
    kind = table.integer(3)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError as problem:
        raise ValueError(f"weight {name} has type {kind}") from problem
    raw = table.bytes(4)
    if len(dims) > MAX_RANK or min(dims, default=1) < 0 or math.prod(dims) * dtype.itemsize != len(raw):
        raise ValueError(f"weight {name} has dimensions {dims} and {len(raw)} bytes")
    return name, np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(dims)


def _unpacked(data: bytes, place: int, form: str) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(form):
        raise ValueError("an offset leads out of the file")
    return int(struct.unpack_from(form, data, place)[0])
