"""The curve of --pareto in report.html: gain over the arena."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.report.layout import grouped
from tinytrain_compile.report.pages.chart import Axis, Chart, chart
from tinytrain_compile.report.pages.picture import axis_text

KB = 1024


def pareto_chart(points: Sequence[ParetoPoint]) -> Chart:
    """Draw gains as steps, both axes from 0: a larger arena than a point's gives what that gives until the next."""
    largest = max(point.limit_bytes for point in points)
    across = Axis("--arena", lambda size: axis_text(round(size)), KB if largest >= 4 * KB else 1, whole=True)
    up = Axis("gain", lambda gain: f"{gain:.4g}")
    curves = {"gain": _steps([(point.limit_bytes, point.gain) for point in points])}
    if any(point.gain < point.best_gain for point in points):
        curves["upper bound"] = _steps([(point.limit_bytes, point.best_gain) for point in points])
    marks = {(float(point.limit_bytes), point.gain): _mark(point) for point in points}
    title = "Gain over --arena: the table below has the figures"
    return chart(title, (across, up), curves, marks=marks, from_zero=True)


def _mark(point: ParetoPoint) -> str:
    return f"--arena {point.limit_bytes}: gain {point.gain:.1f}, {grouped(point.parameters)} parameters"


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a staircase: level until the next point."""
    corners = [points[0]]
    for (_, before), (x, y) in pairwise(points):
        corners += [(x, before), (x, y)] if y != before else [(x, y)]
    return corners
