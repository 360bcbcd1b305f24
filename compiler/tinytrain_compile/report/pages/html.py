"""report.html: one page that needs nothing else (no network, no script needed to read it), with the memory picture.

All names in it are untrusted: jinja2 escapes them, `printable` takes out control characters, and a content security
policy that names the hashes of our own style and script keeps anything else from running.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, analyse, work_of
from tinytrain_compile.report.choice import cost_pieces, reason_text
from tinytrain_compile.report.data import batch_text, code_bytes, const_bytes, is_updated, update_totals
from tinytrain_compile.report.further import further_texts
from tinytrain_compile.report.pages.compared import compared
from tinytrain_compile.report.pages.page import page_asset, page_hash, page_template
from tinytrain_compile.report.pages.picture import Picture, build_picture, label_of, name_of, text_of
from tinytrain_compile.report.pareto import curve_of
from tinytrain_compile.report.rows.board import board_pieces
from tinytrain_compile.report.rows.code import code_pieces
from tinytrain_compile.report.rows.derivative import derivative_text
from tinytrain_compile.report.rows.ram import ram_pieces
from tinytrain_compile.report.rows.untrained import left_out, untrained_texts
from tinytrain_compile.report.text import (
    bound_text,
    fit_verdict,
    layer_counts,
    loss_text,
    memory_pieces,
    paging_pieces,
    update_counts,
    verify_pieces,
)
from tinytrain_compile.report.words import bytes_text, grouped, plural, share
from tinytrain_compile.target.model import Board

NOMINAL_WIDTH, NOMINAL_HEIGHT = 1080, 520
"""Pixels for which labels are chosen where no script adapts them."""

CHARACTER_PIXELS, LABEL_PIXELS, STEP_PIXELS = 7.0, 12, 13
THIN_PIXELS, FINE_PIXELS = 2, 5
LARGEST_ROWS = 12


def report_html(summary: Summary) -> str:
    """The whole page."""
    return page_template("report.html.j2").render(_page(summary))


def _page(summary: Summary) -> Mapping[str, Any]:
    analysis = analyse(summary.train, summary.plan)
    plan = summary.plan
    style, script = page_asset("report.css"), page_asset("report.js")
    picture = build_picture(analysis, summary.arena_limit_bytes)
    return {
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": page_hash(style),
        "script_hash": page_hash(script),
        "summary": summary,
        "analysis": analysis,
        "plan": plan,
        "picture": picture,
        "compared": compared(analysis),
        "names": CATEGORIES,
        "layout": _Layout(picture),
        "headline": _headline(summary),
        "figures": _figures(summary),
        "breakdown": _breakdown(analysis),
        "peak": name_of(analysis.node_label(plan.peak_step), 120),
        "live": analysis.live(plan.peak_step),
        "numbers": {(box.holding.buffer.name, box.holding.buffer.kind): box.number for box in picture.boxes},
        "largest": sorted(picture.boxes, key=lambda box: (-box.holding.buffer.size_bytes, box.number)),
        "largest_rows": LARGEST_ROWS,
        "updated": [layer for layer in summary.layers if is_updated(layer)],
        "frozen": [layer for layer in summary.layers if not is_updated(layer)],
        "update_counts": update_counts(summary),
        "losses": _loss_curve(summary),
        "reasons": () if summary.choice is None or summary.choice.update is None else summary.choice.update.layers,
        "why": reason_text,
        "pareto": () if summary.choice is None else summary.choice.pareto,
        "curve": None if summary.choice is None else curve_of(summary.choice.pareto),
    }


class _Layout:
    """From steps and bytes to the percentages at which captions lie, and which of them have room."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.step_stride = max(math.ceil(STEP_PIXELS * picture.steps / NOMINAL_WIDTH), 1)

    def x(self, step: float) -> str:
        """Left edge of a step, per cent of the width."""
        return f"{100.0 * step / self._picture.steps:.3f}"

    def y(self, size_bytes: int) -> str:
        """A height in the arena, per cent."""
        return f"{100.0 * size_bytes / self._picture.height:.3f}"

    def label(self, name: str, steps: int, size_bytes: int) -> str:
        """What of a name has room in a rectangle at the nominal size; empty if nothing sensible has."""
        if NOMINAL_HEIGHT * size_bytes / self._picture.height < LABEL_PIXELS:
            return ""
        return self.fit(name, steps)

    def fit(self, name: str, steps: int) -> str:
        """What of a name has room in the width of some steps."""
        room = int((NOMINAL_WIDTH * steps / self._picture.steps - 12) / CHARACTER_PIXELS)
        return "" if room < min(5, len(name)) else label_of(name, room)

    def outline(self, size_bytes: int) -> str:
        """How to draw the outline of a rectangle that is so low that a full one would hide it; empty for a full one."""
        pixels = NOMINAL_HEIGHT * size_bytes / self._picture.height
        return " thin" if pixels < THIN_PIXELS else " fine" if pixels < FINE_PIXELS else ""

    def labelled(self, size_bytes: int) -> bool:
        """Whether a rectangle is high enough for a label at the largest zoom."""
        return 4 * NOMINAL_HEIGHT * size_bytes / self._picture.height >= LABEL_PIXELS


def _headline(summary: Summary) -> Mapping[str, Any]:
    plan, limit = summary.plan, summary.arena_limit_bytes
    fits = limit is None or plan.arena_bytes <= limit
    known = f"lower bound {bytes_text(plan.lower_bound_bytes)}, gap {bytes_text(plan.gap_bytes)}"
    sentence = bound_text(plan) if fits or limit is None else f"{known}: {fit_verdict(plan, limit)}"
    return {
        "fits": fits,
        "of": "no limit given" if limit is None else f"of {bytes_text(limit)} ({share(plan.arena_bytes, limit)})",
        "over": 0 if fits or limit is None else plan.arena_bytes - limit,
        "verdict": sentence[0].upper() + sentence[1:],
        "whole": max(plan.total_bytes, limit or 0),
        "contents": "all memories" if plan.further else "the arena",
    }


def _figures(summary: Summary) -> list[tuple[str, str]]:
    """The table of figures: what the terminal shows, without its cuts."""
    plan, verify = summary.plan, summary.verify
    forward, backward = work_of(summary.train)
    code, const = code_bytes(summary), const_bytes(summary)
    parameters = update_totals(summary)["total_parameters"] - left_out(summary)
    return [
        (
            "Model",
            f"{name_of(summary.model)}: {layer_counts(summary)}, {grouped(parameters)} parameters",
        ),
        ("Target", f"{name_of(summary.target)}: {text_of(summary.target_summary)}"),
        *([("Board", _board_text(summary, summary.board))] if summary.board else []),
        *([("RAM of the part", " ".join([ram[0], ", ".join(ram[1:])]))] if (ram := ram_pieces(summary)) else []),
        ("Number format", summary.quant),
        ("Loss", loss_text(summary)),
        ("Optimizer", f"{summary.optimizer}, learning rate {summary.learning_rate:g}, {batch_text(summary.train)}"),
        ("Trained", f"{name_of(summary.update_label)}: {update_counts(summary)}"),
        *(("Not trained", f"{head} {', '.join(names)}") for head, names in untrained_texts(summary)),
        (
            "Persistent, all memories" if plan.further else "Arena, persistent",
            f"{bytes_text(plan.persistent_bytes)} (what a checkpoint saves)",
        ),
        (
            "Transient, all memories" if plan.further else "Arena, transient",
            bytes_text(plan.total_bytes - plan.persistent_bytes),
        ),
        *(("Memory", ", ".join(memory_pieces(memory))) for memory in plan.further),
        *([("Paging", ", ".join(paging_pieces(plan)))] if plan.paging else []),
        ("Lower bound", bound_text(plan).removeprefix("lower bound ")),
        ("Stack, static bound", bytes_text(verify.stack_bytes)),
        ("Stack, high-water", bytes_text(verify.stack_measured_bytes)),
        ("Flash, code", bytes_text(code)),
        ("Flash, constants", bytes_text(const)),
        *([("Flash, choice", text_of(", ".join(code_pieces(summary))))] if code_pieces(summary) else []),
        ("Work, forward", f"{grouped(forward)} MAC"),
        ("Work, backward", f"{grouped(backward)} MAC"),
        ("Steps", plural(len(plan.order), "step")),
        *([("Time and energy", ", ".join(cost))] if (cost := cost_pieces(summary)) else []),
        *((label, text_of(text)) for label, text in further_texts(summary)),
        ("Verification", text_of("; ".join(verify_pieces(summary)))),
        *([("Derivative", text_of(derivative_text(summary)))] if derivative_text(summary) else []),
    ]


def _board_text(summary: Summary, board: Board) -> str:
    pieces, remarks = board_pieces(summary, board)
    return text_of("; ".join([", ".join(pieces), *remarks]))


def _breakdown(analysis: Analysis) -> list[tuple[str, str, int, int]]:
    """(category, name, bytes, bytes before it) at the peak step, for the bar and its legend; empty ones left out."""
    rows: list[tuple[str, str, int, int]] = []
    before = 0
    for category, size in analysis.breakdown(analysis.plan.peak_step).items():
        if size:
            rows.append((category, CATEGORIES[category], size, before))
            before += size
    return rows


def _loss_curve(summary: Summary) -> Mapping[str, Any] | None:
    """Losses of the check as points in a 300 x 80 box, if they are of the user's samples; None with fewer than two."""
    losses = summary.verify.losses
    if len(losses) < 2 or not all(math.isfinite(loss) for loss in losses):
        return None
    texts = [f"{loss:.6g}" for loss in losses]
    if not summary.own_samples:
        return {"points": "", "texts": texts}
    low, high = min(losses), max(losses)
    reach = (high - low) or 1.0
    points = [
        f"{300 * index / (len(losses) - 1):.1f},{78 - 76 * (loss - low) / reach:.1f}"
        for index, loss in enumerate(losses)
    ]
    return {"points": " ".join(points), "texts": texts}
