"""Charts with axes, ticks and a grid: numbers only, in per cent of the plot, so that a page can give it any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STEPS = (1, 2, 5, 10)
"""Digits with which the distance of two ticks may begin."""
MOST_TICKS = 6
"""Of an axis, about: more are hard to read at the height of a chart."""
MOST_DOTS = 40
"""Points of a curve above which they have no dots of their own."""


@dataclass(frozen=True)
class Tick:
    """A mark of an axis. at: per cent from its left or lower end."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A point of a curve. x, y: per cent from the left and from the top. text: shown if someone points at it."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Curve:
    """A curve. points: for a polyline in a box of 1000 x 1000. first, last: its ends in words."""

    name: str
    points: str
    dots: tuple[Dot, ...]
    first: str
    last: str


@dataclass(frozen=True)
class Chart:
    """A chart. levels: horizontal lines with captions; across, up: names of the axes."""

    title: str
    across: str
    up: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    levels: tuple[Tick, ...]


@dataclass(frozen=True)
class Axis:
    """A direction of a chart. unit: ticks are round multiples of it. text: a tick in words; exact: any number."""

    name: str
    text: Callable[[float], str]
    unit: float = 1.0
    whole: bool = False
    """Whether only multiples of the unit exist, such as epochs."""
    exact: Callable[[float], str] | None = None


def chart(
    title: str,
    axes: tuple[Axis, Axis],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float] | None = None,
    marks: Mapping[tuple[float, float], str] | None = None,
    from_zero: bool = False,
) -> Chart:
    """Draw curves of (x, y); a y that is not finite is drawn at the upper edge.

    levels: caption -> y. marks: the points with a dot, and its text; None: all points of a short curve have one.
    from_zero: both axes begin at 0.
    """
    every, lines = [point for points in curves.values() for point in points], dict(levels or {})
    ys = [y for y in (*(y for _, y in every), *lines.values()) if math.isfinite(y)] or [0.0]
    (across, up), zero = axes, [0.0] if from_zero else []
    xs = ticks(min([x for x, _ in every] + zero), max(x for x, _ in every), across)
    heights = ticks(min(ys + zero), max(ys), up)

    def share(value: float, scale: Sequence[float]) -> float:
        low, high = scale[0], scale[-1]
        return round(100 * (min(value, high) - low) / (high - low), 3)

    exact = up.exact or up.text

    def curve(name: str, points: Sequence[tuple[float, float]]) -> Curve:
        said = {(x, y): f"{name}, {across.name} {across.text(x)}: {exact(y)}" for x, y in points}
        shown = marks if marks is not None else said if len(points) <= MOST_DOTS else {}
        places = {point: (share(point[0], xs), round(100 - share(point[1], heights), 3)) for point in points}
        path = " ".join(f"{10 * places[point][0]:.1f},{10 * places[point][1]:.1f}" for point in points)
        dots = tuple(Dot(*places[point], text) for point, text in shown.items() if point in places)
        return Curve(name, path, dots, exact(points[0][1]), exact(points[-1][1]))

    return Chart(
        title,
        across.name,
        up.name,
        tuple(Tick(share(x, xs), across.text(x)) for x in xs),
        tuple(Tick(share(y, heights), up.text(y)) for y in heights),
        tuple(curve(name, points) for name, points in curves.items()),
        tuple(Tick(share(y, heights), text) for text, y in lines.items() if math.isfinite(y)),
    )


def ticks(low: float, high: float, axis: Axis) -> list[float]:
    """Return at least two round numbers, evenly spaced; the first is at most `low`, the last at least `high`."""
    low, high = low / axis.unit, high / axis.unit
    reach = (high - low) or abs(high) or 1.0
    rough = reach / (MOST_TICKS - 1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * scale for digit in STEPS if digit * scale >= rough * (1 - 1e-9))
    step = max(step, 1.0) if axis.whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [index * step * axis.unit for index in range(first, last + 1)]
