"""report.html: one page that needs nothing else (no network, no script needed to read it), with the memory picture.

All names in it are untrusted: jinja2 escapes them, `printable` takes out control characters, and a content security
policy that names the hashes of our own style and script keeps anything else from running.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from tinytrain_compile.ir.summary import NOT_ON_CORE, Summary
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, analyse, work_of
from tinytrain_compile.report.checks import losses_texts
from tinytrain_compile.report.choice import cost_pieces, gain_pieces, rule_texts, tried_pieces
from tinytrain_compile.report.flash_and_ram import code_bytes, code_pieces, const_bytes, ram_pieces
from tinytrain_compile.report.layout import bytes_text, grouped, macs_text, plural, printable, share
from tinytrain_compile.report.pages.picture import Picture, about_text, build_picture, label_of, name_of, text_of
from tinytrain_compile.report.pages.sections import agreement_rows, flash_bar, layer_rows, ram_bar, tiles
from tinytrain_compile.report.rows import pieces_of, remarks_of
from tinytrain_compile.report.text import bound_text, fit_verdict, memory_pieces, verify_pieces
from tinytrain_compile.report.trained import (
    batch_text,
    layer_counts,
    layer_text,
    left_out,
    loss_text,
    untrained_texts,
    update_counts,
    update_totals,
)

NOMINAL_WIDTH, NOMINAL_HEIGHT = 1080, 520
"""Pixels for which labels are chosen where no script adapts them."""

CHARACTER_PIXELS, LABEL_PIXELS, STEP_PIXELS = 7.0, 12, 13
"""Width of a letter and height of a line at the font size of report.css; the least width of a numbered step."""
THIN_PIXELS, FINE_PIXELS = 2, 5
"""Heights below which a rectangle has no outline, or a fine one: a full one would hide its colour."""
STATES = (
    ("whole", "trained"),
    ("part", "trained in part"),
    ("passed", "frozen, gradients pass through it"),
    ("frozen", "frozen, forward only"),
)
"""States of a layer in the drawing of the network, and what they mean."""
LARGEST_ROWS = 12
"""Buffers in the table of the largest; the others are folded away."""


def report_html(summary: Summary) -> str:
    """Return the whole page."""
    return page_template("report.html.j2").render(_page(summary))


def _page(summary: Summary) -> Mapping[str, Any]:
    analysis = analyse(summary.train, summary.plan)
    plan = summary.plan
    style, script = page_asset("report.css"), page_asset("report.js")
    picture = build_picture(analysis, summary.arena_limit_bytes)
    layers, ram, flash = layer_rows(summary, analysis), ram_bar(summary), flash_bar(summary, analysis)
    agreement, curve = agreement_rows(summary), _curve(summary)
    return {
        "style": Markup(style),
        "script": Markup(script),
        "style_hash": page_hash(style),
        "script_hash": page_hash(script),
        "summary": summary,
        "not_on_core": NOT_ON_CORE,
        "analysis": analysis,
        "plan": plan,
        "picture": picture,
        "compared": _compared(analysis),
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
        "contents": _contents(summary, bool(ram), bool(flash.parts), bool(agreement)),
        "tiles": tiles(summary),
        "layers": layers,
        "states": STATES,
        "timed": any(layer.time for layer in layers),
        "coded": any(layer.figures.code_bytes is not None for layer in layers),
        "reasons": any(layer.reason for layer in layers),
        "ram": ram,
        "flash": flash,
        "agreement": agreement,
        "agreed_on": next(iter(pieces_of("agreement", summary)), ""),  # how many samples
        "update_counts": update_counts(summary),
        "untrained": [(head.removesuffix(":"), ", ".join(names)) for head, names in untrained_texts(summary)],
        "losses": _loss_curve(summary),
        "pareto": () if summary.choice is None else summary.choice.pareto,
        "curve": curve,
    }


def _compared(analysis: Analysis) -> Any:
    """Return live bytes with and without streams; None if there are none."""
    if analysis.plan.streams is None:
        return None
    from tinytrain_compile.report.pages.compared import compared

    return compared(analysis)


def _curve(summary: Summary) -> Any:
    """Return the curve of --pareto; None with fewer than two points."""
    if summary.choice is None or len(summary.choice.pareto) < 2:
        return None
    from tinytrain_compile.report.pages.pareto import pareto_chart

    return pareto_chart(summary.choice.pareto)


def _contents(summary: Summary, ram: bool, flash: bool, agreement: bool) -> list[tuple[str, str]]:
    """List the sections that the page has: (anchor, title)."""
    pareto = summary.choice is not None and bool(summary.choice.pareto)
    sections = [
        ("h-network", "Network", True),
        ("h-arena", "Arena", True),
        ("h-ram", "RAM of the part", ram),
        ("h-memory", "Memory over time", True),
        ("h-layers", "Layers", True),
        ("h-flash", "Flash", flash),
        ("h-agreement", "int8 and float32", agreement),
        ("h-ways", "Other choices", bool(summary.suggestions)),
        ("h-pareto", "Other arenas", pareto),
        ("h-figures", "Figures", True),
        ("h-live", "Buffers", True),
        ("h-steps", "Steps", True),
    ]
    return [(place, title) for place, title, there in sections if there]


class _Layout:
    """From steps and bytes to the percentages at which captions lie, and which of them have room."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.step_stride = max(math.ceil(STEP_PIXELS * picture.steps / NOMINAL_WIDTH), 1)

    def x(self, step: float) -> str:
        """Return the left edge of a step, per cent of the width."""
        return f"{100.0 * step / self._picture.steps:.3f}"

    def y(self, size_bytes: int) -> str:
        """Return a height in the arena, per cent."""
        return f"{100.0 * size_bytes / self._picture.height:.3f}"

    def label(self, name: str, steps: int, size_bytes: int) -> str:
        """Cut a name to what has room in a rectangle at the nominal size; empty if nothing sensible has."""
        if NOMINAL_HEIGHT * size_bytes / self._picture.height < LABEL_PIXELS:
            return ""
        return self.fit(name, steps)

    def fit(self, name: str, steps: int) -> str:
        """Cut a name to what has room in the width of some steps."""
        room = int((NOMINAL_WIDTH * steps / self._picture.steps - 12) / CHARACTER_PIXELS)
        return "" if room < min(5, len(name)) else label_of(name, room)

    def outline(self, size_bytes: int) -> str:
        """Choose the outline of a rectangle that is so low that a full one would hide it; empty for a full one."""
        pixels = NOMINAL_HEIGHT * size_bytes / self._picture.height
        return " thin" if pixels < THIN_PIXELS else " fine" if pixels < FINE_PIXELS else ""

    def labelled(self, size_bytes: int) -> bool:
        """Tell whether a rectangle is high enough for a label at the largest zoom."""
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
    """Return the table of figures: what the terminal shows, without its cuts."""
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
        *_optional(("Board", _joined("board", ", ", summary))),
        *([("RAM of the part", " ".join([ram[0], ", ".join(ram[1:])]))] if (ram := ram_pieces(summary)) else []),
        ("Number format", summary.quant),
        ("Loss", loss_text(summary)),
        ("Optimizer", f"{summary.optimizer}, learning rate {summary.learning_rate:g}, {batch_text(summary.train)}"),
        ("Trained", f"{name_of(summary.update_label)}: {update_counts(summary)}"),
        (
            "Persistent, all memories" if plan.further else "Arena, persistent",
            f"{bytes_text(plan.persistent_bytes)} (what a checkpoint saves)",
        ),
        (
            "Transient, all memories" if plan.further else "Arena, transient",
            bytes_text(plan.total_bytes - plan.persistent_bytes),
        ),
        *(("Memory", ", ".join(memory_pieces(memory))) for memory in plan.further),
        *_optional(("Paging", ", ".join(pieces_of("paging", summary)))),
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
        *_further(summary),
        ("Verification", text_of("; ".join(verify_pieces(summary)))),
        *_optional(("Derivative", _joined("derivative", ": ", summary))),
    ]


def _optional(*found: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the rows of the table that have a text."""
    return [(label, text_of(text)) for label, text in found if text]


def _joined(name: str, joint: str, summary: Summary) -> str:
    """Return a row that only some builds have, with its remarks, in one line."""
    return "; ".join([*filter(None, [joint.join(pieces_of(name, summary))]), *remarks_of(name, summary)])


def _further(summary: Summary) -> list[tuple[str, str]]:
    """Return everything that this build does beside training layers in the arena."""
    update = None if summary.choice is None else summary.choice.update
    float_head, *floats = pieces_of("float32", summary) or [""]
    return _optional(
        ("Gain", " ".join(gain_pieces(summary))),
        ("Rules compared", "; ".join(rule_texts(summary))),
        ("Limits of the gain", "" if update is None else "; ".join(map(printable, update.why))),
        ("Features", _joined("features", ", ", summary)),
        ("Listening", _joined("listening", ", ", summary)),
        ("Runtime parts", _joined("runtime", ", ", summary)),
        ("Slices", _joined("slices", ", ", summary)),
        ("External kernels", _joined("external", ", ", summary)),
        ("Low rank", _joined("low_rank", ", ", summary)),
        ("In float32", f"{float_head} {', '.join(floats)}" if float_head else ""),
        ("On your data", _joined("agreement", ", ", summary)),
        ("Row by row", _joined("streams", ", ", summary)),
        ("Computed twice", _joined("remat", ", ", summary)),
        ("Tried", " ".join(tried_pieces(summary))),
    )


def _breakdown(analysis: Analysis) -> list[tuple[str, str, int, int]]:
    """Return (category, name, bytes, bytes before it) at the peak step, for the bar and its legend."""
    rows: list[tuple[str, str, int, int]] = []
    before = 0
    for category, size in analysis.breakdown(analysis.plan.peak_step).items():
        if size:
            rows.append((category, CATEGORIES[category], size, before))
            before += size
    return rows


def _loss_curve(summary: Summary) -> Mapping[str, Any] | None:
    """Draw losses of the check in a 300 x 80 box, if they are of the user's samples; None with fewer than two."""
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
    return {"points": " ".join(points), "texts": texts, "said": "; ".join(losses_texts(summary))}


# ---- what every page needs -------------------------------------------------------------------------------------------


@cache
def page_template(name: str) -> jinja2.Template:
    """Return a page's template, compiled once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tinytrain_compile.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        n=grouped,
        size=bytes_text,
        macs=macs_text,
        name=name_of,
        op=shown_name,
        layer=layer_text,
        about=about_text,
        short=name_of,
        whole=text_of,
    )
    return environment.get_template(name)


def page_asset(name: str) -> str:
    """Return the text of a style or a script."""
    return files("tinytrain_compile.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def page_hash(text: str) -> str:
    """Return a text's hash as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
