"""Which nodes external kernels (--kernels) compute, in words and for report.json."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.summary import OfferedKernels, Summary
from tinytrain_compile.report.layout import bytes_text, plural, printable


def external_pieces(summary: Summary) -> list[str]:
    """Return a piece for every function that --kernels offers."""
    return [_piece(use) for use in external_json(summary)]


def _piece(use: dict[str, Any]) -> str:
    nodes = use["nodes"]
    workspace = f", workspace {bytes_text(use['workspace_bytes'])}" if use["workspace_bytes"] else ""
    return f"{use['function']} for {plural(len(nodes), 'node') if nodes else 'no node'}{workspace}"


def external_json(summary: Summary) -> list[dict[str, Any]]:
    """List the functions of --kernels: nodes that each computes, their layers in the model, and the most workspace."""
    found: list[dict[str, Any]] = []
    offered = summary.fact(OfferedKernels)
    for function in offered.functions if offered else ():
        used = [(n, n.external) for n in summary.plan.order if n.external is not None]
        used = [(node, external) for node, external in used if external.function == function]
        found.append(
            {
                "function": function,
                "nodes": [node.name for node, _ in used],
                "layers": list(dict.fromkeys(printable(node.origin or node.name) for node, _ in used)),
                "workspace_bytes": max((external.workspace_bytes for _, external in used), default=0),
            }
        )
    return found
