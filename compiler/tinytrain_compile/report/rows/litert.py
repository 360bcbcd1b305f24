"""The report's rows on LiteRT, which has run the .tflite file."""

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
    """Return how closely LiteRT agrees with the reference, and that the device's outputs are the file's if they are."""
    found = _found(summary)
    if not found.tensors:
        return []
    close = plural(found.tensors, "tensor")
    if found.steps == 0:
        close = f"{close} identical"
    elif found.equal_bytes is not None:
        close = f"within 1 step, {100 * found.equal_bytes:.1f} % equal"
    return [close, *([] if found.output else ["identical"])]


def litert_remarks(summary: Summary) -> list[str]:
    """Return the reason if nothing was compared, and the distance of the device's outputs from the file's."""
    found = _found(summary)
    missing = [f"not compared with LiteRT: {printable(found.skipped)}"] if found.skipped else []
    if not (found.samples and found.output):
        return missing
    return [*missing, f"outputs of the device and of the file (by LiteRT) are up to {found.output:.2g} apart"]


def litert_json(summary: Summary) -> dict[str, Any]:
    """Return the figures."""
    return asdict(_found(summary))
