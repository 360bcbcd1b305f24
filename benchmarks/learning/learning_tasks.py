"""Tasks of the benchmark `learning`: digits that look different, new classes, a new head, a new speaker."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.choice import NETS, PARTS, digits_of, make_task, seen
from benchmarks.learning.convergence import make_model
from benchmarks.learning.digit_domains import Split
from testing.places import ROOT
from tinytrain_compile.ir.types import Array

sys.path.insert(0, str(ROOT / "examples" / "keywords"))
SPEAKERS: Any = importlib.import_module("speakers")
"""Of examples/keywords, a folder that is no package; so are the next."""
VOICES: Any = importlib.import_module("make_data")
MODEL: Path = SPEAKERS.HERE / "keywords.onnx"


@dataclass(frozen=True)
class Recipe:
    """How a family of tasks is trained. rates: those that development seeds choose from; clip: largest norm or None."""

    batch: int
    clip: float | None
    passes: int
    rates: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Domain:
    """A device in its new place.

    model: the file's bytes; typical: inputs (N, ...) for the ranges of int8; own: what it trains on; pool: what it may
    keep of what it knew (None: labels mean something else now); new, old: what it is judged by.
    """

    model: bytes
    typical: Array
    own: Split
    new: Split
    pool: Split | None
    old: Split | None


@dataclass(frozen=True)
class Family:
    """A task and its seeds. make(seed, development): what a device of this seed meets.

    development: the first seed of those that choose rates; first: of those that are reported.
    """

    recipe: Recipe
    make: Callable[[int, bool], Domain]
    development: int
    first: int


DIGITS = Recipe(batch=8, clip=1.0, passes=12, rates=(0.1, 0.3, 1.0, 3.0, 10.0))
KEYWORDS = Recipe(batch=1, clip=None, passes=12, rates=(0.001, 0.003, 0.01, 0.03))


def digits(name: str, seed: int, development: bool) -> Domain:
    """A task of choice.py, judged by the samples that choose (development) or by the others.

    "classes": trained on five new digits alone, so that the five known ones can be forgotten.
    """
    task, (images, labels) = make_task("7", name, seed), digits_of(seed)
    judged = PARTS[1] if development else PARTS[2]
    new = task.check if development else task.test
    upright = Split(seen("", images[:700], 5 + seed), labels[:700])
    old = Split(seen("", images[judged], 6 + seed), labels[judged])
    own, typical = task.own, np.concatenate([upright.x[:200], task.own.x[:64]])
    if name == "classes":
        own, new = (_where(split, split.y[:, 0] >= 5) for split in (own, new))
        upright, old = (_where(split, split.y[:, 0] < 5) for split in (upright, old))
    model = make_model(dict(task.start), 1, NETS["7"]).SerializeToString()
    known = name != "head"
    return Domain(model, typical, own, new, upright if known else None, old if known else None)


def keywords(speaker: int, development: bool) -> Domain:
    """A new speaker of examples/keywords, one of eight that choose or of eight that judge."""
    return spoken(SPEAKERS.parts_of((VOICES.DEVELOPMENT if development else VOICES.REPORT)[speaker]))


def spoken(parts: Any) -> Domain:
    """Of the parts that belong to a speaker."""
    splits = [Split(part.real, part.y) for part in (parts.own, parts.test, parts.pool, parts.old)]
    return Domain(MODEL.read_bytes(), parts.pool.real, *splits)


def _where(split: Split, chosen: Array) -> Split:
    return Split(split.x[chosen], split.y[chosen])


def _digits_task(name: str) -> Family:
    return Family(DIGITS, partial(digits, name), 100, 400)


FAMILIES = {
    **{name: _digits_task(name) for name in ("turned", "contrast", "classes", "head")},
    "keywords": Family(KEYWORDS, keywords, 0, 0),
}
"""By task."""
