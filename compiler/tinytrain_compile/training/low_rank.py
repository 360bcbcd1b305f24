"""Weight gradients from low-rank copies of activations (docs/activations.md).

For a layer that keeps its input x in subspaces, the forward pass gets one step of the subspace iteration per mode. It
also gets the core of x in the new subspaces; the weight's gradient reads only these. The rest of the step does not
change, neither the forward pass nor the gradient of the data.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tinytrain_compile.ir.activations import MODES, KeptActivation, LowRank, inward, outward
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import NO_ATTRS, Array, Node, Value
from tinytrain_compile.ops.base import OPS, has_trait, op_def
from tinytrain_compile.ops.conv_form import ConvAttrs
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.subspace import GroupAttrs, ModeAttrs

Integers = Literal["in subspaces", "expanded"] | None
"""Low-rank gradients of an int8 network, which may read the copy expanded in all modes, as int8 again. "in subspaces":
computed there in float32 if that is better; "expanded": always from the expanded copy. Without an FPU a float32
multiply-accumulate takes 26 times as long as one of int8."""


@dataclass
class LowRankNodes:
    """The nodes of a step with low-rank copies. updates: (subspace, its new content); kept: for the report."""

    forward: list[Node]
    backward: list[Node]
    updates: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    kept: list[KeptActivation] = field(default_factory=list[KeptActivation])


def with_low_rank(
    builder: GraphBuilder,
    forward: Sequence[Node],
    wanted: Mapping[str, LowRank],
    seed: int,
    integer: Integers = None,
) -> LowRankNodes:
    """Take the backward pass out of the builder, with low-rank gradients of weights. wanted: by the name of a
    parameter's gradient.

    Only gradients that read values of the forward pass, or the input, are replaced: not those whose channels are cut
    out first.
    """
    backward, builder.nodes = builder.nodes, []
    made = {value.name: node for node in backward for value in node.outputs}
    chosen = {node.name: how for name, how in wanted.items() for node in _makers(made, name)}
    result = LowRankNodes([*forward], [])
    for node in backward:
        x = operand(node, "x") if node.name in chosen else None
        reduced = {} if x is None or x.name in made else chosen[node.name].reduced(x.shape)
        if x is None or not reduced:
            result.backward.append(node)
            continue
        rewrite = _Rewrite(builder, node, x, chosen[node.name], reduced, seed)
        copies = rewrite.copies(result.updates)
        gradient = rewrite.integer_gradient(integer) if integer else rewrite.gradient()
        _insert(result.forward, x, copies)
        result.backward += gradient
        result.kept.append(rewrite.kept([*copies, *gradient]))
    return result


def keep_subspaces(builder: GraphBuilder, updates: Iterable[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Emit the nodes that store this step's subspaces in the state; return (subspace, its new content) pairs."""
    return [(u, builder.emit("KeepSubspace", (u, new), name=f"{u.name}.kept", origin=new.origin)) for u, new in updates]


def _makers(made: Mapping[str, Node], gradient: str) -> list[Node]:
    """Return the nodes that make a parameter's gradient; made: producer of each value of the backward pass.

    Sums of several uses, and rearrangements, may come between.
    """
    node = made.get(gradient)
    if node is None:
        return []
    if has_trait(node.op, "weight_gradient"):
        return [node]
    between = has_trait(node.op, "adds") or has_trait(node.op, "rearranges")
    return [m for value in node.inputs for m in _makers(made, value.name)] if between else []


def _insert(forward: list[Node], x: Value, copies: Sequence[Node]) -> None:
    """Insert nodes right after the producer of x."""
    place = next((i + 1 for i, node in enumerate(forward) if x in node.outputs), 0)
    forward[place:place] = copies


def first_subspace(rank: int, length: int, seed: int, name: str) -> Array:
    """Return random orthonormal rows: the same ones for the same seed and name on every machine."""
    rows = np.random.default_rng((seed, zlib.crc32(name.encode()))).standard_normal((rank, length))
    exact = OPS["Orthonormalize"].exact
    assert exact is not None
    return exact((rows.astype(np.float32),), NO_ATTRS)[0]


class _Rewrite:
    """One gradient: its activation x, the modes that are reduced (axis -> rank), and the subspace of each."""

    def __init__(
        self, builder: GraphBuilder, node: Node, x: Value, how: LowRank, reduced: Mapping[int, int], seed: int
    ) -> None:
        self._builder, self._node, self._x, self._how, self._seed = builder, node, x, how, seed
        self._reduced = dict(reduced)
        self._names = {axis: name for name, axis in MODES[len(x.shape)]}
        self._subspaces: dict[int, Value] = {}
        self._states: list[Value] = []
        self._core = x

    def _emit(self, op: str, inputs: tuple[Value, ...], attrs: ModeAttrs | GroupAttrs, what: str) -> Value:
        return self._builder.emit(op, inputs, attrs, f"{self._node.name}.{what}", self._node.origin)

    def _taken(self, first: int) -> list[Node]:
        """Take the nodes from number `first` on out of the builder, and return them."""
        nodes = self._builder.nodes[first:]
        del self._builder.nodes[first:]
        return nodes

    def copies(self, updates: list[tuple[Value, Value]]) -> list[Node]:
        """Return the nodes of the forward pass; subspaces of the state and their new content are added to `updates`."""
        first = len(self._builder.nodes)
        for axis, rank in self._reduced.items():
            self._subspaces[axis] = self._subspace(axis, rank, updates)
        for axis in inward(self._reduced, self._x.shape):
            attrs = ModeAttrs(axis, steps=self._how.steps.get(axis, ()))
            self._core = self._along(self._core, attrs, f"core_{self._names[axis]}")
        return self._taken(first)

    def _subspace(self, axis: int, rank: int, updates: list[tuple[Value, Value]]) -> Value:
        name = f"{self._node.origin or self._node.name}.{self._names[axis]}"
        if self._how.kind == "subspace":
            return self._builder.constant(name, self._how.bases[axis].astype(np.float32), self._node.origin)
        before = self._builder.constant(name, first_subspace(rank, self._x.shape[axis], self._seed, name))
        power = self._emit("SubspacePower", (self._x, before), ModeAttrs(axis), f"power_{self._names[axis]}")
        hint = f"{self._node.name}.subspace_{self._names[axis]}"
        after = self._builder.emit("Orthonormalize", (power,), NO_ATTRS, hint, self._node.origin)
        self._states.append(before)
        updates.append((before, after))
        return after

    def _along(self, value: Value, attrs: ModeAttrs, what: str) -> Value:
        return self._emit("ModeProduct", (value, self._subspaces[attrs.axis]), attrs, what)

    def gradient(self) -> list[Node]:
        """Return the nodes that make the gradient of the core; the last one has the results of the node that it
        replaces."""
        first, node = len(self._builder.nodes), self._node
        core, dy, attrs = self._core, operand(node, "dy"), node.attrs
        if 0 in self._reduced:
            dy = self._along(dy, ModeAttrs(0), "dy_samples")
        places = [axis for axis in (1, 2) if axis in self._reduced and len(self._x.shape) == 4]
        shrinking = sorted(places, key=lambda axis: self._reduced[axis] / self._x.shape[axis])
        if isinstance(attrs, ConvAttrs) and _is_pointwise(attrs) and self._cheaper_below(dy, shrinking):
            for axis in shrinking:
                dy = self._along(dy, ModeAttrs(axis), f"dy_{self._names[axis]}")
        else:
            for axis in reversed(shrinking):
                core = self._along(core, ModeAttrs(axis, True), f"wide_{self._names[axis]}")
        self._of_weight(core, dy)
        nodes = self._taken(first)
        return [*nodes[:-1], replace(nodes[-1], name=node.name, outputs=node.outputs)]

    def gradient_of_expanded(self) -> list[Node]:
        """Return the nodes that expand the core in all modes, the shortest products first, and the original gradient
        node."""
        first, node, core = len(self._builder.nodes), self._node, self._core
        for axis in outward(self._reduced, self._x.shape):
            wide = self._how.wide.get(axis)
            attrs = ModeAttrs(axis, True, () if wide is None else (wide,))
            core = self._along(core, attrs, f"wide_{self._names[axis]}")
        inputs = tuple(core if value == self._x else value for value in node.inputs)
        return [*self._taken(first), replace(node, inputs=inputs)]

    def integer_gradient(self, integer: Integers) -> list[Node]:
        """Return the gradient in the subspaces if it is permitted, needs fewer multiply-accumulates, and no more
        intermediate bytes than the expanded int8 input; else that from the expanded copy."""
        if self._how.steps or integer == "expanded":
            return self.gradient_of_expanded()
        *before, last = self.gradient_of_expanded()
        self._builder.forget(before)
        small = self.gradient()
        fewer = sum(map(_macs, small)) < sum(map(_macs, (*before, last)))
        if fewer and self._bytes_between(small) <= self._x.elements:
            return small
        self._builder.forget(small[:-1])
        return self.gradient_of_expanded()

    def _bytes_between(self, nodes: Sequence[Node]) -> int:
        """Count the bytes of all intermediate results of a gradient in the subspaces, including a float32 error that
        the core's gradient reads."""
        dy = operand(self._node, "dy")
        made = [value for node in nodes[:-1] for value in node.outputs]
        made += [dy for node in nodes if has_trait(node.op, "weight_gradient") and dy in node.inputs]
        return sum(value.size_bytes for value in made)

    def _of_weight(self, core: Value, dy: Value) -> None:
        node, attrs, channels = self._node, self._node.attrs, len(self._x.shape) - 1
        if channels not in self._reduced:
            self._builder.emit(node.op, (core, dy), attrs, f"{node.name}.of_core", node.origin)
            return
        groups = attrs.groups if isinstance(attrs, ConvAttrs) else 1
        dense = replace(attrs, groups=1) if isinstance(attrs, ConvAttrs) else attrs
        inner = self._builder.emit(node.op, (core, dy), dense, f"{node.name}.of_core", node.origin)
        self._emit("SubspaceGradWeight", (inner, self._subspaces[channels]), GroupAttrs(groups), "of_weight")

    def _cheaper_below(self, dy: Value, shrinking: Sequence[int]) -> bool:
        """Tell whether a 1x1 convolution's dy is taken into the subspaces of rows and columns, instead of expanding the
        core."""
        down = [(axis, self._reduced[axis]) for axis in shrinking]
        up = [(axis, self._x.shape[axis]) for axis in reversed(shrinking)]
        below, small = _chain_macs(dy.shape, down)
        above, _ = _chain_macs(self._core.shape, up)
        channels = self._core.shape[3]
        return below + math.prod(small) * channels < above + dy.elements * channels

    def kept(self, nodes: Sequence[Node]) -> KeptActivation:
        """Return the report's data on the gradient."""
        x, node = self._x, self._node
        sizes = sum(value.size_bytes for value in self._subspaces.values())
        fixed, integer = self._how.kind == "subspace", bool(self._how.steps)
        shape = x.shape
        if integer:  # two int8 matrices, one per direction; each row has a factor, and those of channels a bias
            rows = {axis: 9 if axis == len(shape) - 1 else 5 for axis in self._reduced}
            sizes = sum(2 * r * shape[axis] + rows[axis] * (r + shape[axis]) for axis, r in self._reduced.items())
        return KeptActivation(
            node.origin or node.name,
            self._how.kind,
            shape,
            tuple(self._reduced.get(axis, shape[axis]) for _, axis in MODES[len(shape)]),
            x.size_bytes,
            self._core.elements if integer else self._core.size_bytes,
            0 if fixed else sizes,
            sum(value.size_bytes for value in self._states),
            sizes if fixed else 0,
            sum(_macs(each) for each in nodes) - _macs(node),
            self._how.error,
            self._how.trials,
        )


def _macs(node: Node) -> int:
    return op_def(node.op).macs(node)


def _chain_macs(shape: tuple[int, ...], steps: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """Count the multiply-accumulates of successive products along axes, which get these lengths; and return the final
    shape."""
    found, total = [*shape], 0
    for axis, length in steps:
        total += math.prod(found) * length
        found[axis] = length
    return total, found


def _is_pointwise(attrs: ConvAttrs) -> bool:
    plain = attrs.strides == (1, 1) and attrs.pads == (0, 0, 0, 0)
    return attrs.kernel == (1, 1) and plain
