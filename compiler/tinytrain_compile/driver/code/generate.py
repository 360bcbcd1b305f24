"""From a plan to the C project, for the driver: lower, emit, compile to see what the code takes of flash.

The last rungs of the ladder are here (`RUNGS`): kernels for speed, small ones where flash asks for them, all small. The
planner prices the last of them (`least_flash_bytes`), before less is trained; `generate` takes the first that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinytrain_compile.driver.candidate import Candidate, core_model
from tinytrain_compile.driver.checks.project import prefix_of
from tinytrain_compile.driver.code.mix import Mix, Variant, choose_copies, choose_mix
from tinytrain_compile.driver.trial import like_one
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.ir.kernels import CodeChoice, Copied, KernelCache, KernelSet
from tinytrain_compile.ir.stages import SourceBundle
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

if TYPE_CHECKING:
    from tinytrain_compile.verify.build import FlashSizes


RUNGS = {None: (False, True), "auto": (False, True), "speed": (False,), "size": (True,)}
"""--code -> the ways to code that a limit on flash may ask for, in this order: whether all kernels are small. Between
two of them lie mixtures."""
MOST_NODE_BYTES = 8192
"""Code that no node takes: below it nothing need be compiled."""
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
        slices = options.slices != "off"
        self._candidate, *others = [_pausing(one, target) if slices else one for one in (candidate, *smaller)]
        self._options, self._target, self._report = options, target, report
        self._smaller = tuple((like_one(one.train, candidate.train), one.plan) for one in others)
        for part in parts_of(options, candidate.train):
            self._smaller = part.in_one_image(self._candidate.plan, self._smaller)
        plans = (*(plan for _, plan in self._smaller), self._candidate.plan) if slices else ()
        self._sliced = tuple(sliced(plan, core_model(target)) for plan in plans)
        self._prefix, self._cache = prefix_of(options), KernelCache()
        self._lowered: dict[bool, KernelSet] = {}
        self._measured: dict[Mix, Variant] = {}

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

    def whole(self, small: bool) -> Mix:
        """Return the choice of one kind of kernel for all nodes."""
        return Mix(frozenset(node.name for node in self.nodes) if small else frozenset(), small)

    def code(self, mix: Mix) -> Variant:
        """Return a choice of kernels with what it takes of flash: lowered and compiled once."""
        if mix not in self._measured:
            kernels = self.kernels(mix)
            self._measured[mix] = Variant(kernels, self.flash_sizes(self.emitted(kernels, mix.calls)))
        return self._measured[mix]

    def flash_sizes(self, bundle: SourceBundle) -> FlashSizes:
        """Compile a project of this plan for the target, and add up. Errors: E0602."""
        from tinytrain_compile.verify.build import flash_sizes
        from tinytrain_compile.verify.tools import find_tools

        return flash_sizes(bundle, self._target, find_tools(self._target))

    def kernels(self, mix: Mix, transposed: Iterable[Node] = ()) -> KernelSet:
        """Return a mixture; every way of lowering is done once, and only if something needs it.

        transposed: nodes that read their weight transposed.
        """
        kernels, transposed = KernelSet((), {}), tuple(transposed)
        for small in (False, True):
            wanted = {n.name for n in self.nodes if (n.name in mix.nodes) == small}
            if not wanted:
                continue
            if small not in self._lowered:
                self._lowered[small] = self._lower(small)
            part = self._lowered[small].only(wanted)
            own = [node for node in transposed if node.name in wanted]
            kernels = kernels.joined(part.updated(self._lower(small, own) if own else part))
        if not mix.nodes:
            return kernels
        from tinytrain_compile.lower import share_kernels

        return share_kernels(kernels, self._prefix)

    def _lower(self, small: bool, transposed: Iterable[Node] = ()) -> KernelSet:
        """Return a kernel for every node, or for those of `transposed` that read their weight transposed."""
        from tinytrain_compile.lower import LowerOptions, lower_nodes  # imports tvm: 2-4 s, only when it is needed
        from tinytrain_compile.lower.kernels import SIZE, SPEED, kernel_context

        chosen = tuple(transposed)
        fused = not self._candidate.train.integer
        context = kernel_context(self._target.features, fused, SIZE if small else SPEED)
        names = frozenset(node.name for node in chosen)
        long = frozenset(name for plan in self._sliced for name in plan.long)
        lowering = LowerOptions(self._prefix, context, names, in_turns=long)
        return lower_nodes(chosen or self.nodes, lowering, self._report, self._cache)

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
            fma=self._target.features.fma and not train.integer,
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
    candidate: Candidate, options: CompileOptions, target: Target, report: Report, smaller: Sequence[Candidate] = ()
) -> Generated:
    """Return kernels and project as --code and --flash-budget ask. Errors: E0403 if no code that is allowed fits.

    smaller: plans that go into the same project.
    """
    generator, budget = Generator(candidate, options, target, report, smaller), options.flash_budget_bytes
    if budget is not None:
        return _with_copies(generator, _within(generator, options, budget), budget)
    if options.code == "auto" and not target.features.mve_int:  # small code has no vectors: docs/fitting.md
        return _weighed(generator)
    return _made(generator, generator.whole(options.code == "size"))


def _made(generator: Generator, mix: Mix, transposed: Sequence[Node] = ()) -> Generated:
    """Emit the project of a choice of kernels."""
    kernels = generator.kernels(mix, transposed)
    names = tuple(node for node in kernels.calls if node in mix.nodes)
    variant = "speed" if not names else "size" if len(names) == len(kernels.calls) else "mixed"
    return Generated(kernels, generator.emitted(kernels, mix.calls), CodeChoice(variant, names))


def _weighed(generator: Generator) -> Generated:
    """Choose small code if code for speed is most of the flash, and a third of the flash is saved; both are
    compiled."""
    mixes = fast, small = generator.whole(False), generator.whole(True)
    before, after = (generator.code(mix).sizes for mix in mixes)
    saves = before.total_bytes - after.total_bytes > before.total_bytes / LEAST_SAVING
    mix, other = (small, before) if before.code_bytes > before.const_bytes and saves else (fast, after)
    made = _made(generator, mix)
    return replace(made, choice=replace(made.choice, other_bytes=other.total_bytes))


def least_flash_bytes(candidate: Candidate, options: CompileOptions, target: Target) -> int:
    """Return code and constants of the last rung that --code allows, compiled for the target."""
    generator = Generator(candidate, options, target, lambda _done, _all: None)
    return generator.code(generator.whole(RUNGS[options.code][-1])).sizes.total_bytes


def surely_below(candidate: Candidate, limit_bytes: int) -> bool:
    """Tell whether code and constants are below a limit on flash whatever the kernels."""
    constants = sum(array.nbytes for array in candidate.train.graph.constants.values())
    return constants + MOST_NODE_BYTES * len(candidate.plan.order) <= limit_bytes


def _within(generator: Generator, options: CompileOptions, budget_bytes: int) -> Mix:
    """Return the first rung whose objects fit, or a mixture before it. Errors: E0403."""
    rungs = [generator.whole(small) for small in RUNGS[options.code]]
    fitting = next((mix for mix in rungs if generator.code(mix).sizes.total_bytes <= budget_bytes), None)
    if fitting is None:
        raise _too_large(generator, options, budget_bytes)
    return fitting if fitting == rungs[0] else _mixed(generator, rungs[0], fitting, budget_bytes)


def _mixed(generator: Generator, fast: Mix, small: Mix, budget_bytes: int) -> Mix:
    """Return the first mixture whose objects fit; where the estimate was too low, the limit is lowered by as much."""
    limit = budget_bytes
    for _ in range(ROUNDS):
        mix = choose_mix(generator.code(fast), generator.code(small), generator.nodes, limit)
        over = generator.code(mix).sizes.total_bytes - budget_bytes
        if over <= 0:
            return mix
        limit -= over
    return small


def _with_copies(generator: Generator, mix: Mix, budget_bytes: int) -> Generated:
    """Return a choice of kernels with as many transposed weights as the rest of the budget holds."""
    free = budget_bytes - generator.code(mix).sizes.total_bytes
    copies = choose_copies(generator.nodes, generator.frozen, free)
    while True:
        readers = [n for n in generator.nodes if (w := transposed_copy(n)) is not None and w.name in copies]
        made = _made(generator, mix, readers)
        if not copies or generator.flash_sizes(made.bundle).total_bytes <= budget_bytes:
            break
        copies.popitem()
    pairs = ((node, transposed_copy(node)) for node in copies.values())
    layers = tuple(Copied(node.origin or node.name, weight.size_bytes) for node, weight in pairs if weight is not None)
    return replace(made, choice=replace(made.choice, budget_bytes=budget_bytes, copies=layers))


def _too_large(generator: Generator, options: CompileOptions, budget_bytes: int) -> CompileError:
    """Return E0403: what is needed, and what would fit."""
    last = RUNGS[options.code][-1]
    sizes, least = (generator.code(generator.whole(small)).sizes for small in (last, True))
    what = (
        f"{'the smallest' if last else 'this'} code needs {sizes.total_bytes} B of flash (code "
        f"{sizes.code_bytes} B, constants {sizes.const_bytes} B), the budget is {budget_bytes} B "
        f"(over by {sizes.total_bytes - budget_bytes} B)"
    )
    ways = f"try --flash-budget {least.total_bytes}"
    if not last:
        ways = "leave out --code" if least.total_bytes <= budget_bytes else f"{ways} without --code"
    elif sizes.const_bytes < budget_bytes:
        ways += ", or train fewer layers (less backward code)"
    if options.lock is not None and any(map(is_prepared, generator.nodes)):
        what += "; weights lie prepared in flash, as the plan of the lock has them"
        ways = f"compile without --lock {options.lock.name}, whose plan is for more flash, or {ways}"
    return CompileError("E0403", "--flash-budget", what, ways)


def _pausing(candidate: Candidate, target: Target) -> Candidate:
    """Return the candidate with streams that may pause: they take as long, so that cutting the plan again finds the
    same parts."""
    return replace(candidate, plan=sliced(candidate.plan, core_model(target)).plan)
