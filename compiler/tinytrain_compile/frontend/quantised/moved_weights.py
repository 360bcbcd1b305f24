"""Stored weights that nodes move as integers for one of their readers: moved as real numbers instead.

A decoder reads the encoder's weight transposed. Where each of them dequantises it for itself, the two are one weight
only if the integers that both are made of are dequantised in the same place.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tinytrain_compile.frontend.file.folding import MOVES
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, reachable, rewritten, unused


def dequantised_first(model: OnnxModel) -> OnnxModel:
    """The model with DequantizeLinear in front of what moves a weight, where others dequantise the same integers.

    Of one scale for all: what a scale per channel means depends on the axis.
    """
    links = Links(model.nodes, model.outputs, model.constants)
    found = {node.name: _moved(node, model, links) for node in model.nodes if _dequantises(node)}
    times = Counter(root for root, _ in found.values())
    moved = {name: chain for name, (root, chain) in found.items() if chain and times[root] > 1}
    if not moved:
        return model
    nodes = list[OnnxNode]()
    for node in model.nodes:
        nodes += _turned(node, moved[node.name], model, links) if node.name in moved else [node]
    return replace(model, nodes=reachable(nodes, model.outputs))


def _dequantises(node: OnnxNode) -> bool:
    return node.op == "DequantizeLinear" and not node.domain


def _moved(node: OnnxNode, model: OnnxModel, links: Links) -> tuple[str, list[OnnxNode]]:
    """The weight that a node dequantises, and what moves it before; no moves where there is a scale per channel."""
    name, chain, scale = node.input(0), list[OnnxNode](), model.constants.get(node.input(1))
    while (maker := links.maker(name)) is not None and maker.op in MOVES and not maker.domain:
        name, chain = maker.input(0), [maker, *chain]
    whole = name in model.constants and scale is not None and scale.size == 1
    return name, chain if whole else []


def _turned(node: OnnxNode, chain: list[OnnxNode], model: OnnxModel, links: Links) -> list[OnnxNode]:
    """The weight dequantised, then moved."""
    between = (f"{node.output(0)}.moved{index}" for index in range(len(chain)))
    outputs = [*(unused(name, model.constants, links) for name in between), node.output(0)]
    made = [rewritten(node, (chain[0].input(0), *node.inputs[1:]), outputs=outputs[:1])]
    for move, before, after in zip(chain, outputs[:-1], outputs[1:], strict=True):
        again = rewritten(move, (before, *move.inputs[1:]), outputs=(after,))
        made.append(replace(again, name=f"{move.name} of {node.name}"))
    return made
