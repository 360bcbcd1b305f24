"""The parts of a step between which it may pause (docs/adr/0037-slices.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepPieces:
    """cycles: of every node, those of its pieces by the target's figures, in order, each at least 1.

    turns: of a node whose kernel computes some turns of its loop at a time: where each piece begins, and the last ends.
    """

    cycles: Mapping[str, tuple[int, ...]]
    turns: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(frozen=True)
class StepPart:
    """What a slice computes at least: a node of the step or a piece of one, and its modelled cycles."""

    node: str
    cycles: int
