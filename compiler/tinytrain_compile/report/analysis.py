"""What a plan's bytes are for: role of every node, content of every buffer over time, and why it is alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from tinytrain_compile.ir.buffers import Buffer, load_of
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of, shown_name
from tinytrain_compile.ops.names import trained

Role = Literal["forward", "backward", "update", "recompute"]
Category = Literal["activations", "gradients", "optimizer", "weights", "accumulators", "scratch", "io", "header"]

CATEGORIES: Mapping[Category, str] = {
    "activations": "activations",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "weights": "updated weights",
    "accumulators": "gradient sums",
    "scratch": "scratch",
    "io": "i/o",
    "header": "header",
}
"""Every category and its name for the user, in the order in which reports list them."""


@dataclass(frozen=True)
class Tenant:
    """One content of a buffer: a value (with its views) from the step that writes it until something replaces it.

    names: the value, then views of it. written_at: None for what is there before the first step.
    read_at: steps that read it, increasing.
    """

    names: tuple[str, ...]
    category: Category
    first_step: int
    last_step: int
    written_at: int | None
    read_at: tuple[int, ...]


@dataclass(frozen=True)
class Holding:
    """A buffer and what it holds, one tenant after the other."""

    buffer: Buffer
    tenants: tuple[Tenant, ...]

    def at(self, step: int) -> Tenant:
        """Return the tenant at a step at which the buffer is live."""
        return next(tenant for tenant in self.tenants if tenant.first_step <= step <= tenant.last_step)


@dataclass(frozen=True)
class Live:
    """A buffer at one step, what it holds then, and why it cannot be given up."""

    buffer: Buffer
    tenant: Tenant
    reason: str


@dataclass(frozen=True, eq=False)
class Analysis:
    """A plan explained. roles and load (live bytes) have one entry per step of plan.order; macs likewise."""

    train: TrainGraph
    plan: MemoryPlan
    roles: tuple[Role, ...]
    load: tuple[int, ...]
    macs: tuple[int, ...]
    holdings: tuple[Holding, ...]

    def breakdown(self, step: int) -> dict[Category, int]:
        """Return live bytes at a step by category (all of them, zero included); their sum is load[step]."""
        total: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        for holding in self._live(step):
            total[holding.at(step).category] += holding.buffer.size_bytes
        for holding, saved in self._covered():
            total[holding.tenants[-1].category] -= saved if holding.buffer.last_step == step else 0
        return total

    def category_loads(self) -> dict[Category, list[int]]:
        """Return live bytes at every step by category; `breakdown` for all steps at once."""
        count = len(self.load)
        changes: dict[Category, list[int]] = {category: [0] * (count + 1) for category in CATEGORIES}
        for holding in self.holdings:
            for tenant in holding.tenants:
                changes[tenant.category][tenant.first_step] += holding.buffer.size_bytes
                changes[tenant.category][tenant.last_step + 1] -= holding.buffer.size_bytes
        for holding, saved in self._covered():
            tenant = holding.tenants[-1]
            changes[tenant.category][tenant.last_step] -= saved
            changes[tenant.category][tenant.last_step + 1] += saved
        return {category: list(accumulate(change[:-1])) for category, change in changes.items()}

    def live(self, step: int) -> list[Live]:
        """Return live buffers at a step, largest first, each with its reason."""
        found = [Live(h.buffer, h.at(step), self._reason(h, step)) for h in self._live(step)]
        return sorted(found, key=lambda item: (-item.buffer.size_bytes, item.buffer.offset, item.buffer.name))

    def node_label(self, step: int) -> str:
        """Return `name (Op)`, with the ONNX node if the name does not tell it; untrusted text."""
        if step >= len(self.plan.order):
            return "no step"
        node = self.plan.order[step]
        of = f" of {node.origin}" if node.origin and node.origin not in node.name else ""
        return f"{node.name} ({shown_name(node)}{of})"

    def _live(self, step: int) -> list[Holding]:
        return [h for h in self.holdings if h.buffer.first_step <= step <= h.buffer.last_step]

    def _covered(self) -> list[tuple[Holding, int]]:
        """Return buffers whose last step is the first of one that may cover them, and the bytes that this saves."""
        home = {holding.buffer.name: holding for holding in self.holdings if holding.buffer.kind != "scratch"}
        overs = [holding.buffer.over for holding in self.holdings]
        return [(home[over.name], over.saved_bytes) for over in overs if over is not None]

    def _reason(self, holding: Holding, step: int) -> str:
        permanent = _PERMANENT.get(holding.buffer.kind)
        if holding.buffer.kind == "header":
            return ", ".join([*_in_front(self.plan), _PERMANENT["header"]])
        tenant = holding.at(step)
        if permanent is not None:
            return permanent if tenant.category != "weights" else "updated weight (permanent)"
        if holding.buffer.kind == "scratch":
            return "working memory of this step"
        here = "written here" if tenant.written_at == step else "read here" if step in tenant.read_at else ""
        later = [reader for reader in tenant.read_at if reader > step]
        if not later:
            return here or "kept until the end of the pass"
        name = self.plan.order[later[0]].name
        forward = tenant.category in ("activations", "io")
        wait = f"kept for backward: {name}" if forward and self.roles[later[0]] != "forward" else f"waits for {name}"
        return f"{here}, {wait}" if here else wait


_PERMANENT: Mapping[str, str] = {
    "header": "handle of the generated API",
    "state": "optimizer state (permanent)",
    "accumulator": "gradient sum over the batch (permanent)",
}


def _in_front(plan: MemoryPlan) -> list[str]:
    """Name the calls whose memory no step touches."""
    found = (("m_hear", plan.listening), ("m_infer_open", plan.open))
    return [f"memory of {name}" for name, beside in found if beside is not None]


def analyse(train: TrainGraph, plan: MemoryPlan) -> Analysis:
    """Work out roles, loads and contents of a plan of this training graph."""
    graph = replace(train.graph, nodes=plan.order)  # with its streams
    forward = graph.ancestors((*graph.outputs, train.loss))
    judged = _dependents(graph, train.label.name)
    again = frozenset(run.name for run in plan.remat.runs) if plan.remat is not None else frozenset[str]()
    roles: tuple[Role, ...] = tuple(
        "recompute" if node.name in again else _role(node, forward, judged) for node in plan.order
    )
    trains = train.training_step.graph if train.reads_state_of is not None else graph
    builder = _Tenants(graph, plan, forward, judged, trains.nodes)
    return Analysis(
        train,
        plan,
        roles,
        tuple(load_of(plan.buffers, len(plan.order))),
        tuple(op_def(node.op).macs(node) for node in plan.order),
        tuple(Holding(buffer, builder.of(buffer)) for buffer in plan.buffers),
    )


def work_of(train: TrainGraph) -> tuple[int, int]:
    """Count multiply-accumulates of one step: of outputs and loss, and of all else (second runs too)."""
    forward = train.graph.ancestors((*train.graph.outputs, train.loss))
    counts = [0, 0]
    for node in train.graph.nodes:
        counts[node.name not in forward] += op_def(node.op).macs(node)
    return counts[0], counts[1]


def _dependents(graph: Graph, source: str) -> frozenset[str]:
    """Name the nodes that depend on a value: behind the labels, everything is loss, gradient or update."""
    reached, nodes = {source}, set[str]()
    for node in graph.nodes:
        if any(value.name in reached for value in node.inputs):
            nodes.add(node.name)
            reached.update(value.name for value in node.outputs)
    return frozenset(nodes)


def _role(node: Node, forward: frozenset[str], judged: frozenset[str]) -> Role:
    """Tell the role of a node.

    A mask or an argmax that only the backward pass reads is still computed on the way forward. An update
    makes nothing but new contents of what lives for ever. An int8 error also overwrites its own peak, but
    what it makes is an error: a step of the backward pass.
    """
    if any(out == 0 for out, _ in alias_of(node)):
        return "update"
    return "forward" if node.name in forward or node.name not in judged else "backward"


class _Tenants:
    """Finds who lives in a buffer when."""

    def __init__(
        self,
        graph: Graph,
        plan: MemoryPlan,
        forward: frozenset[str],
        judged: frozenset[str],
        updates: Iterable[Node],
    ) -> None:
        self._producer = {out.name: (step, node) for step, node in enumerate(plan.order) for out in node.outputs}
        self._readers: dict[str, list[int]] = {}
        for step, node in enumerate(plan.order):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value.name, []).append(step)
        self._state = {value.name for value in graph.state}
        self._accumulators = {value.name for value in graph.accumulators}
        self._gradients = judged - forward
        self._trained = {value.name for node in updates if (value := trained(node)) is not None}

    def of(self, buffer: Buffer) -> tuple[Tenant, ...]:
        """Return the tenants of a buffer in order of time; together they span its life."""
        groups = self._groups(buffer)
        if len(groups) <= 1 or buffer.kind in ("header", "state", "accumulator", "scratch"):
            names = tuple(name for group in groups for name in group) or (buffer.name,)
            return (self._tenant(names, buffer, buffer.first_step, buffer.last_step),)
        starts = [buffer.first_step, *(self._born(group[0], buffer) for group in groups[1:]), buffer.last_step + 1]
        return tuple(
            self._tenant(tuple(group), buffer, start, end - 1)
            for group, start, end in zip(groups, starts, starts[1:], strict=False)
            if end > start
        )

    def _groups(self, buffer: Buffer) -> list[list[str]]:
        """Group values by content: a view has its source's, everything else its own; parts are not told apart."""
        if buffer.within:
            return [sorted(buffer.values, key=lambda value: self._born(value, buffer))]
        groups: list[list[str]] = []
        for name in sorted(buffer.values, key=lambda value: self._born(value, buffer)):
            produced = self._producer.get(name)
            source = produced[1].inputs[0].name if produced and op_def(produced[1].op).view else None
            home = next((group for group in groups if source in group), None)
            if home is None:
                groups.append([name])
            else:
                home.append(name)
        return groups

    def _born(self, name: str, buffer: Buffer) -> int:
        return self._producer[name][0] if name in self._producer else buffer.first_step - 1

    def _tenant(self, names: tuple[str, ...], buffer: Buffer, first: int, last: int) -> Tenant:
        written = self._producer.get(names[0])
        readers = sorted({step for name in names for step in self._readers.get(name, ())})
        category = self._category(names[0], buffer)
        return Tenant(names, category, first, last, written[0] if written else None, tuple(readers))

    def _category(self, name: str, buffer: Buffer) -> Category:
        if buffer.kind in ("header", "scratch"):
            return buffer.kind
        if buffer.kind == "state":
            return "weights" if buffer.name in self._trained else "optimizer"
        if buffer.kind == "accumulator":
            return "accumulators"
        if name not in self._producer:
            return "io"
        return "gradients" if self._producer[name][1].name in self._gradients else "activations"
