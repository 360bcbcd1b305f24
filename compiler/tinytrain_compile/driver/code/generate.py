"""From a plan to the C project, for the driver: lower, emit, and under --flash-budget go round until it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.driver.candidates.ladder import core_model
from tinytrain_compile.driver.candidates.planner import Candidate
from tinytrain_compile.driver.checks.project import prefix_of
from tinytrain_compile.driver.code.mix import Mix, Variant, choose_copies, choose_mix
from tinytrain_compile.driver.trial import like_one
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.kernels import CodeChoice, Copied, KernelCache, KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, SourceBundle, TrainGraph
from tinytrain_compile.ir.summary import SlicedStep, Summary
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.int8.conv_form import transposed_copy
from tinytrain_compile.ops.names import is_prepared
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import parts_of
from tinytrain_compile.plan.slices import sliced, step_pieces
from tinytrain_compile.report.trained import batch_text
from tinytrain_compile.target.model import Target


def in_one_image(largest: Candidate, smaller: Sequence[Candidate]) -> tuple[tuple[TrainGraph, MemoryPlan], ...]:
    """Return the smaller ones with the exponents of the largest, and names that no other plan has for another node."""
    known = {node.name: node for node in largest.plan.all_nodes}
    found = list[tuple[TrainGraph, MemoryPlan]]()
    for number, one in enumerate(smaller):
        names = {n.name: f"{n.name}@plan{number}" for n in one.plan.all_nodes if known.get(n.name, n) != n}
        plan = _renamed(one.plan, names)
        if (alone := plan.inference) is not None:
            plan = replace(plan, inference=replace(alone, plan=_renamed(alone.plan, names)))
        known.update((node.name, node) for node in plan.all_nodes)
        found.append((like_one(one.train, largest.train), plan))
    return tuple(found)


def _renamed(plan: MemoryPlan, names: dict[str, str]) -> MemoryPlan:
    def named(node: Node) -> Node:
        return replace(node, name=names.get(node.name, node.name))

    def placed(buffer: Buffer) -> Buffer:
        return replace(buffer, name=names.get(buffer.name, buffer.name)) if buffer.kind == "scratch" else buffer

    scratch = {names.get(name, name): offset for name, offset in plan.scratch_offsets.items()}
    order, buffers = tuple(map(named, plan.order)), tuple(map(placed, plan.buffers))
    return replace(plan, order=order, buffers=buffers, scratch_offsets=scratch)


ROUNDS = 6
"""Mixtures that are compiled, at most, before all of the code is small."""
LEAST_SAVING = 3
"""--code auto: the flash over what small code must save of it, since a step takes 1.5 to 1.8 times the instructions."""

Report = Callable[[int, int], None]
"""(nodes lowered, all nodes)"""


@dataclass(frozen=True, eq=False)
class Generated:
    """The C project, the kernels that it calls, and how its code was chosen."""

    kernels: KernelSet
    bundle: SourceBundle
    choice: CodeChoice

    def summarised(self, summary: Summary) -> Summary:
        """Return the summary with what the code is made of."""
        summary = replace(summary, calls=self.kernels.calls, code=self.choice)
        return summary.with_fact(SlicedStep(self.bundle.parts)) if self.bundle.parts else summary


class Generator:
    """Lowers and emits one planned training step in several ways."""

    def __init__(
        self,
        candidate: Candidate,
        options: CompileOptions,
        target: Target,
        report: Report,
        smaller: Sequence[Candidate] = (),
    ) -> None:
        slices = options.slices == "on"
        self._candidate, *others = [_pausing(one, target) if slices else one for one in (candidate, *smaller)]
        self._options, self._target, self._report = options, target, report
        self._smaller = in_one_image(self._candidate, others) if others else ()
        plans = (*(plan for _, plan in self._smaller), self._candidate.plan) if slices else ()
        self._sliced = tuple(sliced(plan, core_model(target)) for plan in plans)
        self._prefix = prefix_of(options)
        self._cache = KernelCache()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those of the step, and of an inference of one sample, that call a kernel, in the plans' order."""
        known = {node.name: node for node in self._all_nodes}
        definitions = ((node, op_def(node.op)) for node in known.values())
        return tuple(node for node, op in definitions if not (op.view or op.page))

    @property
    def _all_nodes(self) -> tuple[Node, ...]:
        plans = (self._candidate.plan, *(plan for _, plan in self._smaller))
        return tuple(node for plan in plans for node in plan.all_nodes)

    @property
    def frozen(self) -> frozenset[str]:
        """Constants that no step changes."""
        graph = self._candidate.train.graph
        return frozenset(graph.constants) - {value.name for value in graph.state}

    def lowered(self, small: bool, transposed: Iterable[Node] = ()) -> KernelSet:
        """Return a kernel for every node, or for those of `transposed` that read their weight transposed."""
        from tinytrain_compile.lower import LowerOptions, lower_nodes  # imports tvm: 2-4 s, only when it is needed
        from tinytrain_compile.lower.kernels import SIZE, SPEED, kernel_context

        chosen = tuple(transposed)
        fused = not self._candidate.train.integer
        context = kernel_context(self._target.features, fused, SIZE if small else SPEED)
        names = frozenset(node.name for node in chosen)
        long = frozenset(name for plan in self._sliced for name in plan.long)
        lowering = LowerOptions(self._prefix, context, fused, names, in_turns=long)
        return lower_nodes(chosen or self.nodes, lowering, self._report, self._cache)

    def shared(self, kernels: KernelSet) -> KernelSet:
        """Return the same with small kernels that share functions."""
        from tinytrain_compile.lower import share_kernels

        return share_kernels(kernels, self._prefix)

    def emitted(self, kernels: KernelSet, small_calls: bool) -> SourceBundle:
        """Return the project."""
        train, options, externals = self._candidate.train, self._options, self._candidate.externals
        settings = (
            f"target {self._target.name}, {options.quant}, optimizer {options.optimizer}, {batch_text(train)}",
            f"update {self._candidate.label}",
        )
        emit = EmitOptions(
            self._prefix,
            self._target.alignment_bytes,
            settings,
            runtime_headers(),
            small_calls=small_calls,
            fma=self._target.features.fma,
            external={} if externals is None else externals.used(self._all_nodes),
            epochs=options.epochs,
            warm_up=options.warm_up,
            board=None if self._target.board is None else self._target,
            parts=parts_of(options, train),
            pieces=tuple(step_pieces(plan, kernels.turns, core_model(self._target)) for plan in self._sliced),
            smaller=self._smaller,
        )
        return emit_project(train, self._candidate.plan, kernels, emit)


def generate(
    candidate: Candidate,
    options: CompileOptions,
    target: Target,
    report: Report,
    smaller: Sequence[Candidate] = (),
) -> Generated:
    """Return kernels and project as --code and --flash-budget ask. Errors: E0403 if no code that is allowed fits.

    smaller: plans that go into the same project.
    """
    generator = Generator(candidate, options, target, report, smaller)
    if options.flash_budget_bytes is not None:
        return _Budget(generator, options, target, options.flash_budget_bytes).generate()
    if options.code == "auto" and not target.features.mve_int:  # small code has no vectors: docs/fitting.md
        return _weighed(generator, target)
    return _of_one_kind(generator, options.code == "size")


def _of_one_kind(generator: Generator, small: bool) -> Generated:
    """Emit the project whose kernels are all small, or all for speed."""
    kernels = generator.lowered(small)
    kernels = generator.shared(kernels) if small else kernels
    nodes = tuple(kernels.calls) if small else ()
    return Generated(kernels, generator.emitted(kernels, small), CodeChoice("size" if small else "speed", nodes))


def _weighed(generator: Generator, target: Target) -> Generated:
    """Choose small code if code for speed is most of the flash, and a third of the flash is saved; both are
    compiled."""
    from tinytrain_compile.verify.build import flash_sizes
    from tinytrain_compile.verify.tools import find_tools

    tools = find_tools(target)
    fast, small = (_of_one_kind(generator, kind) for kind in (False, True))
    before, after = (flash_sizes(one.bundle, target, tools) for one in (fast, small))
    most = before.code_bytes > before.const_bytes
    if most and before.total_bytes - after.total_bytes > before.total_bytes / LEAST_SAVING:
        return replace(small, choice=replace(small.choice, other_bytes=before.total_bytes))
    return replace(fast, choice=replace(fast.choice, other_bytes=after.total_bytes))


def least_flash_bytes(candidate: Candidate, options: CompileOptions, target: Target) -> int:
    """Return code and constants of the smallest code that --code allows, compiled for the target."""
    generator = Generator(candidate, options, target, lambda _done, _all: None)
    return _Budget(generator, options, target, 0).least_bytes()


class _Budget:
    """The way to code that fits: all for speed, mixtures, all small; then copies of weights if room is left."""

    def __init__(self, generator: Generator, options: CompileOptions, target: Target, budget_bytes: int) -> None:
        from tinytrain_compile.verify.tools import find_tools

        self._generator, self._code, self._target = generator, options.code, target
        self._budget, self._tools, self._lock = budget_bytes, find_tools(target), options.lock
        self._lowered: dict[bool, KernelSet] = {}

    def generate(self) -> Generated:
        """Return the first that fits."""
        order = {"speed": (False,), "size": (True,)}.get(self._code or "", (False, True))
        found: dict[bool, Variant] = {}
        for small in order:
            found[small] = self._whole(small)
            if found[small].sizes.total_bytes <= self._budget:
                break
        else:
            self._fail(found)
        if len(found) == 1:
            small = order[0]
            return self._with_copies(Mix(frozenset(found[small].kernels.calls) if small else frozenset(), small))
        return self._with_copies(self._mixed(found[False], found[True]))

    def least_bytes(self) -> int:
        """Return bytes with all nodes small, unless that is not allowed."""
        return self._whole(self._code != "speed").sizes.total_bytes

    def _whole(self, small: bool) -> Variant:
        kernels = self._kernels(frozenset(node.name for node in self._generator.nodes) if small else frozenset())
        return self._measured(kernels, small)

    def _measured(self, kernels: KernelSet, small_calls: bool) -> Variant:
        from tinytrain_compile.verify.build import flash_sizes

        return Variant(kernels, flash_sizes(self._generator.emitted(kernels, small_calls), self._target, self._tools))

    def _kernels(self, small_nodes: frozenset[str], transposed: Iterable[Node] = ()) -> KernelSet:
        """Return a mixture; every way of lowering is done once, and only if something needs it."""
        kernels, transposed = KernelSet((), {}), tuple(transposed)
        for small in (False, True):
            wanted = {n.name for n in self._generator.nodes if (n.name in small_nodes) == small}
            if not wanted:
                continue
            if small not in self._lowered:
                self._lowered[small] = self._generator.lowered(small)
            part = self._lowered[small].only(wanted)
            own = [node for node in transposed if node.name in wanted]
            kernels = kernels.joined(part.updated(self._generator.lowered(small, own) if own else part))
        return self._generator.shared(kernels)

    def _mixed(self, fast: Variant, small: Variant) -> Mix:
        """Return the first mixture whose objects fit; where the estimate was too low, the limit is lowered by as
        much."""
        limit = self._budget
        for _ in range(ROUNDS):
            mix = choose_mix(fast, small, self._generator.nodes, limit)
            over = self._measured(self._kernels(mix.nodes), mix.calls).sizes.total_bytes - self._budget
            if over <= 0:
                return mix
            limit -= over
        return Mix(frozenset(small.kernels.calls), True)

    def _with_copies(self, mix: Mix) -> Generated:
        """Return the mixture with as many transposed weights as the rest of the budget holds."""
        generator = self._generator
        free = self._budget - self._measured(self._kernels(mix.nodes), mix.calls).sizes.total_bytes
        copies = choose_copies(generator.nodes, generator.frozen, free)
        while True:
            readers = [n for n in generator.nodes if (w := transposed_copy(n)) is not None and w.name in copies]
            kernels = self._kernels(mix.nodes, readers)
            bundle = generator.emitted(kernels, mix.calls)
            if not copies or self._measured(kernels, mix.calls).sizes.total_bytes <= self._budget:
                break
            copies.popitem()
        names = [node for node in kernels.calls if node in mix.nodes]
        variant = "speed" if not names else "size" if len(names) == len(kernels.calls) else "mixed"
        layers = tuple(Copied(node.origin or node.name, _weight_bytes(node)) for node in copies.values())
        return Generated(kernels, bundle, CodeChoice(variant, tuple(names), self._budget, layers))

    def _fail(self, found: dict[bool, Variant]) -> None:
        """Raise E0403: what is needed, and what would fit."""
        small = True in found
        smallest = found[small].sizes
        what = (
            f"{'the smallest' if small else 'this'} code needs {smallest.total_bytes} B of flash (code "
            f"{smallest.code_bytes} B, constants {smallest.const_bytes} B), the budget is {self._budget} B "
            f"(over by {smallest.total_bytes - self._budget} B)"
        )
        other = smallest if small else self._whole(True).sizes
        ways = f"try --flash-budget {other.total_bytes}"
        if not small:
            ways = "leave out --code" if other.total_bytes <= self._budget else f"{ways} without --code"
        elif smallest.const_bytes < self._budget:
            ways += ", or train fewer layers (less backward code)"
        if self._lock is not None and any(map(is_prepared, self._generator.nodes)):
            what += "; weights lie prepared in flash, as the plan of the lock has them"
            ways = f"compile without --lock {self._lock.name}, whose plan is for more flash, or {ways}"
        raise CompileError("E0403", "--flash-budget", what, ways)


def _pausing(candidate: Candidate, target: Target) -> Candidate:
    """Return the candidate with streams that may pause: they take as long, so that cutting the plan again finds the
    same parts."""
    return replace(candidate, plan=sliced(candidate.plan, core_model(target)).plan)


def _weight_bytes(node: Node) -> int:
    weight = transposed_copy(node)
    return 0 if weight is None else weight.size_bytes
