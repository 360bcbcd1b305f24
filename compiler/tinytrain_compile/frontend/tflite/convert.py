"""TfliteFile -> ONNX: state first, then operator by operator; all that has no translation is listed at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.file import TfliteFile
from tinytrain_compile.frontend.tflite.rings import STATE
from tinytrain_compile.frontend.tflite.table import HANDLERS
from tinytrain_compile.frontend.tflite.translate import Translation


def has_state(file: TfliteFile) -> bool:
    """Tell whether a file keeps something from one call to the next."""
    return any(operator.op in STATE for operator in file.subgraphs[0].operators)


def in_onnx(file: TfliteFile, max_window: int) -> onnx.ModelProto:
    """Return the ONNX model of a file. E0501 with one line for each operator that has no translation."""
    graph = file.subgraphs[0]
    if has_state(file):
        from tinytrain_compile.frontend.tflite.window import unrolled

        graph = unrolled(file, max_window)
    made, refused = Translation(graph), dict[str, str]()
    for index, operator in enumerate(graph.operators):
        try:
            if operator.op not in HANDLERS:
                raise Refused("", "there is no such operator in the compiler", _nearest(operator.op, HANDLERS))
            HANDLERS[operator.op](made, operator)
        except Refused as reason:
            what = f"{operator.op}, {reason.attribute}" if reason.attribute else operator.op
            line = f"{index} {operator.name}: {what}: {reason.reason}; nearest supported: {reason.nearest}"
            refused["".join(c if c.isprintable() else "?" for c in line)[:300]] = operator.op
            made.pass_over(operator)
    if refused:
        what = f"{len(refused)} of {len(graph.operators)} operators cannot be imported: "
        what += "; ".join(dict.fromkeys(refused.values()))
        raise CompileError(
            "E0501", file.name, what, "replace these operators in the model as listed below", (*refused,)
        )
    return made.model(file.name)


def _nearest(op: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(op, known, n=2, cutoff=0.75)
    return " or ".join(found) or "none, see docs/tflite.md; write it with the operators there"
