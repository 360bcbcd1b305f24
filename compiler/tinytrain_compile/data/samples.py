"""Samples for verification: from --data, or random by seed."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from tinytrain_compile.data.array_advice import (
    OBJECTS,
    missing_arrays,
    savez,
    shape_of_samples,
    way_to_npz,
    way_to_numbers,
    way_to_shape,
    way_to_shares,
)
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES, open_file
from tinytrain_compile.ir.imported import DataInput, ImportedModel, WholeNumbers
from tinytrain_compile.ir.records import packed, parts
from tinytrain_compile.ir.stages import Interface, Samples, TrainGraph
from tinytrain_compile.ir.types import Array, Graph, Value
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.embedding import rows_to_choose_from
from tinytrain_compile.ops.input_lines import BYTE_ZERO
from tinytrain_compile.ops.loss import NllAttrs, classes_of


def said(value: Any) -> str:
    """Return what a value is, without its content, which may be large."""
    shape, kind = getattr(value, "shape", None), type(value).__name__
    return f"{kind} of shape {tuple(cast('tuple[int, ...]', shape))}" if isinstance(shape, tuple) else kind


def as_array(where: str, name: str, value: Any) -> Array:
    """Return the array that a value holds; CompileError E0105 for what holds no numbers. where: as messages say it."""
    if hasattr(value, "detach"):  # a PyTorch tensor, which may need a gradient or be on another device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except Exception as problem:  # whatever an object's own conversion raises
        what = f"{name}, {said(value)}, cannot be read as an array"
        raise CompileError("E0105", where, what, "give an array of numbers") from problem
    if array.dtype.kind not in "fiub":
        what = f"{name} is {said(value)} of {array.dtype}"
        raise CompileError("E0105", where, what, way_to_numbers(name, array))
    return array


def shaped_labels(name: str, y: Array, wanted: tuple[int, ...], classes: int) -> Array:
    """Shape labels as the loss takes them: axes of size 1 may be missing or too many. E0305 for any other shape.

    classes: how many there are where labels are class indices, else 0. wanted: samples first.
    """
    if y.shape == wanted:
        return y
    if y.shape[:1] == wanted[:1] and _significant(y.shape) == _significant(wanted):
        return y.reshape(wanted)
    # Where the number of samples is no fault it is left out: `finetune` splits a file before this looks at it.
    same = y.shape[:1] == wanted[:1]
    show = shape_of_samples if same else str
    given, taken = show(y.shape), show(wanted)
    meant = "class indices, integers from 0" if classes else "a number for each output"
    what, way, hot = f"y has shape {given}", f"this loss takes {taken}: {meant}", _one_hot(y, wanted) if classes else 0
    if y.shape == wanted[1:] and wanted[0] == 1:
        way = "add an axis for the samples: y = np.array([y])"
    elif len(y.shape) > 1 and y.shape[0] == 1 and y.shape[1:] == wanted:
        way = f"leave out its first axis: y = y[0], of shape {wanted}"
    elif not same and y.ndim and y.shape[1:] == wanted[1:]:
        what, way = f"y has {len(y)} labels for {wanted[0]} samples", f"give one label for each sample: shape {taken}"
    elif not classes and len(wanted) == 2 and y.shape == wanted[:1] and y.dtype.kind in "iu":
        way = f"this loss takes {taken}: np.eye({wanted[1]})[y] of classes, or use --loss cross-entropy"
    elif hot == classes and hot:
        what, way = f"y is one-hot, of shape {given}", f"give class indices of shape {taken}: y.argmax(axis=1)"
    elif hot:
        what = f"y is one-hot of {hot} classes, the model has {classes}"
        way = f"give class indices, y.argmax(axis=1), and a head for them: --classes {hot}"
    elif classes and y.dtype.kind == "f" and y.size == math.prod(wanted) * classes:
        way = f"classes are integers of shape {taken}; for values: --loss mse (or bce for yes and no)"
    raise CompileError("E0305", name, what, way)


def class_indices(name: str, y: Array, classes: int, ignored: tuple[int, ...]) -> Array:
    """Return labels as int32 class indices; E0305 for others, with a word on what they may be meant for."""
    if y.dtype.kind in "USO":
        raise _words(name, y)
    if y.dtype.kind not in "iu":
        whole = y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.rint(y)).all()
        way = f"class indices are integers 0..{classes - 1}"
        way += ": y.astype('int32')" if whole else "; for values: --loss mse"
        if y.dtype.kind == "f" and np.isnan(y).any() and (y == np.rint(y))[~np.isnan(y)].all():
            known = "known = np.isfinite(y); x, y = x[known], y[known].astype('int32')"
            raise CompileError(
                "E0305", name, f"y has no label (NaN) for {np.isnan(y).sum()} of {y.size} samples", known
            )
        raise CompileError("E0305", name, f"y is {y.dtype}", way)
    wrong = ((y < 0) | (y >= classes)) & ~np.isin(y, ignored)
    if wrong.any():
        from_one = int(y.min()) == 1 and int(y.max()) == classes
        way = f"class indices are 0..{classes - 1}" + (", not from 1: subtract 1" if from_one else "")
        if not from_one and y.min() >= 0:
            way += f"; --classes {int(y.max()) + 1} gives the model more"
        if y.min() < 0:
            way += ": leave out samples without a label: x, y = x[y >= 0], y[y >= 0]"
        raise CompileError("E0305", name, f"y holds {y[wrong][0]} ({wrong.sum()} of {y.size} labels)", way)
    return np.ascontiguousarray(y.astype(np.int32))


def _words(where: str, y: Array) -> CompileError:
    """Return the error for labels that are text."""
    what = f"y holds {str(y.reshape(-1)[0])[:40]!r}, which is no number" if y.size else f"y is of type {y.dtype}"
    return CompileError(
        "E0305",
        where,
        what,
        "list names in the order of the model's classes, then y = [names.index(word) for word in y]",
    )


def label_values(name: str, y: Array) -> Array:
    """Return labels that are numbers, as float32; E0305 unless they are finite."""
    if y.dtype.kind in "USO":
        raise _words(name, y)
    if y.dtype.kind not in "fiub":
        raise CompileError("E0305", name, f"y is {y.dtype}", "this loss takes finite numbers")
    check_finite(name, "y", y, "E0305")
    return y.astype(np.float32)


def check_shares(where: str, y: Array) -> None:
    """Raise E0305 for labels outside of 0 to 1: binary cross entropy falls without end towards them."""
    if ((y >= 0) & (y <= 1)).all():
        return
    what = f"y goes from {y.min():g} to {y.max():g}, bce takes labels from 0 to 1"
    raise CompileError("E0305", where, what, way_to_shares(y))


def check_finite(where: str, name: str, array: Array, code: str = "E0105") -> None:
    """Raise an error for the first sample with NaN, infinity, or a number that would become infinity in float32."""
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))
    if not bad.any():
        return
    place = np.unravel_index(int(bad.argmax()), array.shape)
    value, sample = float(array[place]), f"sample {place[0]} of {name}" if array.ndim else name
    if not np.isfinite(value):
        what = f"{name} holds NaN or infinity: {value:g} in {sample}"
        raise CompileError(code, where, what, "leave such samples out, or mend what made them")
    what = f"{name} holds {value:.4g} in {sample}, more than float32 can hold (3.4e38)"
    raise CompileError(code, where, what, "scale the data as in training, or leave such samples out")


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of a sample's axes, but for those of size 1."""
    return tuple(dim for dim in shape[1:] if dim != 1)


def _one_hot(y: Array, wanted: tuple[int, ...]) -> int:
    """Return how many classes labels are one-hot of; 0 if they are not."""
    if y.ndim < 2 or y.size != math.prod(wanted) * y.shape[1] or y.dtype.kind not in "fiub":
        return 0
    return y.shape[1] if np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all() else 0


INT8_SPREAD = 40
"""Standard deviation of random int8 inputs, in units of the input's scale."""
SLOT_DTYPES = {"float32": "<f4", "int8": "i1", "int32": "<i4", "uint8": "u1"}
"""Of the type of an input slot, numpy's in the byte order of every target."""


def random_samples(train: TrainGraph, count: int, seed: int, model: ImportedModel | None = None) -> Samples:
    """Draw standard normal inputs; uniform classes, or standard normal targets (0 or 1 for binary cross entropy).

    model: says which inputs and labels are integers in the file. These get such, all of a byte or those about 0.
    """
    rng = np.random.default_rng(seed)
    known = {index: one.whole for index, one in enumerate(() if model is None else model.data)}
    inputs = enumerate(train.data)
    x = packed({value.name: _random_input(rng, train, value, count, known.get(index)) for index, value in inputs})
    shape = _many(count, train.of_one(train.label))
    classes = class_count(train)
    if classes:
        return Samples(x, rng.integers(0, classes, shape).astype(np.int32))
    if is_binary(train):
        return Samples(x, rng.integers(0, 2, shape).astype(np.float32))
    y = rng.standard_normal(shape).astype(np.float32)
    whole = model is not None and model.loss is not None and model.loss.whole
    if whole:
        return Samples(x, np.rint(2 * np.abs(y)))
    if any(node.op == "Log" and train.label in node.inputs for node in train.graph.nodes):
        raised = np.exp(y)  # labels are probabilities: the loss takes their logarithm, as a divergence does
        y = (raised / raised.sum(axis=-1, keepdims=True)).astype(np.float32)
    return Samples(x, y)


def _random_input(
    rng: np.random.Generator, train: TrainGraph, source: Value, count: int, whole: WholeNumbers | None
) -> Array:
    x = rng.standard_normal((count, *train.of_one(source)[1:])).astype(np.float32)
    rows = rows_of(train.graph, source)
    if rows:
        x = rng.integers(0, rows, x.shape).astype(np.int32)
    if whole is not None:
        x = rng.integers(max(whole.low, -128), min(whole.high, 255), x.shape, endpoint=True).astype(np.float32)
        return _stored(x, source)
    if train.integer and source.quant is not None:
        return _stored(x * np.float32(source.quant.scale[0] * INT8_SPREAD), source)
    return x


def index_count(graph: Graph) -> int:
    """Return how many numbers the elements of an integer input may be: rows of the smallest table.

    0 for another input.
    """
    return rows_of(graph, graph.inputs[0])


def rows_of(graph: Graph, source: Value) -> int:
    """Return how many rows the tables have that an input looks up; 0 if it is real numbers."""
    return rows_to_choose_from(graph, source) if source.dtype == "int32" else 0


def _many(count: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of `count` tensors in one array: in place of a batch axis of 1, or in front without one."""
    return (count, *shape[1:]) if shape[:1] == (1,) else (count, *shape)


def is_binary(train: TrainGraph) -> bool:
    """Tell whether labels are 0 or 1 for every output."""
    return any(has_trait(node.op, "binary_loss") for node in train.graph.nodes)


def class_count(train: TrainGraph) -> int:
    """Return the number of classes that labels index; 0 if labels are values."""
    return classes_of(train.graph.nodes, train.label.name)


def ignored_labels(train: TrainGraph) -> tuple[int, ...]:
    """Return the label that does not count, if the model's own loss has one."""
    found = (node.attrs.ignore_index for node in train.graph.nodes if isinstance(node.attrs, NllAttrs))
    return tuple(index for index in found if index is not None)


def load_samples(path: Path, model: ImportedModel, train: TrainGraph) -> Samples:
    """Return inputs (samples first, ONNX layout) and labels `y` of an .npz; CompileError E0105 or E0305.

    Without `y`, a network whose labels are values of its input's shape is to repeat its input.
    """
    keys, alone = input_keys(path, model), not labelled(path, model) and repeats_input(model, train)
    reads = has_labels(model) and not alone
    arrays = read_arrays(path, (*keys, *((label_key(model),) if reads else ())))
    x = dict(zip((one.name for one in model.data), arrays, strict=False))
    y = arrays[-1] if reads or alone else np.zeros((len(arrays[0]), *train.label.shape), np.float32)
    return samples_of(path.name, x, y, model, train)


def input_keys(path: Path, model: ImportedModel) -> tuple[str, ...]:
    """Return names in an .npz of the data inputs, which are the file's: the only one may be called `x` too."""
    names = tuple(one.name for one in model.data)
    return ("x",) if len(names) == 1 and names[0] not in names_in(path) else names


def label_key(model: ImportedModel) -> str:
    """Return the name of the labels in an .npz: `y`, unless a data input is called like that; then their own."""
    taken = any(one.name == "y" for one in model.data)
    return (model.loss.label if model.loss is not None else "labels") if taken else "y"


def samples_of(
    where: str, x: Array | Mapping[str, Array], y: Array, model: ImportedModel, train: TrainGraph
) -> Samples:
    """Return inputs and labels of arrays; `where` is what messages call them. x: of several inputs, by their names."""
    inputs = inputs_of(where, x, model, train)
    return Samples(inputs, labels_of(where, y, len(inputs), model, train))


def inputs_of(where: str, x: Array | Mapping[str, Array], model: ImportedModel, train: TrainGraph) -> Array:
    """Return inputs alone."""
    return stored_input(graph_inputs(where, x, model), train)


def stored_input(x: Array, train: TrainGraph) -> Array:
    """Convert real inputs to what the model takes: float32, or int8 by each input's scale and zero point.

    One division in float32, as `m_quantise_input` does it: in more digits some numbers halfway between two steps would
    go to the other one.
    """
    return packed({value.name: _stored(part, value) for value, part in zip(train.data, parts(x), strict=True)})


def _stored(x: Array, source: Value) -> Array:
    if source.dtype != "int8":
        return x
    assert source.quant is not None
    with np.errstate(over="ignore"):
        q = np.rint(x.astype(np.float32) / np.float32(source.quant.scale[0])) + source.quant.zero
    return np.clip(q, source.quant.low, source.quant.high).astype(np.int8)


def in_slots(interface: Interface, samples: Samples) -> Samples:
    """Convert samples to the types of the C calls."""
    return Samples(in_input_slot(interface, samples.x), in_label_type(interface, samples.y))


def in_label_type(interface: Interface, y: Array) -> Array:
    """Convert labels to the type of the C calls."""
    return np.ascontiguousarray(y, "<i4" if interface.label_ctype == "int32_t" else "<f4")


def in_input_slot(interface: Interface, x: Array) -> Array:
    """Convert inputs to the slot's type: a byte of a camera is BYTE_ZERO above what the graph reads."""
    if x.dtype.names is not None:
        return x  # each has its own type already
    kind = SLOT_DTYPES[interface.sample.dtype]
    return np.ascontiguousarray(x.astype(np.int16) + BYTE_ZERO if kind == "u1" else x, kind)


def labelled(path: Path, model: ImportedModel) -> bool:
    """Tell whether an .npz holds labels; False if it cannot be read (who reads the rest will say so)."""
    return has_labels(model) and label_key(model) in names_in(path)


def names_in(path: Path) -> tuple[str, ...]:
    """Return names of the arrays of an .npz; nothing if it cannot be read."""
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return ()


def raw_labels(path: Path, model: ImportedModel) -> Array | None:
    """Return labels of an .npz as they are, None if there are none; CompileError E0105."""
    return read_arrays(path, (label_key(model),))[0] if labelled(path, model) else None


def load_inputs(path: Path, model: ImportedModel) -> Array:
    """Return inputs of a calibration file, in the graph's layout; CompileError E0105."""
    arrays = read_arrays(path, input_keys(path, model))
    return graph_inputs(path.name, dict(zip((one.name for one in model.data), arrays, strict=True)), model)


def read_arrays(path: Path, names: tuple[str, ...]) -> list[Array]:
    """Read arrays of an .npz by name; CompileError E0105."""
    try:
        with open_file(path) as stream:
            start = stream.read(16)
            if not zipfile.is_zipfile(stream):
                raise CompileError("E0105", path.name, *way_to_npz(path.name, start, names))
            with zipfile.ZipFile(stream) as archive:
                there = tuple(name.removesuffix(".npy") for name in archive.namelist())
                missing = [name for name in names if name not in there]
                if missing:
                    raise CompileError(
                        "E0105", path.name, *missing_arrays(path.name if path.suffix else "", missing, names, there)
                    )
                return [_array(archive, name) for name in names]
    except CompileError:
        raise
    except Exception as problem:  # a damaged or hostile file breaks zipfile and numpy in many ways
        reason = getattr(problem, "strerror", None) or problem
        way = f"give an .npz with {' and '.join(names)}"
        if isinstance(problem, IsADirectoryError):
            way = f"load its files into arrays and write them: {savez(path.name, names)}"
        raise CompileError("E0105", path.name, f"cannot be read ({reason})", way) from problem


def graph_inputs(where: str, x: Array | Mapping[str, Array], model: ImportedModel) -> Array:
    """Return inputs of arrays of the file, in the graph's layout; CompileError E0105."""
    given = _by_name(where, x, model)
    shown = {name: "x" if len(given) == 1 else name for name in given}
    found: dict[str, Array] = {}
    for one, value in zip(model.data, model.graph.inputs, strict=True):
        found[value.name] = _graph_input(where, shown[one.name], given[one.name], one, model, value)
    sizes = {name: len(array) for name, array in found.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{len(array)} of {name}" for name, array in given.items())
        raise CompileError("E0105", where, f"has {counts}", "give as many samples of every input")
    return packed(found)


def _by_name(where: str, x: Array | Mapping[str, Array], model: ImportedModel) -> dict[str, Array]:
    """Return arrays by the names of the file's inputs; E0105 if one is missing."""
    names = [one.name for one in model.data]
    if not isinstance(x, Mapping):
        fields = parts(x)
        if len(fields) != len(names):
            what = f"one array, and the model has the inputs {', '.join(names)}"
            raise CompileError("E0105", where, what, "give an array for each, by its name")
        return dict(zip(names, fields, strict=True))
    if len(names) == 1 and "x" in x:
        x = {names[0]: x["x"], **x}
    missing = [name for name in names if name not in x]
    if missing:
        raise CompileError("E0105", where, *missing_arrays("", missing, names, tuple(map(str, x))))
    return {name: np.asarray(x[name]) for name in names}


def _graph_input(where: str, name: str, x: Array, one: DataInput, model: ImportedModel, source: Value) -> Array:
    axis = one.perm[0] if one.perm else 0  # of the samples: the second if time is the first
    given = (axis, *(i for i in range(len(one.shape)) if i != axis))
    wanted = tuple(one.shape[i] for i in given[1:])
    if x.dtype.kind not in "fiu":
        raise CompileError("E0105", where, f"{name} is of type {x.dtype}", way_to_numbers(name, x))
    if x.shape[1:] != wanted or not x.ndim:
        # How many there are is no fault: `finetune` splits a file before this looks at it.
        single = sorted(x.shape) == sorted(wanted)
        shown = x.shape if single or not x.ndim else shape_of_samples(x.shape)
        what = f"{name} is {x.dtype} of shape {shown}, the model takes {shape_of_samples((0, *wanted))}"
        raise CompileError("E0105", where, what, way_to_shape(name, x.shape, wanted))
    if len(x) == 0:
        raise CompileError("E0105", where, f"{name} has no samples: its shape is {x.shape}", "give at least one")
    check_finite(where, name, x)
    rows, whole = rows_of(model.graph, source), one.whole
    if rows and not (x.dtype.kind in "iu" and x.min() >= 0 and x.max() < rows):
        raise CompileError(
            "E0105", where, f"{name} has other numbers than 0 to {rows - 1}", "give indices of the table"
        )
    if whole is not None and not ((x == np.rint(x)).all() and x.min() >= whole.low and x.max() <= whole.high):
        what = f"{name} has other numbers than integers from {whole.low} to {whole.high}"
        raise CompileError("E0105", where, what, f"give what the {whole.kind} input of the model takes")
    dtype = np.int32 if rows else np.float32
    return np.ascontiguousarray(x.astype(dtype).transpose([given.index(i) for i in one.perm]))


def _array(archive: zipfile.ZipFile, name: str) -> Array:
    if archive.getinfo(f"{name}.npy").file_size > MOST_DATA_BYTES:
        raise ValueError(f"{name} is larger than {MOST_DATA_BYTES >> 20} MB")
    with archive.open(f"{name}.npy") as stream:
        try:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        except ValueError as problem:
            if "allow_pickle" not in str(problem):
                raise
            what = f"{name} holds Python objects, for example rows of different lengths"
            raise CompileError("E0105", Path(archive.filename or name).name, what, OBJECTS) from problem


def label_shape(count: int, model: ImportedModel, train: TrainGraph) -> tuple[int, ...]:
    """Return the shape of the labels of so many samples in a file."""
    own = class_count(train) or is_written(model)
    return _many(count, train.of_one(train.label) if own else model.output_shape)


def is_written(model: ImportedModel) -> bool:
    """Tell whether the model's own loss is nodes of the file: then labels have the shape that these read."""
    return model.loss is not None and model.loss.written is not None


def repeats_input(model: ImportedModel, train: TrainGraph) -> bool:
    """Tell whether samples without labels say what is to be learned: the input again."""
    same = model.output_shape == model.input_shape and not model.more
    return same and not class_count(train) and not is_written(model)


def has_labels(model: ImportedModel) -> bool:
    """Tell whether the loss reads labels at all: one of the file's own may compare a network with its input."""
    return model.loss is None or bool(model.loss.label)


def labels_of(where: str, y: Array, count: int, model: ImportedModel, train: TrainGraph) -> Array:
    """Return labels of so many samples alone."""
    classes = class_count(train)
    y = shaped_labels(where, y, label_shape(count, model, train), classes)
    if classes:
        return class_indices(where, y, classes, ignored_labels(train))
    if is_written(model):
        return label_values(where, y)
    y = label_values(where, y)
    if is_binary(train):
        check_shares(where, y)
    each = y.reshape(count, *model.output_shape)
    return np.ascontiguousarray(each.transpose(0, *(axis + 1 for axis in model.output_perm)))
