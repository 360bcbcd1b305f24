"""Initializers of the file that no build trains, with the reasons: in the terminal, in report.json and report.html."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.summary import Fate, Summary
from tinytrain_compile.report.layout import Row, listing
from tinytrain_compile.report.words import grouped, plural, printable

_OF_NODES = ("running statistics", "a setting", "the compiler keeps it as numbers")
"""Beginnings of reasons that go on with a node's name: one line of the report is for all nodes."""


def fate_json(fate: Fate) -> dict[str, Any]:
    """One entry of `parameters` in report.json; trained: whether training may change it, of any build."""
    entry = asdict(fate)
    return {"name": entry.pop("name"), "trained": fate.kind != "other", "class": entry.pop("kind"), **entry}


def left_out(summary: Summary) -> int:
    """Return how many numbers are not trained for another reason than --update."""
    return sum(fate.elements for fate in summary.fates if fate.kind == "other")


def untrained_texts(summary: Summary) -> Iterator[tuple[str, list[str]]]:
    """For each reason, a sentence and the tensors with their sizes; the largest share first."""
    groups: dict[str, list[Fate]] = {}
    for fate in summary.fates:
        if fate.kind == "other":
            groups.setdefault(_reason(fate.why), []).append(fate)
    for reason, fates in sorted(groups.items(), key=lambda group: -sum(fate.elements for fate in group[1])):
        head = f"{plural(sum(fate.elements for fate in fates), 'number')} ({printable(reason)}):"
        yield head, [f"{printable(fate.name)} {grouped(fate.elements)}" for fate in fates]


def untrained_rows(summary: Summary, width: int) -> Iterator[Row]:
    """One row for each reason; report.json has all names."""
    for index, (head, names) in enumerate(untrained_texts(summary)):
        yield listing("untrained" if index == 0 else "", names, width, most=2, head=head)


def _reason(why: str) -> str:
    """The reason without the node that it is about."""
    return next((start for start in _OF_NODES if why.startswith(f"{start} of ")), why)
