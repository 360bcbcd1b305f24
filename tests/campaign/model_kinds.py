"""Kinds of cases that are mutated model files."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import onnx
from onnx import TensorProto, numpy_helper

from tests.campaign.byte_mutants import byte_mutant, splice, wire_mutant
from tests.campaign.cases import Case, Kind
from tests.campaign.corpus import corpus, proto
from tests.campaign.field_mutants import NUMBERS, field_mutant, graft
from tests.campaign.judge import OUT

NET = "net.onnx"


def _case(data: bytes, options: tuple[str, ...], source: Random) -> Case:
    """Most mutants are planned only; some become C, and some of these are built and run."""
    Path(NET).write_bytes(data)
    depth = source.choices((("--dry-run",), ("--verify", "none"), ("--verify", "host")), (92, 5, 3))[0]
    update = source.choice(("auto", "all", "last:3", "last:1", "bias"))
    return Case((NET, "-o", OUT, "--update", update, *options, *depth))


def _bytes(source: Random, _folder: Path) -> Case:
    data, options = corpus()[source.choice(sorted(corpus()))]
    change = wire_mutant if source.randrange(3) else byte_mutant
    return _case(change(data, source), options, source)


def _splices(source: Random, _folder: Path) -> Case:
    one, other = source.sample(sorted(corpus()), 2)
    data, options = corpus()[one]
    if source.randrange(3):
        return _case(graft(proto(one), proto(other), source), options, source)
    return _case(splice(data, corpus()[other][0], source), options, source)


def _fields(source: Random, _folder: Path) -> Case:
    name = source.choice(sorted(corpus()))
    return _case(field_mutant(proto(name), source), corpus()[name][1], source)


LOCATIONS = (
    *("sub/weights.bin", "./weights.bin", "sub/../weights.bin"),
    *("", ".", "..", "sub", "../weights.bin", "/dev/zero", "/dev/stdin", "/etc/passwd", "nowhere", "\0", "a\0b"),
    *("net.onnx", "pipe", "link", "outside", "weights.bin/", "n" * 5000, "C:\\weights.bin", "ä\udc80"),
)
KEYS = ("offset", "length", "checksum", "location", "", "offset")
TEXTS = (*map(str, NUMBERS), "", "x", "1e3", "0x10", " 4", "4 ", "+4", "1_0", "\0", "9" * 5000, "٣")


def _external(source: Random, folder: Path) -> Case:
    """Weights in files beside the model: where, from which byte, how many; files that are none."""
    name = source.choice([name for name in sorted(corpus()) if proto(name).graph.initializer])
    model = onnx.ModelProto()
    model.CopyFrom(proto(name))
    _side_files(folder)
    moved = source.sample(list(model.graph.initializer), min(len(model.graph.initializer), source.choice((1, 2, 9))))
    content = b""
    wrong = source.randrange(len(moved)) if source.randrange(4) else -1
    for index, tensor in enumerate(moved):
        content += _move_out(tensor, len(content), source, right=index != wrong)
    for place in ("weights.bin", "sub/weights.bin"):
        cut = source.randrange(8) == 0
        (folder / place).write_bytes(content[: source.randrange(len(content) + 1)] if cut else content)
    return _case(model.SerializeToString(), corpus()[name][1], source)


def _side_files(folder: Path) -> None:
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("link")
    (folder / "outside").symlink_to("/etc/hostname")


def _move_out(tensor: TensorProto, offset: int, source: Random, right: bool) -> bytes:
    """Describe a weight as bytes of a file, rightly or not; returns these bytes."""
    data = numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    said = {"location": "weights.bin", "offset": str(offset), "length": str(len(data))}
    kind = 3 if right else source.randrange(3)
    if kind == 0:
        said["location"] = source.choice(LOCATIONS)
    elif kind == 1:
        said[source.choice(KEYS)] = source.choice(TEXTS)
    elif kind == 2:
        del said[source.choice(sorted(said))]
    for key, value in said.items():
        entry = tensor.external_data.add()
        try:
            entry.key, entry.value = key, value
        except UnicodeEncodeError:
            entry.key, entry.value = key, "weights.bin"
    return data


MODEL_KINDS = (
    Kind("models: bytes", 16_000, _bytes),
    Kind("models: splices", 8_000, _splices),
    Kind("models: fields", 22_000, _fields),
    Kind("models: external data", 4_000, _external),
)
