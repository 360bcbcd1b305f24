"""What the report says of LiteRT, which has run the .tflite file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.summary import LiteRtAgreement, Summary
from tinytrain_compile.report.layout import plural, printable


def _found(summary: Summary) -> LiteRtAgreement:
    found = summary.fact(LiteRtAgreement)
    assert found is not None, "the model is a .tflite file"
    return found


def litert_pieces(summary: Summary) -> list[str]:
    """Return how closely LiteRT agrees with the reference, and how far the device's outputs are from the file's."""
    found = _found(summary)
    if found.skipped:
        return []
    if found.steps is None or found.equal_bytes is None:
        return [plural(found.tensors, "tensor"), _apart(found)]
    if found.steps == 0:
        return [f"{plural(found.tensors, 'tensor')} identical", _apart(found)]
    return [f"within 1 step, {100 * found.equal_bytes:.1f} % equal", _apart(found)]


def _apart(found: LiteRtAgreement) -> str:
    return f"up to {found.output:.2g} apart" if found.output else "identical"


def litert_remarks(summary: Summary) -> list[str]:
    """Return why nothing was compared."""
    found = _found(summary)
    return [f"not compared with LiteRT: {printable(found.skipped)}"] if found.skipped else []


def litert_json(summary: Summary) -> dict[str, Any]:
    """Return the figures."""
    return asdict(_found(summary))
