"""Finds what fits: the ladder of ways to need less, and the deepest update under the limits.

The ladder: some recomputation, then other memories, then a smaller update; every rung is a plan of its own. A flag that
was given is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tinytrain_compile.compile.external_kernels import Externals
from tinytrain_compile.compile.inference import NoRoomError, infer_one
from tinytrain_compile.compile.ladder import Means, climb
from tinytrain_compile.compile.memories import core_model, further_memories
from tinytrain_compile.compile.options import CompileOptions
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.samples import labelled
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.cost import Choice, Rung
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph, UpdatePlan
from tinytrain_compile.ops.int8.update import error_ops
from tinytrain_compile.plan import (
    Lock,
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


def _with_graph(train: TrainGraph, graph: Graph) -> TrainGraph:
    """The training graph with what a plan added to it; a checkpoint's identity stays."""
    if graph is train.graph:
        return train
    return replace(train, graph=graph, before_remat=train.before_remat or train.graph)


class Planner:
    """Prices update plans for one model and one set of options."""

    def __init__(self, model: ImportedModel, options: CompileOptions, target: Target, externals: Externals) -> None:
        self.model = model
        self.externals = externals
        self.options = options
        self.target = target
        memories = further_memories(target, options.memories)
        self.means = Means(core_model(target), memories, options.remat, options.optimise, options.max_step_ps)
        self.size = options.micro_batch if isinstance(options.micro_batch, int) else 1
        """Samples in a step, unless the arena decides that (`compile/micro_batch.py`)."""
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
        if o.quant == "int8":
            train = quantise(train, QuantOptions(o.seed, o.weight_store, o.rescale))
        else:
            train = join_pieces(train)
        return self.externals.assigned(train, self.target)

    def _settings(self, train: TrainGraph, quick: bool) -> PlanOptions:
        limit, effort = self.options.arena_bytes, "quick" if quick else "full"
        keep = (train.loss.name,)
        return PlanOptions(limit, self.target.alignment_bytes, seed=self.options.seed, effort=effort, keep=keep)

    def _plan(self, train: TrainGraph, quick: bool, means: Means | None = None) -> tuple[Planned, Choice]:
        means = means or self.means
        planned, rungs = climb(train.graph, self._settings(train, quick), means)
        return planned, Choice(step_cost(planned.plan, means.core), means.objective, means.limit_ps, rungs)

    def _asked(self, update: UpdatePlan) -> TrainGraph:
        """The training graph with as many samples in a step as --micro-batch says; E0101 if that cannot be."""
        try:
            return self.train(update, self.size)
        except SamplesMixError as problem:
            raise self._refused(problem) from problem

    def full(self, update: UpdatePlan) -> Candidate:
        """The candidate planned with full effort, with as many samples in a step as --micro-batch says; E0101."""
        try:
            return self.planned(update, self._asked(update))
        except SamplesMixError as problem:
            raise self._refused(problem) from problem

    def _refused(self, problem: Exception) -> CompileError:
        where = f"--micro-batch {self.size}"
        return CompileError("E0101", where, str(problem), "leave it out: a call then takes one sample")

    def planned(
        self, update: UpdatePlan, train: TrainGraph, means: Means | None = None, quick: bool = False
    ) -> Candidate:
        """The candidate with this training graph."""
        planned, choice = self._plan(train, quick, means)
        graph = _with_graph(train, planned.graph)
        candidate = Candidate(update, graph, planned.plan, update.label, choice, externals=self.externals)
        return candidate if quick else self._with_one(candidate)

    def _with_one(self, candidate: Candidate) -> Candidate:
        """With the training graph of one sample and its inference, where a step takes several; SamplesMixError."""
        train, plan = candidate.train, candidate.plan
        if train.micro_batch == 1:
            return candidate
        one = self.train(candidate.update)
        try:
            inference = infer_one(one, train, plan, self._settings(train, quick=True))
        except NoRoomError as problem:
            raise SamplesMixError(str(problem)) from problem
        return replace(candidate, one=one, plan=replace(plan, inference=inference))

    def locked(self, update: UpdatePlan, lock: Lock) -> Candidate:
        """The candidate with the plan of a lock; CompileError E0106 if that does not match."""
        if self.options.micro_batch not in (None, lock.micro_batch):
            what = f"has {lock.micro_batch} samples in a step, not --micro-batch {self.options.micro_batch}"
            raise CompileError("E0106", lock.file, what, "leave --micro-batch out, or compile without --lock")
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
        graph = _with_graph(train, planned.graph)
        candidate = Candidate(update, graph, planned.plan, update.label, choice, externals=self.externals)
        return self._with_one(candidate)

    def price(self, spec: str) -> Price:
        """What an update needs, by a quick plan (an upper bound of what a full plan finds)."""
        if spec not in self._quick:
            planned, choice = self._plan(self._asked(resolve_update(self.model.graph, spec)), True)
            self._quick[spec] = Price(planned.plan.arena_bytes, choice.cost.ps, choice.rungs)
        return self._quick[spec]

    def unhelped_price(self, spec: str) -> Price | None:
        """What an update needs with nothing computed twice or moved, by a quick plan; None if no plan can fit."""
        train = self._asked(resolve_update(self.model.graph, spec))
        means = replace(self.means, remat="off", memories=(), objective=None, limit_ps=None)
        room = self.options.arena_bytes
        if room is not None:
            room += sum(memory.capacity_bytes for memory in self.means.memories)
            once = self.means.remat == "off" and self.means.objective is None
            if arena_bound(train.graph, self._settings(train, True), once) > room:
                return None
        planned, choice = self._plan(train, True, means)
        return Price(planned.plan.arena_bytes, choice.cost.ps, choice.rungs)

    def could_fit(self, candidate: Candidate) -> bool:
        """Whether --arena may hold the candidate's graph with any second runs: what is there for good says no."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        limit = self.options.arena_bytes
        return limit is None or arena_bound(train.graph, self._settings(train, True), once=False) <= limit

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
