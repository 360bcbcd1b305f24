"""What the report says of the training step and the derivative of the model file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.layout import Row, row, sentence
from tinytrain_compile.report.words import printable


def derivative_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield the result and one sentence for each thing that was not judged; nothing if no step was judged."""
    found = summary.verify.derivative
    if found is None:
        return
    whole = found.tensors + found.unjudged
    said = ["training step == derivative of the file", f"{found.tensors:,} of {whole:,} tensors {found.closeness}"]
    yield row("derivative", said if found.tensors else ["not judged"], width)
    for reason in found.skipped:
        yield sentence("", printable(reason), width)


def derivative_text(summary: Summary) -> str:
    """Return the same in one line, for report.html; "" if no step was judged."""
    found = summary.verify.derivative
    if found is None:
        return ""
    whole = found.tensors + found.unjudged
    head = f"training step == derivative of the file: {found.tensors:,} of {whole:,} tensors {found.closeness}"
    return "; ".join((head if found.tensors else "not judged", *found.skipped))


def derivative_json(summary: Summary) -> dict[str, Any] | None:
    """Return the figures, without the time, which would differ from run to run."""
    found = summary.verify.derivative
    if found is None:
        return None
    figures = {key: value for key, value in asdict(found).items() if key != "seconds"}
    return {**figures, "worst": None if found.worst is None else float(f"{found.worst:.1g}")}
