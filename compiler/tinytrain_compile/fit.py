"""Finds what fits: the ladder of ways to need less, and the deepest update under the limits.

The ladder: some recomputation, then other memories, then a smaller update; every rung is a plan of its own. A flag that
was given is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tinytrain_compile.data import labelled
from tinytrain_compile.errors import CompileError
from tinytrain_compile.external import Externals
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.cost import Choice, Rung
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph, UpdatePlan
from tinytrain_compile.ladder import Means, climb
from tinytrain_compile.ops.qupdate import error_ops
from tinytrain_compile.options import CompileOptions
from tinytrain_compile.plan import (
    CoreModel,
    Lock,
    Memory,
    Planned,
    PlanOptions,
    arena_bound,
    plan_from_lock,
    spread,
    step_cost,
)
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target import Target
from tinytrain_compile.training import (
    SamplesMixError,
    TrainingOptions,
    build_training,
    join_pieces,
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to train: what is updated, its training graph and its memory plan, and how that was chosen.

    one: the training graph of a step of one sample, where train takes several.
    """

    update: UpdatePlan
    train: TrainGraph
    plan: MemoryPlan
    label: str
    choice: Choice
    one: TrainGraph | None = None
    externals: Externals = field(default_factory=Externals)

    @property
    def of_one(self) -> TrainGraph:
        """The training graph of a step of one sample."""
        return self.one or self.train


@dataclass(frozen=True)
class Price:
    """What an update needs by a quick plan, and the rungs that led there."""

    arena_bytes: int
    ps: int
    rungs: tuple[Rung, ...]


def further_memories(target: Target, sizes: Mapping[str, int]) -> tuple[Memory, ...]:
    """Memories of a target by name and size, with what they cost more than the first one; E0107 for one it lacks."""
    first, found = target.memories[0], list[Memory]()
    banks = {bank.name: bank for bank in target.memories[1:] if bank.writable}
    for name, size in sizes.items():
        if name not in banks or size > banks[name].size_bytes:
            what = f"{target.name} has no such memory that a step may write"
            if name in banks:
                what = f"{size} B are asked for, {target.name} has {banks[name].size_bytes} B"
            known = ", ".join(f"{bank.name} ({bank.size_bytes} B)" for bank in banks.values()) or "none"
            raise CompileError("E0107", f"--memory {name}", what, f"further memories of this target: {known}")
        bank = banks[name]
        there, here = 1_000_000 // bank.bytes_per_us, 1_000_000 // first.bytes_per_us
        extra = (max(there - here, 0), max(bank.pj_per_byte - first.pj_per_byte, 0))
        copy = (there + here, bank.pj_per_byte + first.pj_per_byte)
        found.append(Memory(name, size, *extra, *copy, setup_ps=bank.setup_ns * 1000))
    return tuple(found)


def _with_graph(train: TrainGraph, graph: Graph) -> TrainGraph:
    """The training graph with what a plan added to it; a checkpoint's identity stays."""
    if graph is train.graph:
        return train
    return replace(train, graph=graph, before_remat=train.before_remat or train.graph)


def core_model(target: Target) -> CoreModel:
    """The core's prices as the planner takes them."""
    core = target.core
    macs = (core.int8_mac_millicycles, core.float_mac_millicycles)
    return CoreModel(core.clock_mhz, *macs, core.element_millicycles, core.pj_per_cycle)


class Planner:
    """Prices update plans for one model and one set of options."""

    def __init__(self, model: ImportedModel, options: CompileOptions, target: Target, externals: Externals) -> None:
        self.model = model
        self.externals = externals
        self.options = options
        self.target = target
        memories = further_memories(target, options.memories)
        self.means = Means(core_model(target), memories, options.remat, options.optimise, options.max_step_ps)
        self._quick: dict[str, Price] = {}

    def meets(self, arena_bytes: int, ps: int) -> bool:
        """Whether a plan keeps to --arena and --max-step-time."""
        limit, longest = self.options.arena_bytes, self.options.max_step_ps
        return (limit is None or arena_bytes <= limit) and (longest is None or ps <= longest)

    def train(self, update: UpdatePlan, micro_batch: int = 1) -> TrainGraph:
        """The training graph as the user wants it; SamplesMixError for a micro-batch that gives other results."""
        o = self.options
        if o.batch % micro_batch or (micro_batch > 1 and o.accumulate != "exact"):
            raise SamplesMixError(f"not with --batch {o.batch} --accumulate {o.accumulate}")
        try:
            train = self._train(update, micro_batch)
        except CompileError as problem:
            if micro_batch == 1:
                raise
            raise SamplesMixError(problem.what) from problem
        if micro_batch > 1:
            self._check_errors(train, self.train(update))
        return train

    def _check_errors(self, train: TrainGraph, one: TrainGraph) -> None:
        """SamplesMixError unless int8 errors of several samples are those of each: made alike, with known exponents."""
        if train.settled:
            return
        if error_ops(train.graph.nodes) != error_ops(one.graph.nodes):
            raise SamplesMixError("some errors would be computed in another way")
        if self.options.calib is None or not labelled(self.options.calib):
            what = "the first step finds the exponents of errors in its own sample"
            raise SamplesMixError(f"{what}: give --calib with x and y to compile them in")

    def _train(self, update: UpdatePlan, micro_batch: int) -> TrainGraph:
        o = self.options
        rates = (o.learning_rate, o.momentum, o.weight_decay)
        chosen = TrainingOptions(o.loss, o.optimizer, *rates, o.batch, o.accumulate, micro_batch)
        train = build_training(self.model, update, chosen)
        if o.quant == "fp32":
            train = join_pieces(train)
        else:
            train = quantise(train, QuantOptions(o.seed, o.weight_store, o.rescale))
        return self.externals.assigned(train, self.target)

    def _settings(self, train: TrainGraph, quick: bool) -> PlanOptions:
        limit, effort = self.options.arena_bytes, "quick" if quick else "full"
        keep = (train.loss.name,)
        return PlanOptions(limit, self.target.alignment_bytes, seed=self.options.seed, effort=effort, keep=keep)

    def _plan(self, train: TrainGraph, quick: bool, means: Means | None = None) -> tuple[Planned, Choice]:
        means = means or self.means
        planned, rungs = climb(train.graph, self._settings(train, quick), means)
        return planned, Choice(step_cost(planned.plan, means.core), means.objective, means.limit_ps, rungs)

    def full(self, update: UpdatePlan) -> Candidate:
        """The candidate planned with full effort."""
        return self.planned(update, self.train(update))

    def planned(
        self, update: UpdatePlan, train: TrainGraph, means: Means | None = None, quick: bool = False
    ) -> Candidate:
        """The candidate with this training graph."""
        planned, choice = self._plan(train, quick, means)
        graph = _with_graph(train, planned.graph)
        return Candidate(update, graph, planned.plan, update.label, choice, externals=self.externals)

    def locked(self, update: UpdatePlan, lock: Lock) -> Candidate:
        """The candidate with the plan of a lock; CompileError E0106 if that does not match."""
        try:
            train = self.train(update, lock.micro_batch)
        except SamplesMixError as problem:
            what = f"has {lock.micro_batch} samples in a step, which does not fit these options ({problem})"
            raise CompileError(
                "E0106", lock.file, what, "compile without --lock, or with the lock's --batch"
            ) from problem
        settings = PlanOptions(alignment_bytes=self.target.alignment_bytes, keep=(train.loss.name,))
        planned = plan_from_lock(train.graph, lock, settings, self.means.memories)
        choice = Choice(step_cost(planned.plan, self.means.core), None, self.means.limit_ps)
        one = self.train(update) if lock.micro_batch > 1 else None
        graph = _with_graph(train, planned.graph)
        return Candidate(update, graph, planned.plan, update.label, choice, one, self.externals)

    def price(self, spec: str) -> Price:
        """What an update needs, by a quick plan (an upper bound of what a full plan finds)."""
        if spec not in self._quick:
            self._quick[spec] = self._priced(self.train(resolve_update(self.model.graph, spec)))
        return self._quick[spec]

    def unhelped_price(self, spec: str) -> Price | None:
        """What an update needs with nothing computed twice or moved, by a quick plan; None if no plan can fit."""
        train = self.train(resolve_update(self.model.graph, spec))
        means = replace(self.means, remat="off", memories=(), objective=None, limit_ps=None)
        room = self.options.arena_bytes
        if room is not None:
            room += sum(memory.capacity_bytes for memory in self.means.memories)
            once = self.means.remat == "off" and self.means.objective is None
            if arena_bound(train.graph, self._settings(train, True), once) > room:
                return None
        planned, choice = self._plan(train, True, means)
        return Price(planned.plan.arena_bytes, choice.cost.ps, choice.rungs)

    def _priced(self, train: TrainGraph) -> Price:
        planned, choice = self._plan(train, True)
        return Price(planned.plan.arena_bytes, choice.cost.ps, choice.rungs)

    def unhelped(self, candidate: Candidate) -> int:
        """Arena of a candidate that computes nothing twice and moves nothing."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        means = replace(self.means, remat="off", memories=(), objective=None, limit_ps=None)
        return self._plan(train, False, means)[0].plan.arena_bytes

    def moved(self, candidate: Candidate) -> MemoryPlan | None:
        """The candidate with all of the target's memories at hand, if it then fits."""
        limit, keep = self.options.arena_bytes, (candidate.train.loss.name,)
        settings = PlanOptions(limit, self.target.alignment_bytes, seed=self.options.seed, effort="quick", keep=keep)
        whole = {bank.name: bank.size_bytes for bank in self.target.memories[1:] if bank.writable}
        planned = spread(candidate.train.graph, candidate.plan, settings, further_memories(self.target, whole))
        return None if planned is None else planned.plan

    def exact(self, spec: str) -> Candidate:
        """A candidate by its --update text, planned with full effort."""
        return self.full(resolve_update(self.model.graph, spec))


def search_update(planner: Planner, layer_count: int) -> Candidate:
    """The deepest last:N that keeps to the limits, for --update auto; the head alone if even that does not."""
    if planner.options.arena_bytes is None and planner.options.max_step_ps is None:
        return replace(planner.exact("all"), label="auto: all")
    depth, best = deepest(planner, layer_count) or (1, planner.exact("last:1"))
    label = f"last:{depth}"
    if depth < layer_count:
        best = _with_rungs(best, planner.price(f"last:{layer_count}").rungs, label)
    return replace(best, label=f"auto: {label}")


def _with_rungs(candidate: Candidate, above: tuple[Rung, ...], label: str) -> Candidate:
    """What was tried for all layers, then the smaller update that was taken."""
    note = f"{candidate.choice.cost.ps / 1e9:.3g} ms a step"
    rungs = (*above, Rung(f"--update {label}", candidate.plan.arena_bytes, note))
    return replace(candidate, choice=replace(candidate.choice, rungs=rungs))


NEAR, NEAR_TRIES, LIKELY_TRIES = 1.2, 4, 8
"""Depths beyond what quick plans find that are planned with full effort: up to NEAR times what is known to fit, and how
many of these; how many of those that need no more than that."""


def deepest(planner: Planner, layer_count: int) -> tuple[int, Candidate] | None:
    """The largest N found for which the full plan of last:N meets the limits, with that plan; None if none is found.

    Quick plans are bisected first. But a deeper update may need less (what is kept depends on what is trained), so
    every deeper one is planned once more without help, which is cheap, and those that need little more than what fits
    get a full plan, the deepest first. So: log2 N quick plans with help, N without, and LIKELY_TRIES + NEAR_TRIES + 1
    full ones (one more for each depth whose full plan needs more than its quick one, as second runs may).
    """
    depth, found = _by_bisection(planner, layer_count), None
    likely, near = _deeper(planner, depth, layer_count)
    for tries in (likely[:LIKELY_TRIES], near[:NEAR_TRIES]):
        for deeper in tries:
            if found is None or deeper > found[0]:
                found = _full(planner, deeper) or found
    while found is None and depth > 0:
        found, depth = _full(planner, depth), depth - 1
    return found


def _full(planner: Planner, depth: int) -> tuple[int, Candidate] | None:
    candidate = planner.exact(f"last:{depth}")
    return (depth, candidate) if planner.meets(candidate.plan.arena_bytes, candidate.choice.cost.ps) else None


def _by_bisection(planner: Planner, layer_count: int) -> int:
    """A depth whose quick plan meets the limits, 0 if none is found: the deepest, if deeper always needed more."""
    low, high = 0, layer_count + 1
    first = high - 1
    while high - low > 1:
        middle, first = first or (low + high) // 2, 0
        price = planner.price(f"last:{middle}")
        low, high = (middle, high) if planner.meets(price.arena_bytes, price.ps) else (low, middle)
    return low


def _deeper(planner: Planner, depth: int, layer_count: int) -> tuple[list[int], list[int]]:
    """Depths beyond one that fits that need no more than it without help, deepest first; and slightly more, by need."""
    o = planner.options
    known = planner.unhelped_price(f"last:{depth}") if 0 < depth < layer_count else None
    room = max(o.arena_bytes or 0, known.arena_bytes if known is not None else 0)
    likely, near = list[int](), list[tuple[int, int]]()
    for deeper in range(layer_count, depth, -1):
        price = planner.unhelped_price(f"last:{deeper}")
        if price is None or (o.max_step_ps is not None and price.ps > o.max_step_ps):
            continue
        if o.arena_bytes is None or price.arena_bytes <= room:
            likely.append(deeper)
        elif price.arena_bytes <= NEAR * room:
            near.append((price.arena_bytes, deeper))
    return likely, [deeper for _, deeper in sorted(near)]
