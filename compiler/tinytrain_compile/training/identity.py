"""What gives a saved state its meaning, as a digest: builds with the same one read each other's checkpoints.

It is taken of the model as it was imported (graph, initial weights, formats), before anything that a build may choose
anew without another meaning: how many samples a step takes, rates, plan, target, code.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

from tinytrain_compile.ir.imported import ImportedLoss, ImportedModel, WrittenLoss
from tinytrain_compile.ir.stages import ChannelSlice, UpdatePlan
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import Graph


def identity_of(model: ImportedModel, plan: UpdatePlan, loss: str, optimizer: tuple[object, ...]) -> str:
    """Return a hexadecimal digest. loss: the op that ends the forward pass; optimizer: what gives its
    state a meaning, not its rates.
    """
    trained = sorted((name, piece and _facts(piece)) for name, piece in plan.updates.items())
    kind = optimizer if optimizer[1:] else optimizer[0]
    facts = (_digest(model.graph), loss, _own_loss(model.loss), trained, kind)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _facts(piece: ChannelSlice) -> tuple[object, ...]:
    return (piece.axis, piece.channels, *(("on device",) if piece.on_device else ()))


def _own_loss(own: ImportedLoss | None) -> tuple[object, ...]:
    """Return what the model itself says about its loss."""
    if own is None:
        return ()
    weights = None if own.class_weights is None else own.class_weights.tolist()
    nodes = () if own.written is None else (_digest(_graph_of(own.written)),)
    return (own.kind, own.reduction, weights, own.ignore_index, own.axis, *nodes)


def _graph_of(written: WrittenLoss) -> Graph:
    return Graph("", written.nodes, (written.label,), (written.value,), written.constants)


@lru_cache(maxsize=4)
def _digest(graph: Graph) -> str:
    """Return a digest of nodes, formats and initial data; remarks for the user are none of it. Many updates of one
    graph are priced."""
    digest = hashlib.sha256(print_graph(replace(graph, notes=())).encode())
    for name in sorted(graph.constants):
        data = graph.constants[name]
        digest.update(repr((name, data.dtype.str, data.shape)).encode() + data.tobytes())
    return digest.hexdigest()
