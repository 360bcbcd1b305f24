"""finetune.html: the recommendation first, curves with the untrained level, and everything that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tinytrain_compile.ir.learning import ENOUGH, Finding, Learned, Score, Tried
from tinytrain_compile.report.layout import bytes_text, grouped, plural
from tinytrain_compile.report.pages.chart import Axis, Chart, chart
from tinytrain_compile.report.pages.html import page_asset, page_hash, page_template
from tinytrain_compile.report.pages.sections import Tile


def finding_html(finding: Finding, model: str) -> str:
    """Return the page. It needs nothing else (see `pages/html.py`)."""
    style = page_asset("report.css")
    return page_template("finetune.html.j2").render(
        style=Markup(style),
        style_hash=page_hash(style),
        model=model,
        finding=finding,
        tiles=list(_tiles(finding)) if finding.worth_it else [],
        options=list(_options(finding)),
        charts=_charts(finding),
        tried=[row for number, tried in enumerate(finding.rounds, 1) for row in _rows(finding, number, tried)],
        heads=HEADS,
    )


# ---- the recommendation ---------------------------------------------------------------------------------------------


def _options(finding: Finding) -> Iterator[tuple[str, str, str]]:
    """Yield (option, value, what it does) of what is recommended."""
    chosen, taken = finding.chosen, finding.taken
    yield "--lr", f"{finding.rate:.4g}", "learning rate"
    yield "--batch", str(chosen.batch), "samples of an update"
    yield "--epochs", str(taken.epochs), f"passes over the samples, {plural(taken.steps, 'update')} each"
    if chosen.clip:
        of = "the gradients of each layer" if chosen.per_layer else "all gradients together"
        yield "--clip-norm", f"{chosen.clip:g}", f"largest norm of {of}"
    if chosen.per_layer:
        yield "--clip-per", "layer", "clip each layer by itself"
    if finding.warm_up:
        yield "--warm-up", str(finding.warm_up), "updates in which the rate grows first"
    if chosen.settles:
        yield "--runtime", "schedule", "the rate falls to 0 along a cosine"
    if finding.replay:
        kept = bytes_text(finding.replay * finding.record_bytes)
        yield "--runtime", f"replay={finding.replay}", f"train an old sample after each new one: {kept} of RAM"
    if chosen.average:
        yield "--runtime", f"average={chosen.average}", "keep the mean of the ends of epochs"


def _tiles(finding: Finding) -> Iterator[Tile]:
    """Yield what the recommended training gives, and what it costs."""
    taken = finding.taken
    first, last, updates = taken.curve[0], taken.curve[-1], taken.epochs * taken.steps
    several, seeds = finding.chosen.seeds > 1, plural(finding.chosen.seeds, "seed")
    if first.accuracy is not None and last.accuracy is not None:
        spread = f"±{100 * taken.spread:.1f} points, " if several else ""
        yield Tile("Accuracy on test samples", f"{last.accuracy:.1%}", f"from {first.accuracy:.1%}; {spread}{seeds}")
        yield Tile("Loss on test samples", f"{last.loss:.4g}", f"from {first.loss:.4g}")
    else:
        spread = f"±{taken.spread:.3g}, " if several else ""
        yield Tile("Loss on test samples", f"{last.loss:.4g}", f"from {first.loss:.4g}; {spread}{seeds}")
    yield from _anomaly_tiles(first, last)
    if taken.old:
        before, after = _text(taken.old[0]), _text(taken.old[-1])
        yield Tile(f"{'Loss' if first.accuracy is None else 'Accuracy'} on old samples", after, f"from {before}")
    yield Tile("Updates on the device", grouped(updates), f"{plural(taken.epochs, 'epoch')} of {grouped(taken.steps)}")
    if (cost := finding.device(updates)) is not None:
        target = f"{cost[1]:.3g} J; a model of {finding.target}, not measured"
        yield Tile("Time on the device", f"{cost[0]:.3g} s", target)
    most = taken.epochs_to_most
    yield Tile(f"{ENOUGH:.0%} of the gain after", plural(most, "epoch"), plural(most * taken.steps, "update"))


def _text(score: Score) -> str:
    return f"{score.loss:.4g}" if score.accuracy is None else f"{score.accuracy:.1%}"


def _anomaly_tiles(first: Score, last: Score) -> Iterator[Tile]:
    """Yield the figures of a network that repeats its input, if there are faults among the test samples."""
    if first.auc is not None and last.auc is not None:
        yield Tile("Area under the ROC curve", f"{last.auc:.3f}", f"from {first.auc:.3f}")
    if last.threshold is not None and last.false_alarms is not None and last.detected is not None:
        alarms = f"{last.detected:.1%} of faults found, {last.false_alarms:.1%} false alarms"
        yield Tile("Threshold", f"{last.threshold:.4g}", alarms)


# ---- curves ---------------------------------------------------------------------------------------------------------


def _charts(finding: Finding) -> list[Chart]:
    named = {_name(finding, one): one for one in finding.learned}
    found = [curves_chart("Test samples", {name: one.curve for name, one in named.items()})]
    if finding.learned[0].old:
        found.append(curves_chart("Old samples", {name: one.old for name, one in named.items()}))
    rates = {f"rate {one.rate:.3g}": one.curve for one in finding.rounds[-1]}
    return [*found, curves_chart("Rates of the last round, on samples that were held back", rates)]


def _name(finding: Finding, one: Learned) -> str:
    """Name a curve; replay is only mentioned if it was compared or is recommended."""
    if one.replay:
        return f"with {one.replay} old samples replayed"
    return "without replay" if len(finding.learned) > 1 else "recommended training"


def curves_chart(title: str, curves: Mapping[str, Sequence[Score]]) -> Chart:
    """Draw accuracies over epochs, or losses if there are none, and the level of the untrained model as a line."""
    right = all(one.accuracy is not None for curve in curves.values() for one in curve)
    text = "{:.1%}".format if right else "{:.4g}".format
    points = {
        name: [(float(epoch), _figure(one, right)) for epoch, one in enumerate(curve)] for name, curve in curves.items()
    }
    first = next(iter(points.values()))[0][1]
    ticks = _percent if right else text
    axes = Axis("epoch", "{:g}".format, whole=True), Axis("accuracy" if right else "loss", ticks, exact=text)
    return chart(f"{title}: {axes[1].name} by epoch", axes, points, {f"before training {text(first)}": first})


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _figure(score: Score, right: bool) -> float:
    return score.accuracy if right and score.accuracy is not None else score.loss


# ---- what was tried -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TriedRow:
    """A line of the table: figures in words. taken: whether it is recommended."""

    cells: tuple[str, ...]
    remark: str
    taken: bool


HEADS = ("Round", "Batch", "Clip", "Rate", "Seeds", "Epochs", "Best after", "Accuracy", "Loss")
"""Columns of the figures; samples that were held back judge."""


def _rows(finding: Finding, number: int, tried: Sequence[Tried]) -> Iterator[TriedRow]:
    for one in tried:
        best = one.best
        remarks = [f"{plural(one.failed, 'run')} ended in NaN or infinity"] if one.failed else []
        remarks += ["clipped per layer"] if one.per_layer else []
        remarks += [f"warm-up {one.warm_up:.3g}"] if one.warm_up else []
        remarks += [f"mean of {one.average}"] if one.average else []
        cells = (
            str(number),
            str(one.batch),
            f"{one.clip:g}" if one.clip else "",
            f"{one.rate:.3g}",
            str(one.seeds),
            str(len(one.curve) - 1),
            str(one.best_epoch),
            "" if best.accuracy is None else f"{best.accuracy:.1%}",
            f"{best.loss:.4g}",
        )
        yield TriedRow(cells, "; ".join(remarks), one is finding.chosen)
