"""A user's own samples for trying training: to train on, to judge by, and of what the network knew before."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.data.array_advice import missing_arrays
from tinytrain_compile.data.samples import check_finite, class_count, is_binary, read_arrays, samples_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import open_file
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array

TEST_SHARE = 0.2
"""Of the samples, that nothing is chosen by, where the file has no x_test."""
COMPARED = 256
"""Samples of an array whose scale is looked at."""
FEWEST = 10
"""Samples below which there is nothing to train on and judge by."""
_NAMES = ("x", "y", "x_test", "y_test", "x_old", "y_old", "domain")
_HINT = "give an .npz with x and y; x_test with y_test and x_old with y_old are optional"


@dataclass(frozen=True, eq=False)
class OwnData:
    """As a compilation's calls take them.

    own: to train on and to choose by; test: to judge by at the end. old: of what the network knew before, None without.
    copies: the network learns to repeat its input. faults: then, which test samples are faults; None: not known.
    notes: what was made of the file.
    """

    own: Samples
    test: Samples
    old: Samples | None
    copies: bool
    faults: Array | None
    notes: tuple[str, ...]


def read_own_data(path: Path, seed: int) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Read arrays of an .npz: x and, if they are there, y, x_test, y_test, x_old, y_old, and domain (of those of x).

    Also returns what was made of it: without x_test, a part of x and y, drawn by the seed. CompileError E0105, one
    line.
    """
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile):
        names = ["x", "y"]  # whose reading says what is wrong
    there = [name for name in _NAMES if name in names]
    if "x" not in there:
        raise CompileError("E0105", path.name, *missing_arrays(path.name, ("x",), ("x", "y"), names))
    found, notes = dict(zip(there, read_arrays(path, tuple(there)), strict=True)), ()
    for name, array in found.items():  # before they are split: messages shall count as the file does
        check_finite(path.name, name, array)
    for part in ("_test", "_old"):
        missing = [name for name in (f"x{part}", f"y{part}") if name not in found]
        if len(missing) == 1 and ("y" in found or missing[0][0] == "x"):
            there_is = f"y{part}" if missing[0][0] == "x" else f"x{part}"
            raise CompileError("E0105", path.name, f"has {there_is} and no {missing[0]}", _HINT)
    sizes = {name: len(array) if array.ndim else 0 for name, array in found.items()}
    for name, other in (("y", "x"), ("y_test", "x_test"), ("y_old", "x_old"), ("domain", "x")):
        if name in found and sizes[name] != sizes[other]:
            what = f"{name} has {sizes[name]} labels, {other} has {sizes[other]} samples"
            raise CompileError("E0105", path.name, what, "give a label for every sample")
    _check_scales(path.name, found)
    count = sizes["x"]
    if count < FEWEST:
        what = f"{count} samples are too few to train on some and judge by others"
        raise CompileError("E0105", path.name, what, f"give at least {FEWEST}")
    if "x_test" not in found:
        labels = found["y"] if "y" in found and found["y"].dtype.kind in "iu" else None
        rest, kept = split(labels, count, TEST_SHARE, seed)
        notes = (f"there is no x_test: {len(kept)} of {count} samples are kept to judge by, drawn by --seed",)
        for name in [name for name in ("x", "y", "domain") if name in found]:
            found[f"{name}_test"], found[name] = found[name][kept], found[name][rest]
    return found, notes


def own_data(where: str, found: Mapping[str, Array], model: ImportedModel, train: TrainGraph) -> OwnData:
    """Return the arrays as a model's calls take them; `where` is what messages call the file. CompileError E0105."""
    arrays, notes, faults = dict(found), tuple[str, ...](), None
    copies = "y" not in arrays
    if copies:
        if model.output_shape != model.input_shape:
            raise CompileError("E0105", where, "has no y", _HINT)
        if class_count(train):
            way = "add y, or --loss mse for a network that is to repeat its input"
            raise CompileError("E0105", where, "has no y, and the loss takes classes", way)
        notes = ("there is no y: the network learns to repeat its input",)
        faults = _faults(where, arrays)
        arrays |= {f"y{part}": arrays[f"x{part}"] for part in ("", "_test", "_old") if f"x{part}" in arrays}
    pairs = {
        part: samples_of(f"{where}, x{part}", arrays[f"x{part}"], arrays[f"y{part}"], model, train)
        for part in ("", "_test", "_old")
        if f"x{part}" in arrays
    }
    check_classes(where, [one.y for one in pairs.values()], train)
    return OwnData(pairs[""], pairs["_test"], pairs.get("_old"), copies, faults, notes)


def check_classes(where: str, labels: Sequence[Array], train: TrainGraph) -> None:
    """Raise E0305 if all labels are the same class: a training learns to say always that."""
    found = {label for each in labels for label in np.unique(each).tolist()}
    if len(found) == 1 and (class_count(train) or is_binary(train)):
        way = "give samples of every class that the device is to tell apart"
        raise CompileError("E0305", where, f"all labels are {found.pop():g}", way)


def _check_scales(where: str, found: Mapping[str, Array]) -> None:
    """Raise E0105 if some of the inputs are pixels from 0 to 255 and others are divided already."""
    inputs = {name: array[:COMPARED] for name, array in found.items() if name[0] == "x" and array.dtype.kind in "fiu"}
    pixels, divided = list[str](), list[str]()
    for name, some in inputs.items():
        low, high, whole = some.min(initial=0), some.max(initial=0), (some == np.rint(some)).all()
        if whole and low >= 0 and 20 < high <= 255:
            pixels.append(name)
        elif not whole and low >= -1 and high <= 1:
            divided.append(name)
    if pixels and divided:
        what = f"{pixels[0]} holds pixels from 0 to 255, {divided[0]} numbers up to 1"
        raise CompileError("E0105", where, what, "scale both as in training")


def split(labels: Array | None, count: int, share: float, seed: int) -> tuple[Array, Array]:
    """Return indices of (the rest, a share of the samples).

    The share has equal parts of every class if each sample has one label, and of a class of three at least one.
    """
    order = np.random.default_rng((seed, 7)).permutation(count)
    if labels is None or labels.size != count:
        kept = order[: max(1, round(share * count))]
    else:
        of_class = labels.reshape(-1)[order]
        each = [order[of_class == label] for label in np.unique(of_class)]
        kept = np.concatenate([some[: max(round(share * len(some)), int(len(some) > 2))] for some in each])
        kept = kept if len(kept) else order[:1]
    return np.setdiff1d(order, kept), np.sort(kept)


def old_parts(count: int, replayed: int) -> tuple[Array, Array]:
    """Return indices of old samples: (kept and replayed, at most so many; those that tell what was forgotten).

    They are never the same, and always these for the same file.
    """
    order = np.random.default_rng(11).permutation(count)
    half = count // 2
    return order[:half][:replayed], order[half:]


def _faults(where: str, found: Mapping[str, Array]) -> Array | None:
    """Return labels of test samples of an autoencoder: 0 for what it should repeat, 1 for what it should not."""
    if "y_test" not in found:
        return None
    labels = found["y_test"].reshape(-1)
    if len(labels) != len(found["x_test"]) or not np.isin(labels, (0, 1)).all():
        what = "y_test of a network that repeats its input is not one 0 or 1 for each sample"
        raise CompileError("E0105", where, what, "1 says that a sample is a fault")
    return labels.astype(bool) if 0 < labels.sum() < len(labels) else None
