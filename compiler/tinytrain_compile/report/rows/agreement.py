"""Accuracy of the model on the user's data before training, and the distance of int8 from float."""

from __future__ import annotations

from tinytrain_compile.ir.summary import Agreement, Summary
from tinytrain_compile.report.layout import grouped, plural


def agreement_pieces(summary: Summary) -> list[str]:
    """Return accuracies, and what int8 changes of the outputs; nothing if neither is known."""
    known = summary.fact(Agreement)
    assert known is not None
    pieces: list[str] = []
    if known.accuracy is not None:
        floats = "" if known.float_accuracy is None else f" (float model {_percent(known.float_accuracy)})"
        pieces.append(f"accuracy {_percent(known.accuracy)}{floats}")
    if known.top1_agreement is not None:
        pieces.append(f"top-1 agreement with float {_percent(known.top1_agreement)}")
    if known.output_rmse is not None:
        pieces.append(f"output RMSE {known.output_rmse:.3g} of RMS {known.output_rms:.3g}")
    part = f"first {grouped(known.samples)} of " if known.samples < known.of else ""
    return [f"{part}{plural(known.of, 'sample')}, before training", *pieces] if pieces else []


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
