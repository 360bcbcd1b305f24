"""Sections of report.html about the whole: key figures, RAM of the part, flash by kind, and every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinytrain_compile.ir.buffers import PartRam
from tinytrain_compile.ir.cost import LayerReason
from tinytrain_compile.ir.summary import Agreement, BoardUse, Summary
from tinytrain_compile.report.analysis import Analysis, work_of
from tinytrain_compile.report.choice import milliseconds
from tinytrain_compile.report.flash_and_ram import code_bytes, const_bytes, flash_kinds, ram_pieces
from tinytrain_compile.report.layers import LayerFigures, layer_figures
from tinytrain_compile.report.layout import bytes_text, grouped, macs_text, plural, printable, share
from tinytrain_compile.report.trained import is_updated, update_totals

# ---- key figures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, its value, and a remark."""

    label: str
    value: str
    note: str


def tiles(summary: Summary) -> list[Tile]:
    """Return the figures that decide whether a training fits, as far as they are known."""
    return [*_memory_tiles(summary), *_work_tiles(summary)]


def _memory_tiles(summary: Summary) -> Iterator[Tile]:
    plan, limit, ram = summary.plan, summary.arena_limit_bytes, summary.fact(PartRam)
    of = "no limit given" if limit is None else f"of {bytes_text(limit)} ({share(plan.arena_bytes, limit)})"
    yield Tile("Arena", bytes_text(plan.arena_bytes), of)
    if ram is not None and ram.size_bytes is not None:
        whole = f"of {bytes_text(ram.size_bytes)} ({share(ram.used_bytes, ram.size_bytes)})"
        yield Tile("RAM of the part", bytes_text(ram.used_bytes), whole)
    stack = summary.verify.stack_bytes
    yield Tile("Stack", bytes_text(stack), "static bound" if stack is not None else "--verify measures it")
    code, const = code_bytes(summary), const_bytes(summary)
    if code is None or const is None:
        yield Tile("Flash", f"> {bytes_text(summary.least_const_bytes)}", "constants alone; code is not measured")
    else:
        yield Tile("Flash", bytes_text(code + const), f"{grouped(code)} code, {grouped(const)} constants")


def _work_tiles(summary: Summary) -> Iterator[Tile]:
    forward, backward = work_of(summary.train)
    yield Tile("Work of a step", f"{macs_text(forward + backward)} MAC", f"{macs_text(backward)} of it backward")
    if summary.choice is not None and summary.choice.cost.ps:
        cost = summary.choice.cost
        yield Tile("Time of a step", milliseconds(cost.ps), "a model, not measured")
        yield Tile("Energy of a step", f"{cost.pj / 1e9:.3g} mJ", "a model, not measured")
    totals = update_totals(summary)
    of = f"{grouped(totals['parameters'])} of {grouped(totals['total_parameters'])}"
    layers = f"in {totals['layers']} of {plural(totals['total_layers'], 'layer')}"
    yield Tile("Trained parameters", share(totals["parameters"], totals["total_parameters"]), f"{of}, {layers}")


# ---- bars -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of a bar: `before` bytes from its left end. shade: number of its colour; free: a rest that nobody uses."""

    what: str
    where: str
    size_bytes: int
    before: int
    shade: int
    free: bool = False


@dataclass(frozen=True)
class Bar:
    """Parts of a whole, with a sentence about all of them."""

    whole: int
    text: str
    parts: tuple[Part, ...]


SHADES = 6
"""Colours of the parts of a bar in report.css."""


def ram_bar(summary: Summary) -> Bar | None:
    """Return all RAM of the part against its memories; None for a core without buffers beside the arena."""
    ram = summary.fact(PartRam)
    if ram is None or not (pieces := ram_pieces(summary)):
        return None
    uses = [(use.what, use.memory, use.size_bytes) for use in ram.uses if use.size_bytes]
    return _bar(uses, ram.size_bytes, pieces[0].removesuffix(":"))


def flash_bar(summary: Summary, analysis: Analysis) -> Bar:
    """Return flash by kind; a board's flash is in words, since few models take enough of it to be seen in a bar."""
    kinds, board = flash_kinds(summary, analysis), summary.fact(BoardUse)
    parts, used = [(one.what, one.part, one.size_bytes) for one in kinds], sum(one.size_bytes for one in kinds)
    if code_bytes(summary) is None:
        return _bar(parts, None, f"{bytes_text(used)} of constants; the code is not measured")
    size = None if board is None else board.board.flash_bytes
    of = "" if size is None else f" of {bytes_text(size)} ({share(used, size)})"
    return _bar(parts, None, f"{bytes_text(used)}{of}")


def _bar(uses: list[tuple[str, str, int]], size: int | None, text: str) -> Bar:
    parts, before = list[Part](), 0
    for number, (what, where, size_bytes) in enumerate(uses):
        parts.append(Part(printable(what), printable(where), size_bytes, before, number % SHADES))
        before += size_bytes
    if size is not None and size > before:
        parts.append(Part("free", "", size - before, before, 0, free=True))
    return Bar(max(before, size or 0, 1), text, tuple(parts))


# ---- layers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRow:
    """A layer for the drawing and the table. state: "whole", "part", "passed" (only gradients) or "frozen"."""

    figures: LayerFigures
    state: str
    what: str
    time: str
    time_share: str
    reason: LayerReason | None
    more: str

    @property
    def label(self) -> str:
        """The name without the operator that PyTorch's exporter puts at its end: `b1_conv/Conv` is `b1_conv`."""
        layer = self.figures.update
        head, _, end = ("" if layer is None else layer.name).rpartition("/")
        return head if head and end.isalpha() else end

    @property
    def trained_share(self) -> float:
        """Trained parameters, per cent."""
        layer = self.figures.update
        return 0.0 if layer is None else round(100 * layer.elements / max(layer.total_elements, 1), 2)


def layer_rows(summary: Summary, analysis: Analysis) -> list[LayerRow]:
    """Return every layer in order, and last what belongs to none."""
    figures = layer_figures(summary, analysis)
    whole = sum(one.step_ps or 0 for one in figures)
    update = None if summary.choice is None else summary.choice.update
    reasons = {} if update is None else {one.layer: one for one in update.layers}
    return [_layer_row(one, whole, reasons.get("" if one.update is None else one.update.name)) for one in figures]


def _layer_row(one: LayerFigures, whole_ps: int, reason: LayerReason | None) -> LayerRow:
    time = "" if one.step_ps is None else f"{one.step_ps / 1e9:.3g} ms"
    part = "" if one.step_ps is None or not whole_ps else share(one.step_ps, whole_ps)
    return LayerRow(one, _state(one), _trained_text(one), time, part, reason, "" if reason is None else _more(reason))


def _state(one: LayerFigures) -> str:
    if one.update is not None and is_updated(one.update):
        return "whole" if one.update.elements == one.update.total_elements else "part"
    return "passed" if one.is_on_path else "frozen"


def _trained_text(one: LayerFigures) -> str:
    """Tell what of a layer is trained: `all`, `bias, 12 in channels`, `frozen`."""
    layer = one.update
    if layer is None:
        return ""
    if not is_updated(layer):
        return "frozen"
    if layer.elements == layer.total_elements:
        return "all"
    parts = ["bias"] if layer.bias else []
    if layer.weight:
        parts.append("weight" if layer.channels is None else f"{layer.channels} {layer.axis or 'out'} channels")
    return ", ".join(parts)


def _more(reason: LayerReason) -> str:
    """Tell what training more of a layer would gain and cost."""
    if not reason.next_way:
        return ""
    over = [f"{bytes_text(reason.over_bytes)} above --arena"] if reason.over_bytes else []
    over += [f"{milliseconds(reason.over_ps)} above --max-step-time"] if reason.over_ps else []
    cost = " and ".join(over) or "the full plan does not fit, or another layer gains more"
    return f"{printable(reason.next_way)}: gain +{reason.more:.1f}; {cost}"


# ---- int8 beside float32 --------------------------------------------------------------------------------------------


def agreement_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Return (figure, of the compiled model, of the float32 model) of your samples; nothing without both models."""
    known = summary.fact(Agreement)
    if known is None or known.output_rmse is None or known.output_rms is None:
        return []
    rows = [("Root mean square of the outputs", f"differs by {known.output_rmse:.3g}", f"{known.output_rms:.3g}")]
    if known.top1_agreement is not None:
        rows.insert(0, ("Same top class", f"{known.top1_agreement:.1%}", ""))
    if known.accuracy is not None:
        floats = "" if known.float_accuracy is None else f"{known.float_accuracy:.1%}"
        rows.insert(0, ("Accuracy", f"{known.accuracy:.1%}", floats))
    return rows
