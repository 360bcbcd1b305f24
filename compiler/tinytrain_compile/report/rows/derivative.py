"""What the report says of the training step and the derivative of the model file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.summary import DerivativeAgreement, Summary
from tinytrain_compile.report.layout import printable


def _found(summary: Summary) -> DerivativeAgreement:
    assert summary.verify.derivative is not None, "no step was judged"
    return summary.verify.derivative


def derivative_pieces(summary: Summary) -> list[str]:
    """Return what was judged, and how closely it agrees."""
    found = _found(summary)
    if not found.tensors:
        return ["not judged"]
    whole = found.tensors + found.unjudged
    return ["training step == derivative of the file", f"{found.tensors:,} of {whole:,} tensors {found.closeness}"]


def derivative_remarks(summary: Summary) -> list[str]:
    """Return a sentence for each thing that was not judged."""
    return list(map(printable, _found(summary).skipped))


def derivative_json(summary: Summary) -> dict[str, Any]:
    """Return the figures, without the time, which would differ from run to run."""
    found = _found(summary)
    figures = {key: value for key, value in asdict(found).items() if key != "seconds"}
    return {**figures, "worst": None if found.worst is None else float(f"{found.worst:.1g}")}
