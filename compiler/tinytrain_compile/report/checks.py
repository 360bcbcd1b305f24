"""Checks of a build as rows of the terminal: what agrees with what, how closely, and what was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from tinytrain_compile.ir.summary import NOT_ON_CORE, Comparison, Saturations, Summary, VerifyReport
from tinytrain_compile.report.layout import (
    KEY_WIDTH,
    MIN_WIDTH,
    Row,
    grouped,
    pad,
    plural,
    printable,
    row,
    sentence,
)
from tinytrain_compile.report.rows import pieces_of, remarks_of

VERDICTS = {"pass": "PASS", "fail": "FAIL", "skipped": "NOT CHECKED"}
"""Word of the headline, by the result of the check."""
GAP, OK = "  ", "ok"
MOST_LOSSES = 4
"""Losses that a line shows one by one; --verify-steps is 3 unless it is given."""


def verdict(verify: VerifyReport) -> str:
    """Return the word of the headline; a check that did not run on the target's core says so."""
    word = VERDICTS[verify.result]
    word = f"{word} on this machine" if (verify.result, verify.mode) == ("pass", "host") else word
    return word if verify.unverified is None else f"{word}, {NOT_ON_CORE}"


def check_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield a row for each comparison, then losses, what was not compared, and saturated weights."""
    unverified = summary.verify.unverified
    left_out = [*remarks_of("litert", summary), *summary.verify.left_out]
    texts = [
        *([] if unverified is None else [unverified.text]),
        *_derivative(summary),
        *losses_texts(summary),
        *left_out,
        *saturation_texts(summary),
    ]
    if summary.verify.comparisons:
        yield from _table([*_litert(summary), *summary.verify.comparisons, *_step(summary)], width)
    else:
        mark = "" if summary.verify.result == "skipped" else f"   {VERDICTS[summary.verify.result]}"
        yield row("checks", [f"{printable(_message(summary.verify))}{mark}"], width)
    for text in texts:
        yield sentence("", printable(text), width)


def _message(verify: VerifyReport) -> str:
    """Return the line of the check without its verdict."""
    pieces = [piece.strip() for piece in verify.message.split("   ") if piece.strip()]
    word = verify.result.upper()
    return ", ".join(piece for piece in pieces if piece != word) or VERDICTS[verify.result]


def _table(comparisons: Sequence[Comparison], width: int) -> Iterator[Row]:
    """Yield a row of columns for each comparison; what was found is below its two sides if the line is too short."""
    room = max(width, MIN_WIDTH) - KEY_WIDTH
    sides = [f"{printable(one.what)} vs {printable(one.with_what)}" for one in comparisons]
    found = [printable(one.closeness) for one in comparisons]
    left, right = max(map(cell_len, sides)), max(map(cell_len, found))
    alone = left + right + len(OK) + 2 * len(GAP) > room
    for index, (side, close) in enumerate(zip(sides, found, strict=True)):
        key = "" if index else "checks"
        if alone:
            yield row(key, [side, f"{GAP}{close}{GAP}{OK}"], width, " " * room)
        else:
            yield row(key, [f"{pad(side, left)}{GAP}{pad(close, right)}{GAP}{OK}"], width)


def _litert(summary: Summary) -> list[Comparison]:
    """Return the comparisons of a .tflite file's tensors and outputs; nothing if LiteRT has not run it."""
    sides = (("LiteRT", "numpy reference"), ("outputs by LiteRT", "by the device"))
    return [Comparison(*side, found) for side, found in zip(sides, pieces_of("litert", summary), strict=False)]


def _step(summary: Summary) -> list[Comparison]:
    """Return the comparison of the training step with the derivative of the file; nothing if none was made."""
    found = pieces_of("derivative", summary)
    return [Comparison("training step", "derivative of file", found[1])] if len(found) > 1 else []


def _derivative(summary: Summary) -> list[str]:
    """Return what of the training step was not judged."""
    found = pieces_of("derivative", summary)
    none = ["training step not compared with the derivative of the file"] if len(found) == 1 else []
    return [*none, *remarks_of("derivative", summary)]


def losses_texts(summary: Summary) -> list[str]:
    """Tell the losses of the check and of which samples they are; none of random ones, which say nothing."""
    losses = summary.verify.losses
    if not losses:
        return []
    if not summary.own_samples:
        many = plural(len(losses), "step")
        return [f"{many} on random samples: the losses say nothing about learning; --data takes yours"]
    said = ", ".join(f"{loss:.3g}" for loss in losses)
    if len(losses) > MOST_LOSSES:
        said = f"{losses[0]:.3g} first, {losses[-1]:.3g} last, {max(losses):.3g} at most"
    what = "loss before an update" if len(losses) == 1 else "losses before updates"
    return [f"{what}{_samples_text(summary)}: {said}"]


def _samples_text(summary: Summary) -> str:
    """Name the samples that the steps of the check train on: the first ones, and again if they are too few."""
    batch, of = summary.train.batch, summary.own_samples
    used = batch * len(summary.verify.losses)
    which = "sample 1" if used == 1 else f"samples 1 to {used:,}"
    each = f" of {batch}" if batch > 1 else ""
    return f"{each}, on {plural(of, 'sample')} in turn" if used > of else f"{each}, on {which} of {of:,}"


def saturation_texts(summary: Summary) -> list[str]:
    """Count int8 weights at the ends of their range, before and after the steps of the check."""
    counted: Saturations | None = summary.verify.saturations
    if counted is None:
        return []
    text = f"{grouped(counted.after)} of {plural(counted.weights, 'int8 weight')} at +-127"
    text += f" ({grouped(counted.before)} before)"
    more = "" if counted.rescaled is None else f", {plural(counted.rescaled, 'channel')} rescaled"
    return [text + more]
