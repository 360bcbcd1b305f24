"""Which code the nodes got under --code and --flash-budget, in words and for report.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytrain_compile.ir.kernels import Copied
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.int8.prepared import is_prepared, prepared_bytes
from tinytrain_compile.ops.names import operand
from tinytrain_compile.report.words import bytes_text, grouped, plural, printable


def code_pieces(summary: Summary) -> list[str]:
    """Pieces of text; none for code that is made for speed without a limit."""
    choice, pieces = summary.code, list[str]()
    alone = one_sample_bytes(summary)
    if alone is not None:
        pieces.append(f"{bytes_text(alone)} of it to infer one sample")
    if choice.variant != "speed":
        of = (
            f"{len(choice.small_nodes)} of {plural(len(summary.calls), 'node')}" if choice.variant == "mixed" else "all"
        )
        pieces.append(f"small code for {of}")
    if choice.other_bytes is not None:
        other = "speed" if choice.variant == "size" else "size"
        pieces.append(f"{bytes_text(choice.other_bytes)} with --code {other}")
    elif (share := _share(summary)) is not None:
        pieces.append(f"{share} % of it is code: --code auto weighs smaller code")
    if choice.budget_bytes is not None:
        pieces.append(f"budget {bytes_text(choice.budget_bytes)}")
    if ready := prepared_weights(summary):
        size = sum(weight.size_bytes for weight in ready)
        pieces.append(f"{plural(len(ready), 'prepared weight')} in flash ({grouped(size)} B)")
    if choice.copies:
        size = sum(copy.size_bytes for copy in choice.copies)
        names = ", ".join(printable(copy.layer) for copy in choice.copies)
        pieces.append(f"{plural(len(choice.copies), 'frozen weight')} stored twice ({grouped(size)} B): {names}")
    return pieces


def _share(summary: Summary) -> int | None:
    """Percent of the flash that is code for speed; None if that is not most of it, or is not known."""
    code, const = summary.code_bytes, summary.const_bytes
    if code is None or const is None or code <= const or summary.code.variant != "speed":
        return None
    return None if summary.code.budget_bytes is not None else round(100 * code / (code + const))


def prepared_weights(summary: Summary) -> list[Copied]:
    """Frozen weights that lie in flash as kernels multiply them: layer and bytes; each reader has its own."""
    graph = summary.train.before_remat or summary.train.graph
    found = {operand(node, "w").name: node for node in graph.nodes if is_prepared(node)}
    return [Copied(node.origin or node.name, prepared_bytes(node)) for node in found.values()]


def one_sample_bytes(summary: Summary) -> int | None:
    """Flash of the kernels that only m_infer calls, where a step takes several samples; None: not known, or none."""
    inference, sizes = summary.plan.inference, summary.verify.function_bytes
    if inference is None or not sizes:
        return None
    shared = {summary.calls.get(node.name) for node in summary.plan.order}
    own = {summary.calls.get(node.name) for node in inference.plan.order} - shared
    return sum(sizes.get(name or "", 0) for name in own)


def code_json(summary: Summary) -> dict[str, Any]:
    """Keys of `flash`: which code the nodes have (speed, size or mixed), the limit, which weights lie there twice, or
    widened."""
    choice = summary.code
    return {
        "infer_one_bytes": one_sample_bytes(summary),
        "budget_bytes": choice.budget_bytes,
        "code": choice.variant,
        "other_code_bytes": choice.other_bytes,
        "small_nodes": list(choice.small_nodes),
        "turned_weights": _weights(choice.copies),
        "prepared_weights": _weights(prepared_weights(summary)),
    }


def _weights(weights: Iterable[Copied]) -> list[dict[str, Any]]:
    return [{"layer": weight.layer, "size_bytes": weight.size_bytes} for weight in weights]
