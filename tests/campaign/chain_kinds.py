"""Random chains of layers, streamed by force: every byte of training is that of the plan without streams. The image of
every third comes row by row.

Both plans run on the host, the streamed one watched (dead bytes are poisoned around the call of a stream) under
AddressSanitizer and UBSan; every fifth streamed one runs on its board in QEMU too.
"""

from __future__ import annotations

import resource
import tempfile
from functools import partial
from pathlib import Path
from random import Random

from testing.networks.chains import random_chain, random_shares
from testing.planning.streams import random_lines, random_streams
from testing.runs import run_steps
from tests.campaign.cases import Case, Kind
from tests.e2e import chain
from tests.e2e.command import Outcome
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import with_exponents_of
from tinytrain_compile.emit.project import EmitOptions, emit_project
from tinytrain_compile.files.resources import read_text, runtime_headers
from tinytrain_compile.ir.kernels import KernelCache
from tinytrain_compile.ir.stages import SourceBundle, TrainGraph
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import parts_of
from tinytrain_compile.plan.check.rewrites import validate_streams
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import Mode
from tinytrain_compile.verify.run import RunResult

CORES = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m55")
UPDATES = ("head", "last:3", "all", "bias", "shares")
STEPS = 2
ALIGNMENT = 8  # what AddressSanitizer can tell apart


def _draw(source: Random, _folder: Path, integer: bool) -> Case:
    number, core, update = source.randrange(1 << 30), source.choice(CORES), source.choice(UPDATES)
    board = source.randrange(5) == 0
    words = ("int8" if integer else "fp32", str(number), core, update, *(("qemu",) if board else ()))
    return Case(words, sound=True, run=_run, program="chain", check=lambda _folder: int(board))


def _run(number_format: str, number: str, core: str, update: str, *boards: str) -> Outcome:
    """PASS, or an AssertionError with what differs."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # AddressSanitizer reserves far more than it uses
    model = random_chain(int(number))
    made = nets.int8_train if number_format == "int8" else chain.train_graph
    with tempfile.TemporaryDirectory() as name:
        if update == "shares":
            update = str(Path(name) / "shares.toml")
            Path(update).write_text(random_shares(model, int(number)), encoding="utf-8")
        train = made(model, update, learning_rate=0.05)
    target = load_target(core)
    base = train.graph
    if int(number) % 3 == 0:
        train = with_exponents_of(train, random_samples(train, 2, 1)) if train.integer else train
        base, streamed, streams = random_lines(train, int(number))
    else:
        streamed, streams = random_streams(train, int(number))
    validate_streams(base, streamed)
    cache = KernelCache()
    with tempfile.TemporaryDirectory() as name:
        whole = _trained(train, train.graph, target, "host", Path(name) / "whole", cache)
        for mode in ("debug", *boards):
            found = _trained(train, streamed, target, mode, Path(name) / mode, cache)  # type: ignore[arg-type]
            assert chain.same(found, whole), f"{mode}: {len(streams)} streams give other bytes"
    return Outcome(0, f"PASS {len(streams)} streams", "")


def _trained(
    train: TrainGraph, graph: Graph, target: Target, mode: Mode, folder: Path, cache: KernelCache
) -> RunResult:
    samples = random_samples(train, STEPS * train.batch, 0)
    bundle = _bundle(train, graph, target, mode, cache)
    result = run_steps(bundle, target, samples, STEPS, None, train.batch, folder, mode)
    assert result.status == "ok", result.status
    return result


def _bundle(train: TrainGraph, graph: Graph, target: Target, mode: Mode, cache: KernelCache) -> SourceBundle:
    plan = plan_memory(graph, PlanOptions(alignment_bytes=ALIGNMENT, effort="quick", keep=(train.loss.name,)))
    fused = not train.integer
    context = kernel_context(target.features, fused)
    kernels = lower_nodes(plan.order, LowerOptions("net", context), cache=cache)
    header = read_text("runtime_c", "tt_debug.h") if mode == "debug" else ""
    parts = parts_of(CompileOptions(Path(), input_lines=any(map(takes_lines, plan.order))), train)
    fma = target.features.fma
    return emit_project(
        train, plan, kernels, EmitOptions("net", ALIGNMENT, ("test",), runtime_headers(), header, fma=fma, parts=parts)
    )


CHAIN_KINDS = (
    Kind("chains: float", 500, partial(_draw, integer=False), least_passed=1.0),
    Kind("chains: int8", 500, partial(_draw, integer=True), least_passed=1.0),
)
