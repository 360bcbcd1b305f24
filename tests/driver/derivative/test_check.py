"""The derivative check refuses a step that is not the derivative of the file, and names the tensor."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks.training_info import info_model
from testing.places import ROOT
from tinytrain_compile import compilation
from tinytrain_compile.data.samples import load_samples, random_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.ir.types import Array, Attrs
from tinytrain_compile.ops.base import OPS, form_name, shown_name
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

DIGITS = ROOT / "examples" / "digits"
MOST = 40
"""Evaluations of the file that a check may take in float32 if nothing disagrees."""

STEPS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"optimizer": "momentum", "weight_decay": 0.1},
    "nesterov": {"optimizer": "momentum", "nesterov": True},
    "dampening": {"optimizer": "momentum", "dampening": 0.3},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "adam, raw epsilon": {"optimizer": "adam", "epsilon_place": "raw", "epsilon": 1e-3},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "adagrad": {"optimizer": "adagrad"},
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop, centred, momentum": {"optimizer": "rmsprop", "centered": True, "momentum": 0.9},
    "lion": {"optimizer": "lion", "weight_decay": 0.1},
    "lion, batch": {"optimizer": "lion", "betas": (0.8, 0.9), "batch": 4},
    "batch": {"batch": 5},
    "micro-batch": {"batch": 4, "micro_batch": 2},
    "inplace": {"batch": 4, "accumulate": "inplace"},
    "clipped sums": {"batch": 4, "clip_norm": 0.05},
    "clipped later": {"clip_norm": 0.05, "optimizer": "adam"},
    "clipped sums, by layer": {"batch": 4, "clip_norm": 0.05, "clip_per": "layer"},
    "clipped later, by layer": {"clip_norm": 0.05, "clip_per": "layer", "optimizer": "momentum"},
    "slices": {"update": str(DIGITS / "scheme.toml")},
    "dropout": {"dropout": "on"},
}


def step_of(**more: Any) -> tuple[TrainGraph, Callable[[TrainGraph], DerivativeAgreement | None]]:
    """The training step of digits, and the check of it or of another."""
    options = CompileOptions(
        **{
            "model": DIGITS / "digits.onnx",
            "update": "all",
            "verify": "host",
            "data": DIGITS / "data.npz",
            "given": frozenset(more),
            **more,
        }
    )
    model = pipeline.imported(options)
    options, _ = pipeline.with_file_training(options, model)
    planner = Planner(model, options, load_target("cortex-m7"), pipeline.load_externals(options))
    train = planner.training(options.update)
    if options.data is None:
        samples = random_samples(train, 2 * train.batch, 0, model)
    else:
        samples = load_samples(options.data, model, train)
    return train, lambda judged: check_derivative(model, judged, samples, options)


@pytest.mark.parametrize("name", STEPS)
def test_a_right_step_agrees(name: str):
    train, check = step_of(**STEPS[name])
    found = check(train)
    assert found is not None and found.tensors == len(train.trained) and found.unjudged == 0
    assert found.worst is not None and found.worst < 0.1 and found.evaluations <= MOST


@pytest.mark.parametrize("activations", ["asi", "subspace"])
@pytest.mark.parametrize("fault", [None, -1, 3])
def test_low_rank_copies_are_judged_loosely(activations: str, fault: int | None, monkeypatch: pytest.MonkeyPatch):
    train, check = step_of(batch=8, micro_batch=8, activations=activations)
    assert train.low_rank
    if fault is None:
        found = check(train)
        assert found is not None and found.unjudged == 0 and found.evaluations <= MOST
        assert sum(reason.startswith("judged loosely") for reason in found.skipped) == len(train.low_rank)
        return
    form = "SubspaceGradWeightAccumulate"
    assert any(shown_name(node) == form for node in train.graph.nodes)
    _with(monkeypatch, "FusedUpdate", lambda r: [fault * r[0]], form)
    with pytest.raises(CompileError, match=r"E0607.*tensor conv._w"):
        check(train)


def _with(
    monkeypatch: pytest.MonkeyPatch, op: str, change: Callable[[Sequence[Array]], Sequence[Array]], form: str = ""
) -> None:
    """Plant a fault in what an operator, or one form of it, computes."""
    right = OPS[op].reference

    def wrong(arrays: tuple[Array, ...], attrs: Attrs) -> tuple[Array, ...]:
        found = right(arrays, attrs)
        return tuple(change(found)) if form_name(op, attrs) == (form or op) else found

    monkeypatch.setitem(OPS, op, replace(OPS[op], reference=wrong))


FAULTS: dict[str, tuple[str, Callable[[Sequence[Array]], Sequence[Array]], str]] = {
    "a gradient 1 % too large": ("ConvGradInput", lambda r: [1.01 * r[0]], "conv"),
    "a mask lost": ("ClipGrad", lambda r: [r[0] + 1e-2], "conv"),
    "the gradient of the loss": ("NegativeLogLikelihoodGrad", lambda r: [2 * r[0]], ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_gradient_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch):
    op, change, tensor = FAULTS[name]
    train, check = step_of()
    assert any(node.op == op for node in train.graph.nodes), "the step must exercise the fault"
    _with(monkeypatch, op, change)
    with pytest.raises(CompileError, match=rf"E0607.*tensor {tensor}.*of the model file"):
        check(train)


@pytest.mark.parametrize(
    ("optimizer", "op", "out"),
    [
        ("momentum", "MomentumUpdate", 1),
        ("adam", "AdamUpdate", 2),
        ("adagrad", "AdagradUpdate", 0),
        ("rmsprop", "RmsPropUpdate", 1),
        ("lion", "LionUpdate", 0),
        ("lion", "LionUpdate", 1),
    ],
)
def test_a_wrong_update_is_refused(optimizer: str, op: str, out: int, monkeypatch: pytest.MonkeyPatch):
    train, check = step_of(optimizer=optimizer)
    assert any(node.op == op for node in train.graph.nodes)
    _with(monkeypatch, op, lambda r: [1.01 * array + 1e-4 if index == out else array for index, array in enumerate(r)])
    with pytest.raises(CompileError, match=r"E0607.*tensor "):
        check(train)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("per", ["model", "layer"])
@pytest.mark.parametrize("wrong", [1.02, 20.0])
def test_a_wrong_clipping_factor_is_refused(batch: int, per: str, wrong: float, monkeypatch: pytest.MonkeyPatch):
    """2 % too large, and 1: nothing is clipped."""
    train, check = step_of(batch=batch, clip_norm=0.05, clip_per=per)
    _with(monkeypatch, "ClipFactor", lambda r: [np.minimum(r[0] * np.float32(wrong), np.float32(1))])
    with pytest.raises(CompileError, match=r"E0607.*tensor .*clip"):
        check(train)


def test_a_norm_of_the_wrong_tensors_is_refused():
    """One norm of all in place of one for each layer."""
    train, _ = step_of(batch=4, clip_norm=0.05)
    _, check = step_of(batch=4, clip_norm=0.05, clip_per="layer")
    with pytest.raises(CompileError, match=r"E0607.*tensor .*clip"):
        check(train)


def test_a_loss_that_is_not_the_file_s_is_refused_first(monkeypatch: pytest.MonkeyPatch):
    train, check = step_of()
    _with(monkeypatch, "NegativeLogLikelihood", lambda r: [r[0] + np.float32(0.01)])
    with pytest.raises(CompileError, match=r"E0607.*loss of call 1.* by the model file"):
        check(train)


def test_velocity_that_begins_with_something_is_refused():
    train, check = step_of(optimizer="momentum")
    name = next(value.name for value in train.graph.state if value.name.endswith(".velocity"))
    constants = {**train.graph.constants, name: np.full_like(train.graph.constants[name], 0.01)}
    with pytest.raises(CompileError, match=r"E0607.*its velocity begins with numbers other than 0"):
        check(replace(train, graph=replace(train.graph, constants=constants)))


def test_state_that_is_not_the_file_s_is_refused(tmp_path: Path):
    """Training information gives first moments; those of a slice are those of its channels."""
    path, scheme = tmp_path / "net.onnx", tmp_path / "scheme.toml"
    path.write_bytes(info_model("Adam", 5, alpha=0.9, beta=0.999, epsilon=1e-6).SerializeToString())
    scheme.write_text('[[update]]\nlayer = "fc1"\nweight = [1, 3]\n')
    train, check = step_of(model=path, data=None, update=str(scheme))
    agreed = check(train)
    assert agreed is not None and agreed.tensors == 1
    name = "w1.updated.moment1"
    constants = {**train.graph.constants, name: np.zeros_like(train.graph.constants[name])}
    with pytest.raises(CompileError, match=r"E0607.*w1: its moment1 begins with other numbers than the file gives it"):
        check(replace(train, graph=replace(train.graph, constants=constants)))


def test_an_initializer_that_no_list_has_is_refused():
    """The list of what is not trained is complete: a number of the file that moves the loss must be in it."""
    options = CompileOptions(model=DIGITS / "digits.onnx", update="head", verify="host", given=frozenset({"update"}))
    model = pipeline.imported(options)
    train = Planner(model, options, load_target("cortex-m7"), pipeline.load_externals(options)).training("head")
    samples = load_samples(DIGITS / "data.npz", model, train)
    agreed = check_derivative(model, train, samples, options)
    assert agreed is not None and agreed.tensors == 2
    known = tuple(choice for choice in model.choices if choice.name != "conv2_w")
    with pytest.raises(CompileError, match=r"E0607.*initializer conv2_w.*the report does not list it"):
        check_derivative(replace(model, choices=known), train, samples, options)


def test_a_report_says_what_was_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = CompileOptions(
        model=DIGITS / "digits.onnx",
        update="all",
        verify="host",
        out=tmp_path / "out",
        target="cortex-m7",
        given=frozenset({"update"}),
    )
    made = compilation.compile_model(options).summary
    assert made is not None and made.verify.derivative is not None
    assert made.verify.derivative.tensors == len(made.train.trained)
    text = (tmp_path / "out" / "report.html").read_text()
    assert "training step == derivative of the file: 8 of 8 tensors within 0.1%" in text
