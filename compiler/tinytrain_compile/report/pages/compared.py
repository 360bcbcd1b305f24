"""Live bytes of a step map by map and row by row, on one scale: why an arena is as large as it is, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import Analysis
from tinytrain_compile.report.layout import bytes_text
from tinytrain_compile.report.pages.picture import name_of, staircase


@dataclass(frozen=True)
class Panel:
    """Live bytes of one plan: an outline as SVG path data, `steps` wide. streams: steps that are one.

    peak: the first step with the most live bytes.
    """

    title: str
    caption: str
    path: str
    steps: int
    peak: int
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Compared:
    """The plan without streams and the plan. height: live bytes at the top of both panels."""

    height: int
    panels: tuple[Panel, Panel]


def compared(analysis: Analysis) -> Compared | None:
    """Return both panels; None if nothing is computed row by row."""
    plan = analysis.plan
    if plan.streams is None or not plan.streams.load_without:
        return None
    names, before = zip(*plan.streams.load_without, strict=True)
    height = max(*before, *analysis.load, 1)
    streams = tuple(step for step, node in enumerate(plan.order) if isinstance(node.attrs, StreamAttrs))
    after = [node.name for node in plan.order]
    return Compared(
        height,
        (
            _panel("map by map", names, before, height, ()),
            _panel("row by row", after, analysis.load, height, streams),
        ),
    )


def _panel(title: str, names: Sequence[str], load: Sequence[int], height: int, streams: tuple[int, ...]) -> Panel:
    most = max(load)
    peak = load.index(most)
    caption = f"{bytes_text(most)} at step {peak} of {len(load)}, {name_of(names[peak], 60)}"
    return Panel(title, caption, staircase([0] * len(load), list(load), height), len(load), peak, streams)
