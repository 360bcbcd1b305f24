"""Float32 against numpy: what rounding explains passes, however many steps; what it does not is caught in a few."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.networks import models
from testing.places import ROOT, SHARED
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.command import run
from tests.e2e.marks import needs_shared
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.reference.rounding import StepwiseReference
from tinytrain_compile.target.loader import load_target

Change = Callable[[str], str]
NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "transformer": lambda: models.transformer(tokens=3, width=6, heads=3),
    "shifted": lambda: shifted(),
    "ds_cnn": lambda: models.ds_cnn(channels=6, blocks=1, size=(11, 5)),
}


def shifted() -> onnx.ModelProto:
    """A network whose logits are all moved by one trained number, whose gradient is nothing but rounding."""
    net = models.Network("net", "float[1, 12] x", "float[1, 5] y", seed=3)
    hidden = net.node("act", f"h = Tanh ({net.dense('fc1', 'x', 12, 10)})")
    shift = net.near("shift", 0.5, 0.1, 1)
    net.node("out", f"y = Add ({net.dense('fc2', hidden, 10, 5)}, {shift})")
    return net.model()


@cache
def made(net: str, optimizer: str, rate: float = 0.01, batch: int = 1) -> chain.Project:
    train = chain.train_graph(NETS[net](), optimizer=optimizer, learning_rate=rate, batch=batch)
    return chain.project(train)


def planted(sound: chain.Project, change: Change) -> chain.Project:
    text = sound.bundle.files["net_kernels.c"]
    changed = change(text)
    assert changed != text, "the fault was not planted"
    files = {**sound.bundle.files, "net_kernels.c": changed}
    return replace(sound, bundle=SourceBundle(files, sound.bundle.interface))


def caught(project: chain.Project, steps: int = 3) -> str:
    with pytest.raises(CompileError) as found:
        chain.check(project, mode="host", steps=steps)
    assert (found.value.code, found.value.exit_code) == ("E0601", 5)
    assert "please report" not in str(found.value)
    return str(found.value)


def scaled(kernel: str, factor: str) -> Change:
    """Every number that kernels of this name store, alone or in pairs, is wrong by a factor."""
    one, two = r"^(\s+dw\[.*\] = )(.*);$", r"^(\s+tt_store_pair\(&dw\[.*?\], )(.*)\);$"

    def change(text: str) -> str:
        parts = re.split(r"(?m)^(?=void )", text)
        wrong = [
            re.sub(
                f"(?m){two}",
                rf"\g<1>tt_mul_both(\2, {factor}));",
                re.sub(f"(?m){one}", rf"\g<1>{factor} * (\2);", part),
            )
            if re.match(rf"void net_{kernel}", part)
            else part
            for part in parts
        ]
        return "".join(wrong)

    return change


@pytest.mark.parametrize(
    ("net", "optimizer"),
    [("mlp", "sgd"), ("mlp", "adam"), ("transformer", "momentum"), ("ds_cnn", "adamw"), ("ds_cnn", "sgd")],
)
def test_a_gradient_that_is_wrong_by_a_thousandth(net: str, optimizer: str) -> None:
    """Far below what 1e-4 of a weight would show at this learning rate."""
    sound = made(net, optimizer)
    assert chain.check(sound, mode="host", steps=6).result == "pass"
    text = caught(planted(sound, scaled(r"(gemm|conv)_grad_weight", "1.001f")))
    assert re.search(r"'\S+', step [012], index \d+: the C code gives", text), text


@pytest.mark.parametrize("net", ["mlp", "transformer"])
def test_a_wrong_epsilon(net: str) -> None:
    """1e-6 in place of 1e-8: a thousandth of the step where a gradient is 1e-3."""
    caught(planted(made(net, "adam"), lambda text: text.replace("+ 1e-08f", "+ 1e-06f")))


def test_a_wrong_decay_of_the_second_moment() -> None:
    caught(planted(made("mlp", "adam"), lambda text: text.replace("0.999f *", "0.9990100f *")), steps=8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_missing_bias(optimizer: str) -> None:
    def change(text: str) -> str:
        return re.sub(r"(?m)^(    y\[2\] = acc_2) \+ bias\[2\];$", r"\1;", text)

    assert "output before training" in caught(planted(made("mlp", optimizer), change))


@needs_shared
@pytest.mark.parametrize(("name", "options"), [
    ("5072.onnx", ("--optimizer", "adamw", "--lr", "0.1", "--weight-decay", "0.01")),
    ("5054.onnx", ("--optimizer", "adam")),
])  # fmt: skip
def test_gradients_that_are_nothing_but_rounding(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    path = SHARED / "repros" / name
    fixed = ("--loss", "mse", "--update", "last:3", "--verify", "host", "--verify-steps", "12", "-o", tmp_path / "out")
    run(path, *fixed, *options).check_success()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_number_without_a_gradient_takes_full_steps(optimizer: str) -> None:
    """numpy and C go apart by whole steps of the learning rate, and both are right; what is wrong is still seen."""
    sound = made("shifted", optimizer, 0.1)
    assert "shift" in {value.name for value in sound.train.graph.state}
    assert chain.check(sound, mode="host", steps=20).result == "pass"
    caught(planted(sound, scaled("gemm_grad_weight", "1.001f")))


@pytest.mark.parametrize("batch", [1, 4])
def test_many_steps_of_an_unstable_training_pass(batch: int) -> None:
    """A rate at which the smallest difference grows: a bound on where training leads would have to be without bound."""
    assert chain.check(made("mlp", "sgd", 1.5, batch), mode="host", steps=400, distinct=8).result == "pass"


def test_the_reference_begins_with_the_states_of_the_run(tmp_path: Path) -> None:
    """Steps from any state: the reference of step 5 needs none of the steps before it."""
    sound = made("mlp", "adam")
    samples = random_samples(sound.train, 4, 0)
    result = run_steps(sound.bundle, load_target("cortex-m7"), samples, 6, None, 1, tmp_path, "host")
    reference = StepwiseReference(sound.train, samples)
    states = [{name: np.frombuffer(raw[name], np.float32) for name in reference.initial()} for raw in result.states]
    first, again = reference.step(5, states[4]), StepwiseReference(sound.train, samples).step(5, states[4])
    assert first.losses[0] == pytest.approx(result.losses[5], rel=1e-5)
    assert all(first.state[name].tobytes() == again.state[name].tobytes() for name in first.state)


@pytest.mark.parametrize("steps", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_digits_for_thousands_of_steps(steps: int, tmp_path: Path) -> None:
    """The example with its own data: nothing is wrong with it, however long the check is."""
    digits = ROOT / "examples" / "digits"
    data = ("--data", digits / "data.npz", "--verify-steps", steps, "-o", tmp_path / "out")
    run(digits / "digits.onnx", *data, "--verify", "host").check_success()


def test_the_mean_of_a_normalised_map_has_no_gradient(tmp_path: Path) -> None:
    """All elements of a group share the mean that was rounded, so their sums may be wrong by as many times as much
    (seed 8 of the campaign, float 844)."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 17]>
        net (float[1,1,6,8] x) => (float[1,5] y)
        <float[1,1,1,1] conv1_weight = {-0.687577844},
         float[4] power4_exponent = {1.42023015, 1.51222122, 1.54630995, 1.32457304},
         float[4] power7_exponent = {1.52352881, 1.56602824, 1.40331733, 1.38835669},
         float[1] instance10_g = {1.13341057}, float[1] instance10_b = {-0.0468399152},
         float[5,1] dense14_weight = {0.568003118, 1.20028734, 0.466056645, 0.562370718, -1.93806398}> {
            c = Conv(x, conv1_weight)
            m = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(c)
            p = Softplus(m)
            q = Pow(p, power4_exponent)
            r = Softplus(q)
            s = Pow(r, power7_exponent)
            n = InstanceNormalization(s, instance10_g, instance10_b)
            a = GlobalAveragePool(n)
            v = Flatten(a)
            t = Gemm<transB=1>(v, dense14_weight)
            y = Sigmoid(t) }""")
    onnx.save(model, tmp_path / "net.onnx")
    flags = ("--lr", "0.1", "--input-layout", "chw", "--batch", "2", "--accumulate", "inplace", "--loss", "bce")
    more = ("--optimizer", "rmsprop", "--momentum", "0.5", "--target", "cortex-m33", "--verify", "host")
    for steps, seed in ((2, 524), (3, 1), (3, 2)):
        asked = (*flags, *more, "--verify-steps", str(steps), "--seed", str(seed), "-o", tmp_path / "out")
        run(tmp_path / "net.onnx", *asked).check_success()
