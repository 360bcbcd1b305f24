"""Finds what fits: the ladder of ways to need less, the deepest update under the limits, and priced ways out.

The ladder: some recomputation, then other memories, then a smaller update; every rung is a plan of its own. A flag that
was given is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from tinytrain_compile.data import labelled
from tinytrain_compile.errors import CompileError
from tinytrain_compile.external import Externals
from tinytrain_compile.inference import NoRoomError, infer_one
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.cost import Choice, Rung
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph, UpdatePlan
from tinytrain_compile.ir.summary import Suggestion
from tinytrain_compile.ladder import Means, climb
from tinytrain_compile.memories import core_model, further_memories
from tinytrain_compile.ops.qrescale import fractions
from tinytrain_compile.ops.qupdate import error_ops
from tinytrain_compile.options import CompileOptions
from tinytrain_compile.plan import (
    Lock,
    Planned,
    PlanOptions,
    plan_from_lock,
    share_of,
    spread,
    step_cost,
)
from tinytrain_compile.quantize import QuantOptions, WeightStore, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target import Target
from tinytrain_compile.training import (
    Accumulate,
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
        """Samples in a step, unless the arena decides that (`micro_batch.py`)."""
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
            train = self._train(update, o.optimizer, o.batch, o.accumulate, micro_batch)
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

    def _train(
        self,
        update: UpdatePlan,
        optimizer: str,
        batch: int,
        accumulate: Accumulate,
        micro_batch: int = 1,
        store: WeightStore | None = None,
    ) -> TrainGraph:
        o = self.options
        rates = (o.learning_rate, o.momentum, o.weight_decay)
        chosen = TrainingOptions(o.loss, optimizer, *rates, batch, accumulate, micro_batch)
        train = build_training(self.model, update, chosen)
        if o.quant == "int8":
            train = quantise(train, QuantOptions(o.seed, store or o.weight_store, o.rescale))
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

    def full(self, update: UpdatePlan) -> Candidate:
        """The candidate planned with full effort, with as many samples in a step as --micro-batch says; E0101."""
        try:
            return self.planned(update, self.train(update, self.size))
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

    def price(
        self,
        wanted: str | UpdatePlan,
        optimizer: str | None = None,
        batch: int | None = None,
        accumulate: Accumulate | None = None,
    ) -> Price:
        """What an update needs, by a quick plan (an upper bound of what a full plan finds)."""
        spec, o = wanted if isinstance(wanted, str) else wanted.label, self.options
        key = f"{spec}|{optimizer}|{batch}|{accumulate}"
        if key not in self._quick:
            update = resolve_update(self.model.graph, wanted) if isinstance(wanted, str) else wanted
            how = (optimizer or o.optimizer, batch or o.batch, accumulate or o.accumulate)
            try:
                train = self._train(update, *how, 1 if batch or accumulate else self.size)
            except SamplesMixError as problem:
                raise self._refused(problem) from problem
            planned, choice = self._plan(train, True)
            self._quick[key] = Price(planned.plan.arena_bytes, choice.cost.ps, choice.rungs)
        return self._quick[key]

    def without_fractions(self, update: UpdatePlan) -> int:
        """Bytes that an update needs whose int8 weights have no fraction bits."""
        o = self.options
        train = self._train(update, o.optimizer, o.batch, o.accumulate, self.size, store="sr8")
        return self._plan(train, False)[0].plan.arena_bytes

    def recomputed(self, candidate: Candidate, mode: Literal["auto", "min"], quick: bool = True) -> tuple[int, float]:
        """Bytes that a candidate needs with --remat `mode`, and its extra share of MACs."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        planned, _ = self._plan(train, quick, replace(self.means, remat=mode, objective=None, limit_ps=None))
        return planned.plan.arena_bytes, share_of(planned.graph, planned.plan)

    def unhelped(self, candidate: Candidate) -> tuple[int, int]:
        """Arena and modelled time of a candidate that computes nothing twice and moves nothing."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        means = replace(self.means, remat="off", memories=(), objective=None, limit_ps=None)
        planned, choice = self._plan(train, True, means)
        return planned.plan.arena_bytes, choice.cost.ps

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
    depth = deepest(planner, layer_count)
    best: Candidate | None = planner.exact(f"last:{depth}") if depth else None
    while depth < layer_count:
        deeper = planner.exact(f"last:{depth + 1}")  # a full plan may fit where the quick one did not
        if not planner.meets(deeper.plan.arena_bytes, deeper.choice.cost.ps):
            best = best if best is not None else deeper
            break
        best, depth = deeper, depth + 1
    assert best is not None
    label = f"last:{max(depth, 1)}"
    if depth < layer_count:
        best = _with_rungs(best, planner.price(f"last:{layer_count}").rungs, label)
    return replace(best, label=f"auto: {label}")


def _with_rungs(candidate: Candidate, above: tuple[Rung, ...], label: str) -> Candidate:
    """What was tried for all layers, then the smaller update that was taken."""
    note = f"{candidate.choice.cost.ps / 1e9:.3g} ms a step"
    rungs = (*above, Rung(f"--update {label}", candidate.plan.arena_bytes, note))
    return replace(candidate, choice=replace(candidate.choice, rungs=rungs))


def deepest(planner: Planner, layer_count: int) -> int:
    """Largest N for which the quick plan of last:N meets the limits, by bisection (deeper needs more); 0 if none."""

    def meets(depth: int) -> bool:
        price = planner.price(f"last:{depth}")
        return planner.meets(price.arena_bytes, price.ps)

    low, high = 0, layer_count
    if meets(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


NEAR = 1.1
"""A quick plan that needs at most so much of the limit is made again with full effort before it is called too large."""


def suggestions(planner: Planner, candidate: Candidate, layer_count: int, limit: int) -> tuple[Suggestion, ...]:
    """Ways out, each priced by planning it: less to update, a smaller optimizer, no accumulation, a larger arena."""
    found: list[Suggestion] = []
    depth = deepest(planner, layer_count)
    if depth:
        size = planner.price(f"last:{depth}").arena_bytes
        found.append(Suggestion(f"--update last:{depth}", size, f"of {layer_count} layers"))
    found += _recomputing(planner, candidate, limit)
    found += _more_memory(planner, candidate)
    found += _smaller_state(planner, candidate, limit)
    if not depth:
        head = planner.exact("head").plan.arena_bytes
        note = "fits" if head <= limit else "the smallest arena that trains the head"
        found.append(Suggestion(f"--update head --arena {head}", head, note))
    needed = candidate.plan.arena_bytes
    found.append(Suggestion(f"--arena {needed}", needed, "fits as is"))
    return tuple(found)


def faster(planner: Planner, candidate: Candidate, layer_count: int) -> tuple[Suggestion, ...]:
    """Ways out of --max-step-time, each priced by planning it: less to update, a larger arena, more time."""
    found: list[Suggestion] = []
    depth = deepest(planner, layer_count)
    if depth:
        price = planner.price(f"last:{depth}")
        found.append(Suggestion(f"--update last:{depth}", price.arena_bytes, _step(price.ps)))
    alone, cost = planner.unhelped(candidate)
    if alone > candidate.plan.arena_bytes:
        slow = "" if planner.meets(0, cost) else ", still too slow"
        found.append(Suggestion(f"--arena {alone}", alone, f"{_step(cost)}{slow}"))
    longest = -(-candidate.choice.cost.ps // 10**9)
    found.append(Suggestion(f"--max-step-time {longest}ms", candidate.plan.arena_bytes, "as it is"))
    return tuple(sorted(found, key=lambda way: way.note.endswith("slow")))


def _step(ps: int) -> str:
    return f"{ps / 1e9:.4g} ms a step"


def _recomputing(planner: Planner, candidate: Candidate, limit: int) -> list[Suggestion]:
    """More rematerialisation than was allowed, if it fits; else how far it would go."""
    if planner.options.remat in ("auto", "min"):
        return []
    for mode in ("auto", "min"):
        size, share = planner.recomputed(candidate, mode)
        if limit < size <= NEAR * limit:
            size, share = planner.recomputed(candidate, mode, quick=False)
        cost = f"+{share:.0%} MACs a step"
        if size <= limit or mode == "min":
            return [Suggestion(f"--remat {mode}", size, cost if size <= limit else f"{cost}, still over")]
    return []


def _more_memory(planner: Planner, candidate: Candidate) -> list[Suggestion]:
    """What the target's further memories would take, and their price in time by the target's figures."""
    plan = planner.moved(candidate)
    if plan is None:
        return []
    options = " ".join(f"--memory {memory.name}={memory.used_bytes}" for memory in plan.further)
    extra = f"+{plan.extra_ps / 1e9:.3g} ms a step by the target's figures"
    return [Suggestion(options, plan.arena_bytes, extra)]


def _smaller_state(planner: Planner, candidate: Candidate, limit: int) -> list[Suggestion]:
    update = candidate.update
    found: list[Suggestion] = []
    if planner.options.optimizer != "sgd":
        size = planner.price(update, optimizer="sgd").arena_bytes
        gain = f"{planner.options.optimizer} state costs {planner.price(update).arena_bytes - size} B"
        found.append(Suggestion("--optimizer sgd", size, gain if size <= limit else f"{gain}, still over"))
    extra = sum(value.size_bytes for value in fractions(candidate.train.graph.nodes))
    if extra and candidate.plan.arena_bytes - extra <= limit:
        size, cost = planner.without_fractions(update), "noise instead of fraction bits, some accuracy: docs/int8.md"
        found.append(Suggestion("--weight-store sr8", size, cost if size <= limit else f"{cost}, still over"))
    if planner.options.batch > 1 and planner.options.accumulate == "exact":
        over = "no gradient sums, still over"
        size = planner.price(update, batch=1).arena_bytes
        found.append(Suggestion("--batch 1", size, "no gradient sums" if size <= limit else over))
        size = planner.price(update, accumulate="inplace").arena_bytes
        found.append(Suggestion("--accumulate inplace", size, "no gradient sums" if size <= limit else over))
    return found
