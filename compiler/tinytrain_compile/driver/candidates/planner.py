"""Builds and prices ways to train: the training graph of an update, its memory plan, and what that needs of all limits.

A candidate is priced here alone: its arena and the time of a step by its plan, its flash by compiling its code, each
once. `driver/search/choose.py` searches among candidates, `driver/search/fit.py` prices other options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tinytrain_compile.data.samples import labelled
from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.inference import NoRoomError, infer_one, infer_open
from tinytrain_compile.driver.candidates.ladder import MANY_NODES, climb, further_memories, wish_of
from tinytrain_compile.driver.candidates.low_rank import LowRankChoice
from tinytrain_compile.driver.checks.lines import check_lines
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.code.generate import least_flash_bytes, surely_below
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import Attempt, PlanChoice
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Inference, Listening, MemoryPlan, TrainGraph, UpdatePlan
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.names import error_ops
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import asked_parts
from tinytrain_compile.plan.lock import Lock, plan_from_lock
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.options import Aim, PlanOptions, Wish
from tinytrain_compile.plan.planner import Planned, arena_bound, plan_graph
from tinytrain_compile.plan.prepared import prepared_as_locked
from tinytrain_compile.plan.price import step_cost
from tinytrain_compile.plan.streams.rewrite import with_lines, with_streams, without_lines, without_streams
from tinytrain_compile.plan.streams.search import bound_with_streams, may_stream
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import layers_of, resolve_update
from tinytrain_compile.target.model import Target
from tinytrain_compile.training import (
    SamplesMixError,
    build_training,
    fuse_updates,
    join_pieces,
    mask_clips,
    stack_products,
)


@dataclass(frozen=True)
class Price:
    """What an update needs by a quick plan."""

    arena_bytes: int
    ps: int


def _price(candidate: Candidate) -> Price:
    return Price(candidate.plan.arena_bytes, candidate.choice.cost.ps)


MOST_COMPILED = 8
"""Candidates of a search whose code is compiled, up to two of an update: some ten seconds each, of MCUNet. None that
would need one more is chosen."""


def _with_graph(train: TrainGraph, planned: Graph) -> TrainGraph:
    """Return the training graph with what a plan added to it (its streams are in the plan alone); the identity
    stays."""
    graph = without_lines(without_streams(planned))
    if planned is train.graph or sorted(n.name for n in graph.nodes) == sorted(n.name for n in train.graph.nodes):
        return train
    return replace(train, graph=graph, before_remat=train.before_remat or train.graph)


_OF_PLANS = ("update", "arena_bytes", "max_step_ps", "remat", "stream", "memories", "optimise")
"""Options that a training graph does not depend on, with the update that is asked for: so such planners share them."""


@dataclass(frozen=True, eq=False)
class _Made:
    """Cache of the training graphs and plans made so far.

    named, trains: updates and training graphs by the text of --update. plans: by that, the wish, and whether it is
    quick; the full plan by the planner's own wish is what a command gets. too_large: texts of which no plan fits.
    flash: bytes of the least code of a candidate, by `Planner.flash_over`.
    """

    named: dict[str, UpdatePlan] = field(default_factory=dict[str, UpdatePlan])
    trains: dict[str, tuple[UpdatePlan, TrainGraph]] = field(default_factory=dict[str, tuple[UpdatePlan, TrainGraph]])
    plans: dict[tuple[str, Wish, bool], Candidate] = field(default_factory=dict[tuple[str, Wish, bool], Candidate])
    too_large: set[str] = field(default_factory=set[str])
    flash: dict[Candidate, int] = field(default_factory=dict[Candidate, int])


class Planner:
    """Builds and prices updates of one model under one set of options, each once.

    A compilation makes one, and others only from it (`with_options`); what they have made lives as long as they do.
    """

    def __init__(
        self, model: ImportedModel, options: CompileOptions, target: Target, externals: Externals | None = None
    ) -> None:
        self.model = model
        self.externals = externals
        self.options = options
        self.target = target
        self.wish = wish_of(options, target)
        self.size = options.micro_batch if isinstance(options.micro_batch, int) else 1
        """Samples in a step, unless the arena decides that (`driver/search/choose.py`)."""
        self.may_shrink = options.flash_budget_bytes is not None and options.quant == "int8"
        """Whether a plan may end below the bounds of its graph: prepared weights need less scratch."""
        self.low_rank = LowRankChoice(model, options)
        self.compiled = 0
        """Candidates whose code was compiled to price it, of MOST_COMPILED; a search begins at 0."""
        self.flash_lack = dict[str, int | None]()
        """Results of `flash_over` for the updates that `fitting` was asked for, by their texts."""
        self._made = _Made()

    def with_options(self, aim: Aim = "smallest", **changes: Any) -> Planner:
        """Return a planner of the same compilation for other options, which knows what this one has made of the same.

        If only --update differs, that is everything, since it depends on the update that is asked for, and not on which
        one the command names; the same if only --arena differs and the smallest one is searched. If only options of
        plans differ, it is the training graphs. aim: of its wish, if the two do not share plans.
        """
        other, o = Planner(self.model, replace(self.options, **changes), self.target, self.externals), self.options
        if other.options.activations == o.activations:
            other.low_rank = self.low_rank
        if replace(other.options, update=o.update) == o:
            other._made, other.wish = self._made, self.wish
            return other
        if self.wish.is_smallest and replace(other.options, update=o.update, arena_bytes=o.arena_bytes) == o:
            other._made, other.wish = replace(self._made, too_large=set[str]()), self.wish
            return other
        if replace(other.options, **{name: getattr(o, name) for name in _OF_PLANS}) == o:
            other._made = _Made(self._made.named, self._made.trains)
        other.wish = replace(other.wish, aim=aim)
        return other

    @property
    def layer_count(self) -> int:
        """Layers that may be updated: the first one reads the image, of which there may be only rows."""
        if self.options.listen == "only":
            return 1  # no other layer reads what m_hear holds
        return max(len(layers_of(self.model.graph)) - self.options.input_lines, 1)

    def meets(self, arena_bytes: int, ps: int) -> bool:
        """Tell whether a plan keeps to --arena and --max-step-time."""
        limit, longest = self.options.arena_bytes, self.options.max_step_ps
        return (limit is None or arena_bytes <= limit) and (longest is None or ps <= longest)

    @cached_property
    def flash_limit(self) -> int | None:
        """Bytes of flash that models have, by --flash-budget or the board; None: any, or nothing can measure."""
        board, asked = self.target.board, self.options.flash_budget_bytes
        limit = asked if asked is not None or board is None else board.flash_bytes
        if limit is None:
            return None
        from tinytrain_compile.verify.tools import find_tools

        return limit if find_tools(self.target).cross_cc is not None else None

    def emitted_options(self, candidate: Candidate) -> CompileOptions:
        """Return the options with which the code of a candidate is written: with golden samples, which take flash."""
        if self.options.guard is None:
            return self.options
        from tinytrain_compile.driver.golden import with_golden

        return with_golden(self.options, self.model, candidate.train.training_step, candidate.plan)

    def flash_over(self, candidate: Candidate) -> int | None:
        """Return by how many bytes a candidate's least code is above the flash limit, 0 if it fits.

        The least is the last rung that --code allows: code for size, before less is trained. None: unknown, since
        enough candidates were compiled.
        """
        limit = self.flash_limit
        if limit is None or surely_below(candidate, limit):
            return 0
        if candidate not in self._made.flash:
            if self.compiled == MOST_COMPILED:
                return None
            self.compiled += 1
            rows = any(map(takes_lines, candidate.plan.order))  # a plan with nothing that helps reads the whole image
            options = replace(self.emitted_options(candidate), input_lines=rows)
            self._made.flash[candidate] = least_flash_bytes(candidate, options, self.target)
        return max(0, self._made.flash[candidate] - limit)

    def train(self, update: UpdatePlan, micro_batch: int = 1) -> TrainGraph:
        """Return the training graph as the user wants it; SamplesMixError for a micro-batch that gives other
        results."""
        o = self.options
        if o.batch % micro_batch or (micro_batch > 1 and o.accumulate != "exact"):
            raise SamplesMixError(f"not with --batch {o.batch} --accumulate {o.accumulate}")
        try:
            train = self._train(self._with_copies(update, micro_batch), micro_batch)
        except CompileError as problem:
            if micro_batch == 1:
                raise
            self.train(update)  # what one sample is refused for as well is said as it is
            raise SamplesMixError(problem.what) from problem
        if micro_batch > 1:
            self._check_errors(train, update)
        return train

    def _with_copies(self, update: UpdatePlan, micro_batch: int) -> UpdatePlan:
        """Return the update with ranks for every layer that keeps a low-rank copy of its input."""
        if self.options.activations == "exact" and not update.activations:
            return update
        return self.low_rank.applied(update, micro_batch)

    def _check_errors(self, train: TrainGraph, update: UpdatePlan) -> None:
        """Raise SamplesMixError unless int8 errors of several samples are those of each: made alike, with known
        exponents."""
        if train.exponents_known:
            return
        one = self._train(replace(update, activations={}), 1)  # errors do not see what layers keep
        if error_ops(train.graph.nodes) != error_ops(one.graph.nodes):
            raise SamplesMixError("some errors would be computed in another way")
        if self.options.calib is None or not labelled(self.options.calib, self.model):
            what = "the first step finds the exponents of errors in its own sample"
            raise SamplesMixError(f"{what}: give --calib with x and y to compile them in")

    def _train(self, update: UpdatePlan, micro_batch: int) -> TrainGraph:
        o = self.options
        fpu = self.target.features.fpu
        train = build_training(self.model, update, training_options(o, self.model, o.batch, micro_batch, fpu))
        if o.quant == "int8":
            train = mask_clips(quantise(train, QuantOptions(o.seed, o.weight_store, o.rescale == "on")))
        train = join_pieces(train)
        train = self._fused(train if self.externals is None else self.externals.assigned(train, self.target))
        for part in asked_parts(o):
            train = part.with_state(train)
        return train if o.inference_only else self.heard(train)

    def _fused(self, train: TrainGraph) -> TrainGraph:
        """Fuse updates, behind stacked gradients of weights that several layers share if these need no larger arena."""
        fused, stacked = fuse_updates(train), stack_products(train)
        if stacked is train:
            return fused
        stacked = fuse_updates(stacked)
        quick = PlanOptions(None, self.target.alignment_bytes, effort="quick", keep=(train.loss.name,))
        apart, together = (plan_graph(each.graph, quick).plan.arena_bytes for each in (fused, stacked))
        return stacked if together <= apart else fused

    def heard(self, train: TrainGraph) -> TrainGraph:
        """Return what is left of a step or an inference behind the pass on a stream, if --listen only asks for that."""
        if self.options.listen != "only":
            return train
        from tinytrain_compile.driver.candidates.heard import on_heard  # only if it is asked for (ADR 49)

        return on_heard(train, self._heard(train))

    def settings(self, train: TrainGraph, quick: bool) -> PlanOptions:
        """Return how a training graph is planned: by list schedules and greedy placement if that must be quick."""
        o, effort, keep = self.options, "quick" if quick else "full", (train.loss.name,)
        settings = PlanOptions(o.arena_bytes, self.target.alignment_bytes, seed=o.seed, effort=effort, keep=keep)
        beside = self._beside(train)
        return replace(settings, header_bytes=beside[-1].plan.arena_bytes) if beside else settings

    def _beside(self, train: TrainGraph) -> tuple[Inference, ...]:
        """Return the passes whose memory lies in front of all that the step uses, each behind the one before."""
        found: list[Inference] = [] if self.options.listen == "off" else [self._heard(train)]
        if self.options.slices == "infer":
            header = found[0].plan.arena_bytes if found else PlanOptions.header_bytes
            alone = PlanOptions(None, self.target.alignment_bytes, header, seed=self.options.seed)
            found.append(infer_open(train, alone))
        return tuple(found)

    def _heard(self, train: TrainGraph) -> Listening:
        """Return the pass on a stream beside a step; it lies in front of all that the step uses."""
        from tinytrain_compile.driver.candidates.listen import listen  # only if it is asked for (ADR 49)

        o = self.options
        return listen(train.on_windows, self.model, o.listen, o.seed, self.target.alignment_bytes)

    def _as_planned(self, train: TrainGraph) -> Graph:
        """Return the graph that a plan is of, before streams: its image may come row by row."""
        return with_lines(train.graph, self.wish.as_bytes) if self.wish.lines else train.graph

    def _asked(self, spec: str) -> tuple[UpdatePlan, TrainGraph]:
        """Return an update and its training graph with as many samples in a step as --micro-batch says; E0113."""
        if spec not in self._made.trains:
            update = self._made.named.get(spec) or resolve_update(self.model.graph, spec)
            try:
                self._made.trains[spec] = update, self.train(update, self.size)
            except SamplesMixError as problem:
                raise self._refused(problem) from problem
        return self._made.trains[spec]

    def named(self, update: UpdatePlan) -> str:
        """Return a text by which the other methods know this update from now on: its label, which no --update may be,
        with a number behind it where another update has that label already."""
        text, number = update.label, 1
        while self._made.named.setdefault(text, update) != update:
            number += 1
            text = f"{update.label} ({number})"
        return text

    def training(self, spec: str) -> TrainGraph:
        """Return the training graph of an update by its --update text; E0113 if --micro-batch cannot be."""
        return self._asked(spec)[1]

    # ---- plans of an update, each made once -------------------------------------------------------------------------

    def _planned(self, spec: str, wish: Wish, quick: bool) -> Candidate:
        key = spec, wish, quick
        if key not in self._made.plans:
            try:
                self._made.plans[key] = self.planned(*self._asked(spec), wish, quick)
            except SamplesMixError as problem:
                raise self._refused(problem) from problem
        return self._made.plans[key]

    def plain(self, spec: str) -> Candidate:
        """Return a quick plan of an update with nothing that helps."""
        return self._planned(spec, replace(self.wish.alone, stream="off", lines=False), True)

    def sketch(self, spec: str) -> Candidate:
        """Return a quick plan of an update in one memory, by rows if that helps, nothing twice."""
        stream = "min" if self.wish.stream == "auto" and self.wish.limit_ps is None else self.wish.stream
        return self._planned(spec, replace(self.wish.alone, stream=stream, aim="price"), True)

    def price(self, spec: str) -> Price:
        """Return what an update needs by a quick plan."""
        return _price(self._planned(spec, replace(self.wish, aim="price"), True))

    def unhelped_price(self, spec: str) -> Price | None:
        """Return the same with nothing computed twice or moved; None if no plan can fit."""
        return None if self.impossible(spec) else _price(self._planned(spec, self.wish.alone, True))

    def exact(self, spec: str) -> Candidate:
        """Return a candidate by its --update text, planned with full effort; E0113 if --micro-batch cannot be."""
        return self._planned(spec, self.wish, False)

    def fitting(self, spec: str, again: bool = False) -> Candidate | None:
        """Return `exact` if it keeps to the limits, without the search for the smallest arena, which is most of the
        work: so one that only such a search would find is not found.

        Flash is priced first if a plan is a search: of the update with nothing that helps, which has hardly more code.
        again: look for second runs row by row in large graphs too, if this is the first plan of the update.
        """
        made, key = self._made, (spec, self.wish, False)
        if key not in made.plans and spec not in made.too_large:
            if self._too_large_at_once(spec):
                return None
            found = self._planned(spec, replace(self.wish, aim="fit" if again else "fit soon"), False)
            if not self._keeps(found):
                made.too_large.add(spec)
            # Further memories come last, so there the smallest arena decides what the plan is.
            elif not (self.wish.memories and self._keeps(self.exact(spec))):
                made.plans[key] = found
        known = made.plans.get(key)
        return known if known is not None and self._keeps(known) and self._in_flash(spec, known) else None

    def _too_large_at_once(self, spec: str) -> bool:
        """Tell before a plan that is a search whether flash refuses an update."""
        if self.flash_limit is None or not self.wish.searches:
            return False
        try:
            return not self._in_flash(spec, self.with_inference(self.plain(spec)))
        except SamplesMixError:
            return False

    def _in_flash(self, spec: str, candidate: Candidate) -> bool:
        self.flash_lack[spec] = self.flash_over(candidate)
        return self.flash_lack[spec] == 0

    def _keeps(self, candidate: Candidate) -> bool:
        return self.meets(candidate.plan.arena_bytes, candidate.choice.cost.ps)

    def keeps(self, candidate: Candidate) -> bool:
        """Tell whether a candidate keeps to all limits: of the arena, of the time of a step, and of flash."""
        return self._keeps(candidate) and self.flash_over(candidate) == 0

    def _refused(self, problem: Exception) -> CompileError:
        where = f"--micro-batch {self.size}"
        return CompileError("E0113", where, str(problem), "leave it out: a call then takes one sample")

    def planned(
        self, update: UpdatePlan, train: TrainGraph, wish: Wish | None = None, quick: bool = False
    ) -> Candidate:
        """Plan this training graph. wish: without it the options'. SamplesMixError if one sample has no room beside."""
        wish = wish or self.wish
        if not train.graph.nodes:  # m_hear computes all that there is
            wish = replace(wish.alone, stream="off")
        planned, attempts = climb(train.graph, self.settings(train, quick), wish)
        candidate = self._candidate(update, train, planned, wish, attempts)
        return candidate if quick else self.with_inference(candidate)

    def _candidate(
        self, update: UpdatePlan, train: TrainGraph, planned: Planned, wish: Wish, attempts: tuple[Attempt, ...] = ()
    ) -> Candidate:
        if wish.lines:
            check_lines(train, planned.plan, self.model, self.options)
        choice = PlanChoice(step_cost(planned.plan, wish.core), wish.objective, wish.limit_ps, attempts)
        graph, update = _with_graph(train, planned.graph), self._with_copies(update, train.micro_batch)
        return Candidate(update, graph, planned.plan, choice, externals=self.externals)

    def with_inference(self, candidate: Candidate) -> Candidate:
        """Add the training graph of one sample and its inference, if a step takes several; SamplesMixError."""
        train, plan = candidate.train, candidate.plan
        if self.options.listen != "off":
            plan = replace(plan, listening=self._heard(train))
        if self.options.slices == "infer":
            plan = replace(plan, open=self._beside(train)[-1])
        candidate = replace(candidate, plan=plan)
        if train.micro_batch == 1:
            return candidate
        one = self.with_options(dropout="off").train(candidate.update)
        try:
            inference = infer_one(one, train, plan, self.settings(train, quick=True))
        except NoRoomError as problem:
            raise SamplesMixError(str(problem)) from problem
        return replace(candidate, one=one, plan=replace(plan, inference=inference))

    def locked(self, update: UpdatePlan, lock: Lock) -> Candidate:
        """Return the candidate with the plan of a lock; CompileError E0106 if that does not match."""
        if self.options.micro_batch not in (None, lock.micro_batch):
            what = f"has {lock.micro_batch} samples in a step, not --micro-batch {self.options.micro_batch}"
            raise CompileError("E0106", lock.file, what, "leave --micro-batch out, or compile without --lock")
        try:
            train = prepared_as_locked(self.train(update, lock.micro_batch), lock, self.target.features.mve_int)
        except SamplesMixError as problem:
            what = f"has {lock.micro_batch} samples in a step, which does not fit these options ({problem})"
            way = "compile without --lock, or with the lock's --batch"
            raise CompileError("E0106", lock.file, what, way) from problem
        settings = PlanOptions(alignment_bytes=self.target.alignment_bytes, keep=(train.loss.name,))
        planned = plan_from_lock(self._as_planned(train), lock, settings, self.wish.memories)
        return self.with_inference(self._candidate(update, train, planned, self.wish))

    def impossible(self, spec: str) -> bool:
        """Tell whether a bound shows, without a plan, that an update cannot keep to --arena."""
        train, room = self.training(spec), self.options.arena_bytes
        if room is None:
            return False
        room += sum(memory.capacity_bytes for memory in self.wish.memories)
        if sum(value.size_bytes for value in (*train.graph.state, *train.graph.accumulators)) > room:
            return True
        once = self.wish.remat == "off" and self.wish.objective is None
        return not self.may_shrink and self._bound(train, once) > room

    def could_fit(self, candidate: Candidate) -> bool:
        """Tell whether --arena may hold the candidate's graph with any second runs: what is there for good says no."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        limit = self.options.arena_bytes
        return limit is None or self._bound(train, once=False) <= limit

    def _bound(self, train: TrainGraph, once: bool) -> int:
        """Return what no plan of the training graph by these options is below. once: nothing is computed twice."""
        if self.wish.stream != "off" and may_stream(train.graph):  # a node of a stream needs less than it does alone
            return bound_with_streams(self._as_planned(train), self.settings(train, True))
        return arena_bound(train.graph, self.settings(train, True), once)

    def unhelped(self, candidate: Candidate) -> int:
        """Return arena of a candidate that computes nothing twice and moves nothing."""
        train = replace(candidate.train, graph=candidate.train.before_remat or candidate.train.graph)
        return climb(train.graph, self.settings(train, False), self.wish.alone)[0].plan.arena_bytes

    def moved(self, candidate: Candidate) -> MemoryPlan | None:
        """Return the candidate with all of the target's memories at hand, if it then fits; None for very many nodes."""
        if len(candidate.plan.order) > MANY_NODES:
            return None
        settings = self.settings(candidate.train, quick=True)
        whole = {bank.name: bank.size_bytes for bank in self.target.memories[1:] if bank.writable and bank.size_bytes}
        streams = (node for node in candidate.plan.order if node.op == "Stream")
        graph = with_streams(self._as_planned(candidate.train), streams)
        planned = spread(graph, candidate.plan, settings, further_memories(self.target, whole))
        return None if planned is None else planned.plan
