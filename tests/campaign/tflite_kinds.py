"""Kinds of cases that are mutated .tflite files."""

from __future__ import annotations

import struct
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from testing.networks.tflite_file import KINDS, TfliteWriter
from tests.campaign.byte_mutants import byte_mutant, splice
from tests.campaign.cases import Case, Kind
from tests.campaign.judge import OUT
from tests.frontend import tflite_nets as nets
from tinytrain_compile.frontend.tflite.reader import held_bytes

NET = "net.tflite"
_SMALL = frozenset(("KeepNumDims", "KeepDims", "AlignCorners", "HalfPixelCenters"))
"""Options that are truth values."""
NUMBERS = (0, 1, 2, 4, 8, 127, 128, 255)
_WORDS = (0, 1, -1, -2, 2, 5, 127, 128, 1 << 15, 1 << 24, 1 << 28, (1 << 31) - 1, -(1 << 31))
_RECIPES = ("conv relu6", "conv in groups", "depthwise multiplier", "dense keeps axes", "transpose and views", "padv2")
_RECIPES += (
    "slices",
    "concatenation and split",
    "mul channels",
    "mean of channels",
    "prelu",
    "pack",
    "softmax",
    "spotter",
)
_RECIPES += ("transpose conv", "resize bilinear", "average pool same")


@cache
def writers() -> dict[str, TfliteWriter]:
    """Sound files: most operators in int8 or float32, unsigned ends, rings."""
    recipes = {**nets.EXACT, **nets.NEAR}
    made: dict[str, TfliteWriter] = {}
    for index, name in enumerate(_RECIPES):
        ranges = nets.measured(recipes[name], nets.SHAPES[name]) if index % 3 else None
        made[name] = nets.writer(recipes[name], ranges, "uint8" if index % 3 == 2 else "int8")
    made["rings"] = nets.writer(nets.streaming, nets.measured(nets.streaming, (1, 2, 6)))
    made["float rings"] = nets.writer(nets.streaming)
    return made


@cache
def corpus() -> dict[str, bytes]:
    return {name: file.data() for name, file in writers().items()}


@cache
def _tables(name: str) -> tuple[int, ...]:
    """Places of bytes that are no numbers of weights: offsets, lengths, fields, names."""
    free = np.ones(len(corpus()[name]), bool)
    for start, size in held_bytes(corpus()[name]):
        if size > 64:
            free[start : start + size] = False
    return tuple(np.flatnonzero(free).tolist())


def _fields(name: str, source: Random) -> bytes:
    """Numbers of tables changed: a byte, or four that lie as one number does."""
    data, places = bytearray(corpus()[name]), _tables(name)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        place = source.choice(places)
        if source.randrange(2):
            data[place] = source.choice((*NUMBERS, source.randrange(256), data[place] ^ 1 << source.randrange(8)))
        else:
            place = min(place // 4 * 4, len(data) - 4)
            number = source.choice(
                (*_WORDS, source.randrange(64), int.from_bytes(data[place : place + 4], "little") + 4)
            )
            data[place : place + 4] = (number & (1 << 32) - 1).to_bytes(4, "little")
    return bytes(data)


def _tensor(file: TfliteWriter, source: Random) -> None:
    """Another shape, type, scale, zero point, axis or buffer of a tensor."""
    tensors = source.choice(file.graphs).tensors
    place = source.randrange(len(tensors))
    name, shape, kind, scale, zero, axis, buffer = tensors[place]
    which, shape = source.randrange(8), list(shape)
    if which < 2 and shape:
        shape[source.randrange(len(shape))] = source.choice((*_WORDS, *range(8)))
    elif which == 2:
        shape = source.choice(([], [1], shape[1:], [*shape, 1], shape[::-1], [1, *shape], [2] * 9))
    elif which == 3:
        kind = source.choice((*KINDS, "resource"))
    elif which == 4:
        scale = source.choice((None, 0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 0.5, [0.1, 0.2], [0.1] * 4))
    elif which == 5:
        zero = source.choice((-129, 128, 5, -128, 255, 1 << 40, -(1 << 62)))
    elif which == 6:
        axis = source.choice((-1, 1, 2, 3, 9, 1 << 30))
    else:
        buffer = source.randrange(file.count_of_buffers() + 1)
    tensors[place] = (source.choice((name, name, name, "", "x")), shape, kind, scale, zero, axis, buffer)


def _operator(file: TfliteWriter, source: Random) -> None:
    """Another operator, other operands or results, other options."""
    graph = source.choice(file.graphs)
    if not graph.operators:
        return
    place, count = source.randrange(len(graph.operators)), len(graph.tensors)
    code, inputs, outputs, kind, options = graph.operators[place]
    which, inputs, outputs, options = source.randrange(9), [*inputs], [*outputs], dict(options)
    some = (*range(count), -1, count)
    if which == 0:
        code = source.randrange(len(graph.operators) + 1)
    elif which == 1 and inputs:
        inputs[source.randrange(len(inputs))] = source.choice(some)
    elif which == 2:
        inputs = source.choice((inputs[:-1], inputs[::-1], [*inputs, source.choice(some)], []))
    elif which == 3 and outputs:
        outputs[source.randrange(len(outputs))] = source.choice(some)
    elif which == 4:
        outputs = source.choice((outputs[:-1], [*outputs, source.choice(some)], outputs * 2))
    elif which == 5:
        del graph.operators[place]
        return
    elif which == 6:
        other = source.choice(graph.operators)
        kind, options = other[3], dict(other[4])
    elif options:
        key = source.choice(sorted(options))
        if not isinstance(options[key], str):
            options[key] = source.choice(_WORDS if isinstance(options[key], int) else (0.0, 1e30, float("nan"), -1.0))
            options[key] = options[key] & 1 if key in _SMALL else options[key]
    graph.operators[place] = (code, inputs, outputs, kind, options)


def _ends(file: TfliteWriter, source: Random) -> None:
    """Other inputs or outputs of a graph."""
    graph = source.choice(file.graphs)
    ends = source.choice((graph.inputs, graph.outputs))
    change = source.choice((ends.clear, lambda: ends.append(source.randrange(len(graph.tensors) + 1)), ends.reverse))
    change()


def _anew(name: str, source: Random) -> bytes:
    """A file that is sound as a file, and whose tables say something else."""
    file = deepcopy(writers()[name])
    for _ in range(source.choice((1, 1, 2, 3))):
        source.choice((_tensor, _tensor, _operator, _operator, _operator, _ends, _buffer))(file, source)
    try:
        return file.data()
    except (TypeError, ValueError, OverflowError, struct.error):  # what no file can say
        return _fields(name, source)


def _buffer(file: TfliteWriter, source: Random) -> None:
    file.change_buffer(
        source.randrange(file.count_of_buffers()), lambda data: byte_mutant(data, source) if data else b""
    )


def _tflite(source: Random, _folder: Path) -> Case:
    name = source.choice(sorted(corpus()))
    kind = source.randrange(8)
    if kind == 0:
        data = byte_mutant(corpus()[name], source)
    elif kind == 1:
        data = splice(corpus()[name], corpus()[source.choice(sorted(corpus()))], source)
    elif kind == 2:
        data = _fields(name, source)
    else:
        data = _anew(name, source)
    if source.randrange(16) == 0:
        data = data[: source.randrange(len(data))]
    Path(NET).write_bytes(data)
    depth = source.choices((("--dry-run",), ("--verify", "none"), ("--verify", "host")), (90, 4, 6))[0]
    options = ("--update", source.choice(("auto", "all", "last:1")), "--loss", "mse")
    return Case((NET, "-o", OUT, *options, *depth))


TFLITE_KINDS = (Kind("models: tflite", 5_000, _tflite, least_passed=0.1),)
