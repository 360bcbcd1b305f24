"""RAM and flash of the part that is flashed: what takes them, of how much, and which code the nodes got (--code)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ir.buffers import PartRam, RamUse
from tinytrain_compile.ir.kernels import Copied
from tinytrain_compile.ir.stages import flash_constants
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.int8.prepared import prepared_bytes
from tinytrain_compile.ops.names import is_prepared, operand, operands
from tinytrain_compile.report.analysis import Analysis
from tinytrain_compile.report.layout import bytes_text, grouped, plural, printable, share


def ram_pieces(summary: Summary) -> list[str]:
    """Return all of the part's RAM, and every use of it with its memory; of a core only if there are buffers."""
    ram = summary.fact(PartRam)
    if ram is None or (ram.size_bytes is None and not ram.buffers):
        return []
    uses = [f"{use.what} {grouped(use.size_bytes)}{where_text(use)}" for use in ram.uses if use.size_bytes]
    return [_total(ram), *uses, *_not_counted(summary)]


def _total(ram: PartRam) -> str:
    if ram.size_bytes is None:
        return f"{bytes_text(ram.used_bytes)} and the stack; a core has no RAM size, a board has (--list-targets):"
    return f"{grouped(ram.used_bytes)} of {bytes_text(ram.size_bytes)} ({share(ram.used_bytes, ram.size_bytes)}):"


def where_text(use: RamUse) -> str:
    """Name the memory of a use; "" on a core, which has only one."""
    return f" in {use.memory}" if use.memory else ""


def _not_counted(summary: Summary) -> list[str]:
    """Tell what parts need that only the caller can place."""
    found = [f"{part.name}: {part.uncounted}" for part in summary.parts if part.uncounted]
    return [f"not counted: {'; '.join(found)}"] if found else []


def ram_json(summary: Summary) -> dict[str, Any] | None:
    """Return used_bytes, of all memories; size_bytes: null for a core; uses: what takes it, in which memory."""
    ram = summary.fact(PartRam)
    if ram is None:
        return None
    uses = [{"what": use.what, "size_bytes": use.size_bytes, "memory": use.memory or None} for use in ram.uses]
    return {"used_bytes": ram.used_bytes, "size_bytes": ram.size_bytes, "uses": uses}


def code_pieces(summary: Summary) -> list[str]:
    """Tell which code the nodes have; nothing for code that is made for speed without a limit."""
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
    elif (percent := _code_share(summary)) is not None:
        pieces.append(f"{percent} % of it is code: --code auto weighs smaller code")
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


def _code_share(summary: Summary) -> int | None:
    """Return the percentage of code in the flash, of code for speed; None if it is not most of it, or not known."""
    code, const = summary.code_bytes, summary.const_bytes
    if code is None or const is None or code <= const or summary.code.variant != "speed":
        return None
    return None if summary.code.budget_bytes is not None else round(100 * code / (code + const))


def prepared_weights(summary: Summary) -> list[Copied]:
    """List frozen weights that lie in flash as kernels multiply them: layer and bytes; each reader has its own."""
    graph = summary.train.before_remat or summary.train.graph
    found = {operand(node, "w").name: node for node in graph.nodes if is_prepared(node)}
    return [Copied(node.origin or node.name, prepared_bytes(node)) for node in found.values()]


def one_sample_bytes(summary: Summary) -> int | None:
    """Return the flash of kernels that only m_infer calls if a step takes several samples; None: unknown, or none."""
    inference, sizes = summary.plan.inference, summary.verify.function_bytes
    if inference is None or not sizes:
        return None
    shared = {summary.calls.get(node.name) for node in summary.plan.order}
    own = {summary.calls.get(node.name) for node in inference.plan.order} - shared
    return sum(sizes.get(name or "", 0) for name in own)


def code_json(summary: Summary) -> dict[str, Any]:
    """Return keys of `flash`: which code the nodes have (speed, size or mixed), the limit, weights that lie there twice
    or widened."""
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


@dataclass(frozen=True)
class FlashKind:
    """A use of flash. part: code or constants."""

    what: str
    part: str
    size_bytes: int


def flash_kinds(summary: Summary, analysis: Analysis) -> list[FlashKind]:
    """List what takes flash, as far as it is known: code if something measured it, constants by their readers."""
    code, const, constants = code_bytes(summary), const_bytes(summary), _constant_kinds(summary)
    found = [] if code is None else _code_kinds(summary, analysis, code)
    tables = 0 if const is None else const - sum(constants.values())
    sizes = {**constants, "tables of kernels": max(tables, 0)}
    return [*found, *(FlashKind(what, "constants", size) for what, size in sizes.items() if size)]


def _code_kinds(summary: Summary, analysis: Analysis, total: int) -> list[FlashKind]:
    """Split the code by the passes that call a kernel; a kernel of both counts as one of the forward pass."""
    sizes, forward, training = summary.verify.function_bytes, set[str](), set[str]()
    for node, role in zip(summary.plan.order, analysis.roles, strict=True):
        (forward if role == "forward" else training).add(summary.calls.get(node.name, ""))
    kernels = {
        "kernels, forward": sum(sizes.get(name, 0) for name in forward),
        "kernels, backward and update": sum(sizes.get(name, 0) for name in training - forward),
        "kernels to infer one sample": one_sample_bytes(summary) or 0,
    }
    rest = total - sum(kernels.values())
    named = {**kernels, "API, order of the steps, helpers" if sizes else "code": max(rest, 0)}
    return [FlashKind(what, "code", size) for what, size in named.items() if size]


def _constant_kinds(summary: Summary) -> dict[str, int]:
    """Return the bytes of constants by kind: the state at first, frozen parameters, and everything else."""
    graph = summary.train.graph
    other = "multipliers and other constants" if summary.train.integer else "other constants"
    found: dict[str, int] = {"initial state": 0, "frozen weights": 0, "frozen biases": 0, other: 0}
    graphs = [graph] if summary.plan.inference is None else [summary.plan.inference.graph, graph]
    kinds = {"w": "frozen weights", "w_rest": "frozen weights", "bias": "frozen biases"}
    read = {
        value.name: kinds[name]
        for one in graphs
        for node in one.nodes
        for name, value in operands(node).items()
        if name in kinds
    }
    read |= {value.name: "initial state" for value in graph.state}
    for name, data in flash_constants(summary.train, summary.plan).items():
        found[read.get(name, other)] += data.nbytes
    return found


def code_bytes(summary: Summary) -> int | None:
    """Return bytes of generated code in flash, if something measured them."""
    return summary.verify.code_bytes if summary.code_bytes is None else summary.code_bytes


def const_bytes(summary: Summary) -> int | None:
    """Return bytes of constant tables in flash, if something measured them."""
    return summary.verify.const_bytes if summary.const_bytes is None else summary.const_bytes
