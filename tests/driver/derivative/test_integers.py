"""The derivative check of int8 steps: right steps agree within the budget, planted faults are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.places import ROOT
from tinytrain_compile.data.samples import load_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.ir.types import Array, Attrs
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8 import conv, error, loss, steps, update
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

DIGITS = ROOT / "examples" / "digits"
MOST = 8
"""Evaluations for a trained layer if nothing disagrees."""
STEPS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "batch": {"batch": 4},
    "inplace": {"batch": 4, "accumulate": "inplace"},
    "momentum": {"optimizer": "momentum"},
    "momentum of sums": {"optimizer": "momentum", "batch": 4},
    "clipped sums": {"batch": 4, "clip_norm": 0.05},
    "clipped later": {"clip_norm": 0.05},
    "clipped sums, by layer": {"batch": 4, "clip_norm": 0.05, "clip_per": "layer"},
    "clipped later, by layer": {"clip_norm": 0.05, "clip_per": "layer", "optimizer": "momentum"},
    "fractions": {"weight_store": "q8.8"},
    "noise": {"weight_store": "sr8"},
    "scales that double": {"rescale": "on"},
    "integer loss": {"head": "int8"},
    "slices": {"update": str(DIGITS / "scheme.toml")},
    "low-rank copies": {"activations": "subspace"},
    "low-rank copies, sums": {"activations": "subspace", "batch": 4},
}


def judged(**more: Any) -> DerivativeAgreement:
    """Return the verdict on the int8 step of digits; CompileError if it is refused."""
    options = CompileOptions(
        **{
            "model": DIGITS / "digits.onnx",
            "update": "all",
            "verify": "host",
            "quant": "int8",
            "calib": DIGITS / "calib.npz",
            "data": DIGITS / "data.npz",
            "given": frozenset({"quant", "calib", *more}),
            **more,
        }
    )
    model = pipeline.stored(pipeline.imported(options), options)
    planner = Planner(model, options, load_target(options.target), pipeline.load_externals(options))
    train = planner.training(options.update)
    samples = load_samples(Path(DIGITS / "data.npz"), model, train)
    few = replace(samples, x=samples.x[:8], y=samples.y[:8])
    found = check_derivative(model, train, few, options)
    assert found is not None
    return found


@pytest.mark.parametrize("name", STEPS)
def test_right_steps_agree(name: str) -> None:
    found = judged(**STEPS[name])
    assert found.unjudged == 0
    assert found.tensors >= 2
    assert found.evaluations <= MOST * found.tensors / 2


Change = Callable[[Any], Any]
FAULTS: dict[str, tuple[tuple[Any, ...], str, Change, dict[str, Any]]] = {
    "error twice too large": ((conv,), "finish_error", lambda old: lambda v, *a: old(2 * v, *a), {}),
    "sign of an error": ((conv,), "finish_error", lambda old: lambda v, *a: old(-v, *a), {}),
    "mask lost": ((error,), "masked", lambda _: lambda v, *_a: v, {}),
    "error of the next channel": (
        (update,),
        "weight_gradient",
        lambda old: lambda x, g, *a: old(x, np.roll(g, 1, -1), *a),
        {},
    ),
    "bias sums doubled": ((update,), "channel_sums", lambda old: lambda g: 2 * old(g), {}),
    "error of the loss doubled": ((loss,), "finish_error", lambda old: lambda v, *a: old(2 * v, *a), {"head": "int8"}),
    "most rows stay": (
        (steps, update),
        "moves_of",
        lambda old: lambda g, step: np.where(np.indices(g.shape)[0] % 4 == 3, old(g, step), 0),
        {},
    ),
    "no momentum": (
        (update,),
        "moved_velocity",
        lambda old: lambda v, *a: old(np.zeros_like(v), *a),
        {"optimizer": "momentum"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, function, change, more = FAULTS[name]
    for module in modules:
        if hasattr(module, function):
            monkeypatch.setattr(module, function, change(getattr(module, function)))
    with pytest.raises(CompileError) as refused:
        judged(**more)
    assert refused.value.code == "E0607"
    assert refused.value.where.startswith("tensor ")


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("per", ["model", "layer"])
def test_a_norm_that_scales_by_half_is_refused(batch: int, per: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = OPS["ClipFactor"].reference

    def wrong(arrays: tuple[Array, ...], attrs: Attrs) -> tuple[Array, ...]:
        return (np.float32(0.5) * right(arrays, attrs)[0],)

    monkeypatch.setitem(OPS, "ClipFactor", replace(OPS["ClipFactor"], reference=wrong))
    with pytest.raises(CompileError, match=r"E0607.*tensor "):
        judged(batch=batch, clip_norm=0.05, clip_per=per)


def test_a_copy_that_is_no_projection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = OPS["QModeProductInt8"].reference

    def wrong(arrays: tuple[Array, ...], attrs: Attrs) -> tuple[Array, ...]:
        return (np.roll(right(arrays, attrs)[0], 1, axis=-2),)

    monkeypatch.setitem(OPS, "QModeProductInt8", replace(OPS["QModeProductInt8"], reference=wrong))
    with pytest.raises(CompileError, match=r"E0607.*layer conv1.*no projection"):
        judged(activations="subspace")


def test_lion_is_judged_where_a_gradient_shows() -> None:
    """Of an int8 weight only the sign of a gradient shows; the float32 head keeps a moment, which tells all of it."""
    found = judged(optimizer="lion")
    assert (found.tensors, found.unjudged) == (2, 6)
    assert sum("is a sign" in text for text in found.skipped) == 6


@pytest.mark.parametrize("name", ["NegativeLogLikelihood", "NegativeLogLikelihoodGrad"])
def test_a_wrong_loss_is_refused_with_lion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = OPS[name].exact or OPS[name].reference

    def wrong(arrays: tuple[Array, ...], attrs: Attrs) -> tuple[Array, ...]:
        return tuple(np.float32(2) * array for array in right(arrays, attrs))

    monkeypatch.setitem(OPS, name, replace(OPS[name], exact=wrong))
    with pytest.raises(CompileError, match="E0607"):
        judged(optimizer="lion")
