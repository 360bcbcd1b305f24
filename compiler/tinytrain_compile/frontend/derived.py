"""Constants that nodes make of constants: evaluated at compile time, or computed in the graph from a tied weight."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.folding import PARTS, VIEWS, fold
from tinytrain_compile.frontend.file.model import OnnxNode, Refused, changed
from tinytrain_compile.frontend.graph.context import Handler, ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, Lay, Origin, constant_entry, plain
from tinytrain_compile.ir.types import Array


def define_folded(ctx: ImportContext, node: OnnxNode) -> None:
    """Evaluate a node of constants; the same computation of the same weights is done once, and is one constant."""
    known = [ctx.entry(name) for name in node.inputs if name]
    origins = tuple(entry.origin for entry in known if entry.origin is not None)
    key = _key(node, known) if origins else None
    if key is not None and key in ctx.folded:
        for output, entry in zip(node.outputs, ctx.folded[key], strict=False):
            ctx.define(output, entry)
        return
    arrays = {name: ctx.entry(name).data for name in node.inputs if name}
    entries: list[Entry] = []
    for index, (output, array) in enumerate(
        zip(node.outputs, fold(node, arrays, ctx.model.opset, ctx.room), strict=False)
    ):
        entries.append(_folded(ctx, node, index, array, origins))
        ctx.define(output, entries[-1])
    if key is not None:
        ctx.folded[key] = tuple(entries)


def _folded(ctx: ImportContext, node: OnnxNode, index: int, array: Array, origins: tuple[Origin, ...]) -> Entry:
    first = ctx.entry(node.input(0)) if node.inputs else None
    if first is not None and first.origin is not None and node.op in (*VIEWS, *PARTS):
        source = first.source if node.op in VIEWS else ""
        return constant_entry(array, source, first.origin.laid(_lay(ctx, node, index)))
    own = Origin(node.output(index), tuple(array.shape), parents=origins)
    return constant_entry(array, "", own)


def _lay(ctx: ImportContext, node: OnnxNode, index: int) -> Lay:
    """Return what a node does to the elements of its first input."""
    others = {name: ctx.entry(name).data for name in node.inputs[1:] if name}
    opset = ctx.model.opset

    def lay(array: Array) -> Array:
        return array if node.op == "Cast" else fold(node, {**others, node.input(0): array}, opset)[index]

    return lay


def _key(node: OnnxNode, known: list[Entry]) -> tuple[object, ...]:
    """Return what is equal for nodes that compute the same: operator, attributes, and identical inputs."""
    proto = changed(node.proto, (), ())
    proto.name = proto.doc_string = ""
    operands = (id(e) if e.origin is not None else (e.data.dtype.str, e.shape, e.data.tobytes()) for e in known)
    return (proto.SerializeToString(deterministic=True), tuple(bool(name) for name in node.inputs), *operands)


_NUMBERS_ONLY: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), (1, 2)),
    "BatchNormalization": (1, 2, 3, 4),
}
"""Operands that a layer takes as numbers of its own: the graph does not compute them."""


def is_computed(ctx: ImportContext, node: OnnxNode) -> bool:
    """Tell whether the graph must compute a node of constants, for the gradient's sake: it computes with a parameter.

    Moving elements is no computation, unless others read a tied weight in another arrangement. What becomes scale and
    shift of a normalisation is computed at compile time, and trains as it is.
    """
    if node.op in VIEWS:
        return False
    entries = [ctx.entry(name) for name in node.inputs if name]
    if ctx.is_tied(*entries):
        return True
    if node.op in PARTS:  # a Gather may have some elements several times: each copy would train by itself
        chosen = ctx.entry(node.input(1)) if node.op == "Gather" else None
        if chosen is None or not chosen.is_constant or np.unique(chosen.data).size == chosen.data.size:
            return False
    return is_trained_through(ctx, node)


def is_trained_through(ctx: ImportContext, node: OnnxNode) -> bool:
    """Tell whether a node computes with a parameter what is no scale or shift of a normalisation."""
    trained = ctx.is_trained(*(ctx.entry(name).origin for name in node.inputs if name))
    return trained and not _becomes_weight(ctx, node)


def _becomes_weight(ctx: ImportContext, node: OnnxNode) -> bool:
    """Tell whether a layer takes what follows from a node of constants as its numbers."""

    def passes(reader: OnnxNode) -> bool:
        return all(ctx.links.is_constant(name) for name in reader.inputs if name)

    found = (pair for output in node.outputs for pair in ctx.links.followed(output, passes))
    return any(reader.input(index) == name for name, reader in found for index in _NUMBERS_ONLY.get(reader.op, ()))


def import_computed(ctx: ImportContext, node: OnnxNode, handlers: Mapping[str, Handler]) -> None:
    """Import a node whose parameters are values of the graph to it."""
    if node.op not in handlers:
        raise _no_gradient(ctx, node)
    entries = {name: ctx.entry(name) for name in node.inputs if name and _is_parameter(ctx, ctx.entry(name))}
    known = {name: ctx.entry(name).data for name in node.inputs if name}
    fold(node, known, ctx.model.opset)  # refuses what cannot be computed, or is not finite from the start
    for name, entry in entries.items():
        value = ctx.value(node, entry)
        ctx.define(name, replace(entry, value=value, order=plain(entry.rank), array=None, origin=None))
    try:
        handlers[node.op](ctx, node)
    finally:
        for name, entry in entries.items():
            ctx.define(name, entry)


def _no_gradient(ctx: ImportContext, node: OnnxNode) -> Refused:
    """Return the complaint about an operator that can be evaluated, but not trained through."""
    inputs = (ctx.entry(name) for name in node.inputs if name)
    names = dict.fromkeys(e.origin.base for e in inputs if _is_parameter(ctx, e) and e.origin is not None)
    what = f"it computes with {', '.join(names)}, which is trained, and has no gradient in the compiler"
    return Refused("", what, " ".join(f"--frozen {shlex.quote(name)}" for name in names))


def _is_parameter(ctx: ImportContext, entry: Entry) -> bool:
    return entry.is_constant and (ctx.is_tied(entry) or ctx.is_trained(entry.origin))
