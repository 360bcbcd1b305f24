"""A training run of generated C on samples, on this machine or in QEMU, for tests that look at what it wrote."""

from __future__ import annotations

from pathlib import Path

from tinytrain_compile.ir.stages import Samples, SourceBundle
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import Built, Mode, compile_project, link_project
from tinytrain_compile.verify.firmware import verification_input
from tinytrain_compile.verify.run import RUN_TIMEOUT_S, RunLimit, RunResult, execute
from tinytrain_compile.verify.tools import Tools, find_tools


def build(bundle: SourceBundle, target: Target, mode: Mode, tools: Tools, folder: Path) -> Built:
    """Compile and link the check program."""
    return link_project(compile_project(bundle, target, mode, tools, folder), target, tools)


def run_steps(
    bundle: SourceBundle,
    target: Target,
    samples: Samples,
    steps: int,
    learning_rate: float | None,
    batch: int,
    work_dir: Path,
    mode: Mode = "host",
    timeout_s: float = RUN_TIMEOUT_S,
) -> RunResult:
    """Build in `work_dir`, train `steps` steps of `batch` samples, return everything that was computed."""
    tools = find_tools(target)
    vectors = verification_input(bundle.interface, samples, steps, batch, learning_rate)
    built = build(bundle, target, mode, tools, work_dir)
    return execute(built, bundle.interface, target, tools, vectors, RunLimit(timeout_s))
