"""Faults planted in the C of streams: verification against a reference that knows nothing of streams finds each one.

Those in calls, rings, covers and sums are seen by the judge of streams before there is C (tests/plan/test_streams.py).
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from testing.planning.streams import random_streams
from tests.e2e import chain
from tests.e2e.test_error_streams import train_of
from tests.e2e.test_planted_faults import Change, failure, planted
from tests.e2e.test_streams import planned

PREFIX = "net_stream_"


@cache
def sound(seed: int, update: str) -> chain.Project:
    """A chain of layers in streams, two samples to an update: so sums over rows are added to running ones."""
    train = train_of(seed, update, batch=2)
    graph, _ = random_streams(train, seed)
    return chain.emitted(train, *planned(train, graph, "cortex-m7"), 8, fma=False)


def in_stream(op: str, pattern: str, new: str) -> Change:
    """The first match inside a function of a stream whose comment names this operator."""

    def change(text: str) -> str:
        for start in re.finditer(rf"/\* (?:[^*()]*\()?{op}\)?:.*?\*/\nvoid {PREFIX}\w+\(.*?\n}}\n", text, re.DOTALL):
            if "*/" not in start[0].split("*/\nvoid")[0] and re.search(pattern, start[0]):
                return text[: start.start()] + re.sub(pattern, new, start[0], count=1) + text[start.end() :]
        return text

    return change


def driver(pattern: str, new: str) -> Change:
    """The first match in the calls and functions of streams."""

    def change(text: str) -> str:
        start = text.index("(Stream): ")
        return text[:start] + re.sub(pattern, new, text[start:], count=1)

    return change


SUM = "QSumAdd"
FAULTS: dict[str, tuple[int, str, Change]] = {
    "a mask bit shifted, read": (
        1,
        "bias",
        in_stream("ErrorScale", r"\(channel \+ pixel \* 6\) & 7", "((channel + pixel * 6) ^ 1) & 7"),
    ),
    "a mask bit shifted, written": (
        1,
        "bias",
        in_stream("QClipMask", r"= (tt_passed8\(.*\));", r"= (uint8_t)(\1 << 1);"),
    ),
    "a mask of the row before": (1, "bias", driver(r"mask \+ row \* (\d+),", r"mask + (row ? row - 1 : 0) * \1,")),
    "a running sum forgotten": (1, "bias", in_stream(SUM, r"tt_add\(sum\[i\], rows\[i\]\)", "rows[i]")),
    "rows added twice": (1, "bias", in_stream(SUM, r", rows\[i\]\)", ", 2 * rows[i])")),
    "rows of taps in another order": (
        2,
        "all",
        in_stream(SUM, r"rows\[i / 5 \* 15 \+ channel \* 5 \+ i % 5\]", "rows[channel * 25 + i]"),
    ),
    "a sum that is not applied": (1, "bias", driver(r"( {8}net_stream_\w+_apply)\(sum", r"if (0) \1(sum")),
    "a window one row late": (2, "all", driver(r"row \* 1 - 1, ", "row * 1, ")),
    "two rows in the wrong order": (2, "all", driver(r"\{\{0, 1\}, \{1, 1\},", "{{1, 1}, {0, 1},")),
}


@pytest.mark.parametrize(("seed", "update"), [(1, "bias"), (2, "all")])
def test_the_sound_project_passes(seed: int, update: str) -> None:
    assert chain.check(sound(seed, update), mode="host").result == "pass"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    seed, update, change = FAULTS[name]
    failure(planted(sound(seed, update), "net_kernels.c", change))
