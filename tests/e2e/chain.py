"""The stages in a row, without the command line: for tests that look inside or share work between boards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from testing.cores import NAMES
from testing.runs import run_steps
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.candidates.inference import infer_one
from tinytrain_compile.driver.candidates.ladder import further_memories
from tinytrain_compile.emit.c_text import c_identifier
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.cost import Remat
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.kernels import KernelCache, KernelSet
from tinytrain_compile.ir.runtime_parts import NO_PARTS, RuntimeParts
from tinytrain_compile.ir.stages import MemoryPlan, SourceBundle, StepPieces, TrainGraph
from tinytrain_compile.ir.summary import VerifyReport
from tinytrain_compile.lower import LowerOptions, lower_nodes, share_kernels
from tinytrain_compile.lower.kernels import SIZE, SPEED, KernelContext, kernel_context
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import parts_of, runtime_parts
from tinytrain_compile.plan.memories.spread import spread
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.remat.stage import plan_with_remat
from tinytrain_compile.reference.rounding import StepwiseReference
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.training import TrainingOptions, build_training
from tinytrain_compile.verify.check import VerifyMode, verify
from tinytrain_compile.verify.run import RunResult

BOARDS = NAMES
KERNELS = KernelCache()
"""Those that the graphs of a test process share."""


def imported(model: onnx.ModelProto, options: FrontendOptions | None = None) -> ImportedModel:
    """What the frontend makes of a model, through a file as users have it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model.graph.name or 'net'}.onnx"
        path.write_bytes(model.SerializeToString())
        return load_model(path, options)


def train_graph(model: ImportedModel | onnx.ModelProto, update: str = "all", **options: object) -> TrainGraph:
    """The training step of a model; `options` are those of TrainingOptions."""
    known = model if isinstance(model, ImportedModel) else imported(model)
    return build_training(known, resolve_update(known.graph, update), TrainingOptions(**options))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Project:
    """A generated project and what it was made from."""

    train: TrainGraph
    plan: MemoryPlan
    kernels: KernelSet
    bundle: SourceBundle


def kernels_of(train: TrainGraph, target: str = "cortex-m7", small: bool = False, prefix: str = "net") -> KernelSet:
    """The kernels that the command line makes for a core."""
    context = kernel_context(load_target(target).features, not train.integer, SIZE if small else SPEED)
    return _lowered(train, context, prefix)


def _lowered(train: TrainGraph, context: KernelContext, prefix: str) -> KernelSet:
    kernels = lower_nodes(train.graph.nodes, LowerOptions(prefix, context), cache=KERNELS)
    return share_kernels(kernels, prefix) if context.style.small else kernels


def kernels_by_core(train: TrainGraph) -> Callable[[str], KernelSet]:
    """`kernels_of` by core; cores that have the same share one lowering."""

    @cache
    def lowered(context: KernelContext) -> KernelSet:
        return _lowered(train, context, "net")

    return lambda board: lowered(kernel_context(load_target(board).features, not train.integer))


def project(
    train: TrainGraph,
    target: str = "cortex-m7",
    kernels: KernelSet | None = None,
    name: str = "net",
    remat: Remat = "off",
    one: TrainGraph | None = None,
    parts: RuntimeParts = NO_PARTS,
    features: bool = False,
    slices: bool = False,
) -> Project:
    """Plan (quickly), lower and emit; `kernels` may be given where several boards share them.

    one: the step of one sample, where this takes several. slices: every node costs 100 and its place in the order.
    """
    core = load_target(target)
    prefix = c_identifier(name)
    for part in runtime_parts(parts):
        train = part.with_state(train)
    settings = PlanOptions(alignment_bytes=core.alignment_bytes, effort="quick", keep=(train.loss.name,))
    planned = plan_with_remat(train.graph, settings, remat)
    plan, train = planned.plan, replace(train, graph=planned.graph, before_remat=train.graph)
    kernels = kernels or kernels_of(train, target, prefix=prefix)
    plan, kernels = with_one(train, plan, kernels, one, target, prefix)
    pieces = StepPieces({node.name: (100 + at,) for at, node in enumerate(plan.order)}) if slices else None
    return emitted(train, plan, kernels, core.alignment_bytes, prefix, fuses(core, train), parts, features, pieces)


def with_one(
    train: TrainGraph,
    plan: MemoryPlan,
    kernels: KernelSet,
    one: TrainGraph | None,
    target: str = "cortex-m7",
    prefix: str = "net",
) -> tuple[MemoryPlan, KernelSet]:
    """The plan and kernels with those of an inference of one sample, where a step takes several."""
    if one is None or train.micro_batch == 1:
        return plan, kernels
    inference = infer_one(one, train, plan, PlanOptions(alignment_bytes=load_target(target).alignment_bytes))
    more = kernels_of(replace(train, graph=inference.graph), target, prefix=f"{prefix}_one")
    return replace(plan, inference=inference), kernels.joined(more)


def moved(made: Project, arena_bytes: int, target: str = "cortex-m7") -> Project:
    """The project with what does not fit into `arena_bytes` in the target's second memory."""
    core = load_target(target)
    settings = PlanOptions(arena_bytes, core.alignment_bytes, effort="quick", keep=(made.train.loss.name,))
    banks = {bank.name: bank.size_bytes for bank in core.memories[1:]}
    planned = spread(made.train.graph, made.plan, settings, further_memories(core, banks))
    assert planned is not None
    train = replace(made.train, graph=planned.graph, before_remat=made.train.before_remat or made.train.graph)
    return emitted(train, planned.plan, made.kernels, core.alignment_bytes, fma=fuses(core, train))


def fuses(core: Target, train: TrainGraph) -> bool:
    """Whether multiply-adds of a network are fused: not if it is of integers."""
    return core.features.fma and not train.integer


def emitted(
    train: TrainGraph,
    plan: MemoryPlan,
    kernels: KernelSet,
    alignment: int,
    prefix: str = "net",
    fma: bool = True,
    parts: RuntimeParts = NO_PARTS,
    features: bool = False,
    pieces: StepPieces | None = None,
) -> Project:
    """The project of a plan, right or not."""
    small = all(kernel.small for kernel in kernels.kernels)
    headers = runtime_headers()
    cut = () if pieces is None else (pieces,)
    asked = CompileOptions(
        Path(),
        runtime=parts,
        features="on" if features else "off",
        slices="off" if pieces is None else "on",
        input_lines=any(map(takes_lines, plan.order)),
        inference_only=train.reads_state_of is not None,
    )
    found = parts_of(asked, train)
    emit = EmitOptions(prefix, alignment, ("test",), headers, small_calls=small, fma=fma, parts=found, pieces=cut)
    return Project(train, plan, kernels, emit_project(train, plan, kernels, emit))


def check(
    made: Project, target: str = "cortex-m7", mode: VerifyMode = "qemu", steps: int = 3, distinct: int | None = None
) -> VerifyReport:
    """Reference, host and board as `--verify` compares them; CompileError at the first difference.

    distinct: number of different samples, which are then taken in turn (default: all are different).
    """
    samples = random_samples(made.train, distinct or steps * made.train.batch, 0)
    whole = run_reference(made.train, samples, steps) if made.train.integer else None
    reference = whole or StepwiseReference(made.train, samples)
    return verify(made.bundle, load_target(target), samples, reference, mode, steps=steps, batch=made.train.batch)


def trained(made: Project, board: str, steps: int, folder: Path) -> RunResult:
    """A run of the check program on four samples in turn; it must find nothing wrong."""
    samples = random_samples(made.train, 4, 0)
    mode = "host" if board == "host" else "qemu"
    result = run_steps(made.bundle, load_target(board), samples, steps, None, made.train.batch, folder, mode)
    assert result.status == "ok"
    return result


def same(one: RunResult, other: RunResult) -> bool:
    """Every loss, every output and every byte of the state after every step."""
    return (
        one.losses.tobytes() == other.losses.tobytes()
        and one.output_last.tobytes() == other.output_last.tobytes()
        and list(map(dict, one.states)) == list(map(dict, other.states))
    )


def train_alike(one: Project, other: Project, steps: int, folder: Path) -> None:
    """Assert that both train on a cortex-m7 with the same bytes after every step, and read each other's checkpoints."""
    first = trained(one, "cortex-m7", steps, folder / "one")
    assert len({loss.tobytes() for loss in first.losses}) > steps // 2, "it trains"
    assert same(first, trained(other, "cortex-m7", steps, folder / "other"))
    assert checkpoint_magic(one) == checkpoint_magic(other), "checkpoints are interchangeable"


def checkpoint_magic(made: Project) -> list[str]:
    """The line of the header that says whose checkpoints it reads."""
    lines = [line for line in made.bundle.files["net_train.h"].splitlines() if "NET_MODEL_HASH" in line]
    assert lines
    return lines


def check_on_boards(train: TrainGraph, boards: tuple[str, ...] = BOARDS, steps: int = 3) -> dict[str, VerifyReport]:
    """The same training step on several cores."""
    kernels = kernels_by_core(train)
    return {board: check(project(train, board, kernels(board)), board, steps=steps) for board in boards}


def in_double(train: TrainGraph) -> TrainGraph:
    """The same graph with float64 data: the references then compute in double precision."""
    graph = train.graph
    constants = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in graph.constants.items()}
    return replace(train, graph=replace(graph, constants=constants))
