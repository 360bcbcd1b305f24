"""Which code every node gets: kernels for speed, small ones where a limit on flash asks for them, copies of weights.

Sizes are those of real objects. Instructions come from a model, since what is small is not run while it is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import error_product, transposed_copy
from tinytrain_compile.ops.names import result

if TYPE_CHECKING:
    from tinytrain_compile.verify.build import FlashSizes

MAC_TENTHS, TAP_TENTHS, ELEMENT_TENTHS = 6, 24, 20
"""Tenths of an instruction that small code takes more, by multiply-accumulate of a product, by one of a depthwise
convolution, and by element of what has none. Measured on MCUNet (Cortex-M7), rounded."""
NUMBER_BYTES = 4
"""Size of an int32 in a table of arguments."""


@dataclass(frozen=True)
class Variant:
    """One way to lower all nodes. kernels: as they are called (small ones shared); sizes: of its whole project."""

    kernels: KernelSet
    sizes: FlashSizes

    def function_bytes(self, nodes: Iterable[str]) -> int:
        """Return bytes of the functions that these nodes call, each once."""
        return sum(self.sizes.functions[name] for name in sorted({self.kernels.calls[node] for node in nodes}))

    def table_bytes(self, nodes: Iterable[str]) -> int:
        """Return bytes of the tables of numbers that these nodes pass, each once."""
        names = {self.kernels.numbers[node] for node in nodes if node in self.kernels.numbers}
        return sum(NUMBER_BYTES * len(self.kernels.tables[name]) for name in names)

    @property
    def rest_bytes(self) -> int:
        """What is no kernel: weights, calls, API."""
        nodes = self.kernels.calls
        return self.sizes.total_bytes - self.function_bytes(nodes) - self.table_bytes(nodes)


@dataclass(frozen=True)
class Mix:
    """Nodes whose kernels are small, and whether the calls are."""

    nodes: frozenset[str]
    calls: bool


def extra_instructions(node: Node) -> int:
    """Return about how many instructions a step takes more if this node's kernel is small."""
    macs = op_def(node.op).macs(node)
    conv = getattr(node.attrs, "conv", node.attrs)
    if isinstance(conv, ConvAttrs) and conv.groups > 1:
        return macs * TAP_TENTHS // 10
    return (macs * MAC_TENTHS if macs else node.outputs[0].elements * ELEMENT_TENTHS) // 10


def estimate(fast: Variant, small: Variant, mix: Mix) -> int:
    """Return bytes of code and constants of a mixture (helpers that both files need count once)."""
    others = [node for node in fast.kernels.calls if node not in mix.nodes]
    rest = small.rest_bytes if mix.calls else fast.rest_bytes
    return rest + fast.function_bytes(others) + small.function_bytes(mix.nodes) + small.table_bytes(mix.nodes)


def choose_mix(fast: Variant, small: Variant, nodes: Sequence[Node], limit_bytes: int) -> Mix:
    """Choose small calls, then families of small kernels, most bytes per instruction first, until all fits; then back
    to kernels for speed, most instructions per byte first, as long as it still fits."""
    extra = {node.name: extra_instructions(node) for node in nodes}
    mix = Mix(frozenset(), True)
    for family in _by_ratio(fast, small, _groups(small.kernels.calls), extra):
        if estimate(fast, small, mix) <= limit_bytes:
            break
        mix = Mix(mix.nodes | family, True)
    for group in sorted(_groups(fast.kernels.calls), key=lambda g: (-_gain(fast, g, extra), sorted(g))):
        tried = Mix(mix.nodes - group, True)
        if group & mix.nodes and estimate(fast, small, tried) <= limit_bytes:
            mix = tried
    return mix


def _groups(calls: Mapping[str, str]) -> list[frozenset[str]]:
    """Return nodes that call the same function."""
    found: dict[str, set[str]] = {}
    for node, function in calls.items():
        found.setdefault(function, set()).add(node)
    return [frozenset(group) for group in found.values()]


def _by_ratio(
    fast: Variant, small: Variant, families: list[frozenset[str]], extra: Mapping[str, int]
) -> list[frozenset[str]]:
    def key(family: frozenset[str]) -> tuple[float, list[str]]:
        saved = fast.function_bytes(family) - small.function_bytes(family) - small.table_bytes(family)
        return -saved / (1 + sum(extra[node] for node in family)), sorted(family)

    return sorted(families, key=key)


def _gain(fast: Variant, group: AbstractSet[str], extra: Mapping[str, int]) -> float:
    return sum(extra[node] for node in group) / max(fast.function_bytes(group), 1)


# ---- copies of weights ----------------------------------------------------------------------------------------------


def choose_copies(nodes: Iterable[Node], frozen: AbstractSet[str], free_bytes: int) -> dict[str, Node]:
    """Return weight -> a node that reads it transposed: first what is packed most often per byte, while bytes are
    left."""
    wanted = [
        (node, weight) for node in nodes if (weight := transposed_copy(node)) is not None and weight.name in frozen
    ]
    wanted.sort(key=lambda pair: (-_widened(pair[0]), pair[1].size_bytes, pair[0].name))
    found: dict[str, Node] = {}
    for node, weight in wanted:
        if weight.name not in found and weight.size_bytes <= free_bytes:
            found[weight.name] = node
            free_bytes -= weight.size_bytes
    return found


def _widened(node: Node) -> int:
    """Return how often a 1x1 data gradient widens each of its weights."""
    tiles = error_product(node)
    return math.prod(result(node, "error").shape[:3]) // tiles.strip if tiles.strip_axis == 0 else 1
