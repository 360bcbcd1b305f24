"""Options of `finetune` and `contribution` that a compilation does not have, each declared once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.learning import MOST_WARM_UP, RateSchedule
from tinytrain_compile.ir.runtime_parts import MAX_SAMPLES
from tinytrain_compile.options.option import declared, parse_norm

StreamOption = Literal["off", "sorted", "as-recorded"]
ORDERS: tuple[StreamOption, ...] = get_args(StreamOption)
MOST = 1_000_000
"""Largest count that these options accept: more is a typing error, since nobody would wait for it."""

_common = partial(declared, "common")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _counts(text: str, where: str, low: int, high: int, example: str) -> list[int]:
    """Parse up to eight whole numbers behind commas; CompileError E0101 for anything else."""
    parts = _parts(text)
    if not all(part.isascii() and part.isdigit() and low <= int(part) <= high for part in parts) or len(parts) > 8:
        what = f"{text!r} is not up to eight whole numbers from {low} to {high}"
        raise CompileError("E0101", where, what, f"for example {where} {example}")
    return [*map(int, parts)]


def parse_batches(text: str, where: str) -> tuple[int, ...]:
    """Parse "1,8" into numbers, each once."""
    return tuple(dict.fromkeys(_counts(text, where, 1, 1 << 20, "1,8")))


# What is equal goes to the first of the following three, so the plain way comes first.
def parse_clips(text: str, where: str) -> tuple[float, ...]:
    """Parse "0,1" into norms, each once."""
    try:
        return tuple(sorted({0.0 if part in ("0", "0.0") else parse_norm(part, where) for part in _parts(text)}))
    except CompileError as problem:
        raise CompileError("E0101", where, problem.what, f"0 means no clipping: {where} 0,1") from problem


def parse_warm_ups(text: str, where: str) -> tuple[float, ...]:
    """Parse "0,0.1" into shares, each once."""
    found = [float(p) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", p, re.ASCII) else -1.0 for p in _parts(text)]
    if not all(0 <= share <= MOST_WARM_UP for share in found):
        what = f"{text!r} is not shares of all updates, from 0 to {MOST_WARM_UP}"
        raise CompileError("E0101", where, what, f"for example {where} 0,0.1")
    return tuple(sorted(set(found)))


def parse_averages(text: str, where: str) -> tuple[int, ...]:
    """Parse "0,4" into numbers of states, each once."""
    return tuple(sorted(set(_counts(text, where, 0, MAX_SAMPLES, "0,4"))))


@dataclass(frozen=True)
class FinetuneEffort:
    """seeds: that what is recommended was judged by. batches: none for that of the options. clips: 0 for no clipping,
    if the options do not say a norm. jobs: processes, -1 for all cores."""

    epochs: int = _common(30, "Maximum epochs per training run.", limits=(1, MOST))
    seeds: int = _common(3, "Runs to average, in the last round and for the result.", limits=(1, 1000))
    batches: tuple[int, ...] = _common(
        (), "Batch sizes to compare. [default: only --batch]", metavar="N,N..", read=parse_batches
    )
    clips: tuple[float, ...] = _common(
        (0.0, 1.0),
        "Clipping norms to compare; 0 means no clipping. No effect if you give --clip-norm.",
        metavar="X,X..",
        read=parse_clips,
        shown="0,1",
    )
    per_layer: bool = _common(False, "Also try each clipping norm with --clip-per layer.")
    warm_ups: tuple[float, ...] = _common(
        (0.0,),
        "Warm-ups to compare, as shares of all updates (up to 0.5); 0 means no warm-up. Only for --schedule cosine.",
        metavar="X,X..",
        read=parse_warm_ups,
        shown="0",
    )
    averages: tuple[int, ...] = _common(
        (0,),
        "Averages to compare: number of epochs whose final weights are averaged (--runtime average); 0 means none.",
        metavar="N,N..",
        read=parse_averages,
        shown="0",
    )
    replay: int = _common(
        100,
        "Largest number of old samples (x_old) that the device may keep for replay; 20 are tried first.",
        limits=(0, MOST),
    )
    schedule: RateSchedule = _common(
        "cosine",
        "Learning rate of a run: falls to 0 along a cosine, or constant, for a device that never stops learning.",
    )
    order: StreamOption = _common(
        "off",
        "Also measure one pass in an order that a device may meet, by class or as in the file. It is compared with a "
        "shuffled one, and with 60 samples kept for replay.",
    )
    jobs: int = -1


@dataclass(frozen=True)
class ContributionEffort:
    """updates: of each run; orders: orders of samples that a gain is the mean of; groups: of the channels of each axis
    of a weight, each measured for itself. jobs: processes, -1 for all cores."""

    updates: int = _common(100, "Updates per run.", limits=(1, MOST))
    orders: int = _common(2, "Runs to average for each gain, each with another order of the samples.", limits=(1, MOST))
    groups: int = _common(
        1,
        "Groups of neighbouring channels to measure separately, on each axis of a weight that has so many; 1 measures "
        "whole weights.",
        limits=(1, MOST),
    )
    jobs: int = -1
