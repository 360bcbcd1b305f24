"""Terms of a loss that PyTorch's exporter leaves out, told by the calls that it records."""

from __future__ import annotations

import re

from tinytrain_compile.frontend.exporters.record import read_record
from tinytrain_compile.frontend.exporters.remarks import REMEDY, named
from tinytrain_compile.frontend.file.model import OnnxModel

_SMOOTHING = re.compile(r"\(%\w+, %\w+, [%\w]+, -?\d+, -?\d+, ([0-9.e-]+),?\)")
"""Of a call of cross_entropy_loss: scores, labels, weights, reduction, ignore_index, label_smoothing."""


_FINITE = ("Sqrt", "Log")
"""Operators whose gradient a small number keeps finite."""


def dropped_terms(model: OnnxModel) -> list[str]:
    """Return a note for each loss that was exported without label smoothing, and on numbers that are no longer added.

    PyTorch's optimizer takes an Add of 1e-8 for one of 0: the root behind it then has no finite gradient at 0.
    """
    record = read_record(model.proto)
    if record is None:
        return []
    found: list[str] = []
    roots: list[str] = []
    for node in model.proto.graph.node:
        call = record.calls.get(node.output[0]) if node.output else None
        if call is None:
            continue
        match = _SMOOTHING.fullmatch(call.arguments) if call.op == "aten.cross_entropy_loss" else None
        if match and float(match.group(1)) > 0 and node.op_type == "SoftmaxCrossEntropyLoss":
            what = f"the exporter dropped label_smoothing={match.group(1)} of {node.output[0]} ({node.op_type})"
            found.append(f"{what}: write it out in the module, as docs/parameters.md shows")
        lost = [value for value in call.values if value.startswith("add") and value not in record.made]
        if node.op_type in _FINITE and lost and not node.input[0].startswith("add"):
            roots.append(node.output[0])
    if roots:
        what = f"the exporter dropped a small number that was added before {named(roots)}"
        found.append(f"{what}, so that its gradient may not be finite; export with {REMEDY}")
    return found
