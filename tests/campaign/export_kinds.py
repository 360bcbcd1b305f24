"""Random networks whose twin learns a little: `export` brings back the file that computes what the twin does.

onnxruntime, which shares no code with us, judges the outputs; compiled again, the file gives them once more.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import onnx

from tests.campaign.cases import Case, Kind
from tests.campaign.graph_kinds import Net, calibrated_net, float_net, quantised_net
from tests.campaign.judge import OUT
from tests.campaign.model_kinds import NET
from tests.campaign.option_draws import more_options
from tests.e2e.command import Outcome, run
from tests.learn.exporting import outputs
from tinytrain_compile.api import Compiled
from tinytrain_compile.cli.command import command
from tinytrain_compile.cli.options import options_of
from tinytrain_compile.compilation import make_project
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.twin import Twin

STEPS = 3
SAMPLES = 4
CHECKPOINT, TRAINED = f"{OUT}/device.bin", f"{OUT}/trained.onnx"
TOLERANCE = 2e-5
"""Of outputs, to the largest number of the twin's (1 at least)."""
NO_PLACE = frozenset(("E0112",))
"""What a file may have no room for: its own integers hold less than the device does."""


def _case(source: Random, folder: Path, net: Net) -> Case:
    model, words = net(source, folder)
    Path(NET).write_bytes(model.SerializeToString())
    words += [word for word in more_options(source, words, model, folder) if word != "--inference-only"]
    rate = source.choice(("0", "0.001", "0.01"))
    return Case((rate, *words), sound=True, run=_run, program="export")


def _run(rate: str, *words: str) -> Outcome:
    """PASS, the refusal of a compilation, or an AssertionError with what differs."""
    try:
        return _compared(rate, *words)
    finally:
        gc.collect()  # libraries live as long as what was compiled


def _compared(rate: str, *words: str) -> Outcome:
    options = ("--verify", "none", "--target", "cortex-m7", *words)
    try:
        first = _compiled(NET, options)
    except CompileError as problem:
        return Outcome(problem.exit_code, "", f"{problem}\n")
    first.save(OUT)
    with first.twin() as twin:
        x = _learned(first.project, twin, float(rate))
        twin.save(CHECKPOINT)
        known = twin.predict(x)
    found = run("export", NET, "--checkpoint", CHECKPOINT, "--project", OUT, "-o", TRAINED, *_given(words))
    if found.error_id in NO_PLACE:
        return Outcome(0, "PASS: no room in the file", "")
    found.check_success()
    integer, quantised = first.project.summary.train.integer, first.project.model.quantised
    if first.project.model.loss is not None:
        return Outcome(0, "PASS: an output behind labels", "")
    drops = any(node.op_type == "Dropout" for node in onnx.load(NET).graph.node)  # which a file may ask for by itself
    if not integer and not quantised and not drops:
        _check_close("onnxruntime", outputs(Path(TRAINED).read_bytes(), x), known)
    else:
        outputs(Path(TRAINED).read_bytes(), x[:1])  # a sound file for it
    if not integer and "rounded to" not in found.out:
        with _compiled(TRAINED, options).twin() as twin:
            _check_close("the file, compiled again,", twin.predict(x), known)
    return Outcome(0, "PASS", "")


def _check_close(what: str, found: Array, known: Array) -> None:
    """Not to the byte: sums are in another order, and what is folded into weights is taken out and folded again."""
    worst = float(np.abs(found.reshape(known.shape).astype(np.float64) - known).max())
    assert worst <= TOLERANCE * max(1.0, float(np.abs(known).max())), f"{what} differs by {worst:.3g}"


def _compiled(model: str, words: tuple[str, ...]) -> Compiled:
    with command.make_context("tinytrain-compile", [*words, "--", model]) as context:
        project = make_project(options_of(context.params))
    assert isinstance(project, Project)
    return Compiled(project)


def _given(words: tuple[str, ...]) -> list[str]:
    """Files that an export is told again."""
    pairs = ((flag, words[words.index(flag) + 1]) for flag in ("--calib", "--data") if flag in words)
    return [word for pair in pairs for word in pair]


def _learned(project: Project, twin: Twin, rate: float) -> Array:
    """Some updates; inputs for outputs."""
    train = project.summary.train
    data = in_slots(project.bundle.interface, random_samples(train, STEPS * train.batch, 5, project.model))
    twin.instance.set_rate(rate)
    for first in range(0, STEPS * train.batch, train.batch):
        part = slice(first, first + train.batch)
        twin.instance.train(data.x[part], data.y[part])
    return np.random.default_rng(3).standard_normal((SAMPLES, *project.model.input_shape[1:])).astype(np.float32)


EXPORT_KINDS = (
    Kind("export: float", 200, partial(_case, net=float_net), least_passed=0.6),
    Kind("export: int8 calibrated", 100, partial(_case, net=calibrated_net), least_passed=0.6),
    Kind("export: int8 QDQ", 100, partial(_case, net=quantised_net), least_passed=0.6),
)
