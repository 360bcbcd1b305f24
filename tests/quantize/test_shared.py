"""Parameters that several layers share, in int8: one tensor, one update, the gradients of all uses summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks.models import Network
from tests.e2e.exact import check_exact, check_on
from tests.quantize import nets
from tests.quantize.gradients import real_inputs
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import like_one, with_exponents_of
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.quantize.update import Updates
from tinytrain_compile.reference.trainer import Trainer

HEAD = "pads = [1, 1, 1, 1]"


def recursive(transposed: bool = False) -> onnx.ModelProto:
    """One convolution three times, its bias also that of the layer before it, and a dense layer with its own input.

    The numbers of the uses differ in size, so that their units and the exponents of their errors do. transposed: the
    dense layer's weight is used a second time, transposed, and it has a bias of its own.
    """
    net = Network("recursive", "float[1, 4, 6, 6] x", "float[1, 4] y", seed=21)
    kernels, bias = net.weight("kernels", 4, 4, 3, 3), net.near("shared_bias", 0.2, 0.3, 4)
    x = net.relu(net.node("stem", f"stem = Conv <{HEAD}> (x, {net.weight('stem_weight', 4, 4, 3, 3)}, {bias})"))
    small = net.table("small", 0.25, np.float32)
    for index in range(3):
        x = net.node(f"loop{index}", f"loop{index} = Conv <{HEAD}> ({x}, {kernels}, {bias})")
        x = net.relu(x)
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    w = net.weight("dense", 4, 4)
    own = net.near("own_bias", 0.2, 0.3, 4) if transposed else bias
    a = net.relu(net.node("first/Gemm", f"first = Gemm <transB = 1> ({flat}, {w}, {own})"))
    if transposed:
        a = net.relu(net.node("second/Gemm", f"second = Gemm ({a}, {w})"))
    a = net.node("scaled", f"scaled = Mul ({a}, {small})")
    net.node("logits", f"y = Identity ({net.dense('fc', a, 4, 4)})")
    return net.model()


def moves(train: TrainGraph, floats: TrainGraph, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(int8, float32): by how much the real numbers of each shared parameter move by `count` times the same sample."""
    one = random_samples(train, 1, 0)
    xs, ys = np.repeat(one.x, count, 0), np.repeat(one.y, count, 0)
    before = {**floats.graph.constants}
    integers, reals = Trainer(train), Trainer(floats)
    start = dict(integers.state)
    integers.step(xs, ys)
    reals.step(real_inputs(train, xs), ys)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in ("kernels", "dense", "shared_bias"):
        fraction = (integers.state[f"{name}.fraction"] - 0.0) if f"{name}.fraction" in integers.state else 0.0
        fraction = np.asarray(fraction).reshape(-1) / 256
        moved = integers.state[name].reshape(-1) + fraction - start[name].reshape(-1)
        data = before[name]
        if data.ndim == 1:
            unit = data / start[name]
        else:
            quant = next(v.quant for v in floats.graph.state if v.name == name)
            assert quant is not None
            unit = np.repeat(np.asarray(quant.scale), data.size // data.shape[0])
        held = np.abs(integers.state[name].reshape(-1)) < 127 if data.ndim > 1 else True  # int8 ends there
        found[name] = (moved * unit * held, (reals.state[name] - data).reshape(-1) * held)
    return found


def check_moves(**options: Any) -> None:
    """Shared parameters move as in float32: in direction and in length."""
    common: dict[str, Any] = {"head": "int8", "learning_rate": 0.5, **options}
    train = nets.int8_train(recursive(), store="q8.8", **common)
    floats = nets.float_train(recursive(), **common)
    for name, (a, b) in moves(train, floats, common.get("batch", 1)).items():
        assert float(np.abs(b).max()) > 0, name
        assert np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) > 0.995, name
        assert abs(np.dot(a, b) / np.dot(b, b) - 1) < 0.05, name


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"optimizer": "momentum"}], ids=["step", "batch", "momentum"])
def test_shared_parameters_move_as_in_float(options: dict[str, Any]) -> None:
    check_moves(**options)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_use_that_is_lost_is_seen(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above, with a fault planted: one use's gradient is left out."""
    together = Updates.summed_together

    def without(self: Updates, node: Any, uses: Any, sums: Any) -> Any:
        keep = [index for index in range(len(uses)) if index != lost]
        return together(self, node, tuple(uses[i] for i in keep), [sums[i] for i in keep])

    monkeypatch.setattr(Updates, "summed_together", without)
    with pytest.raises(AssertionError):
        check_moves()


def test_every_layer_adds_the_shared_bias_in_its_own_unit() -> None:
    """Not in that of the layer that was met first."""
    train, floats = nets.int8_train(recursive(), head="int8"), nets.float_train(recursive(), head="int8")
    samples = random_samples(train, 4, 0)
    integers, reals = Trainer(train), Trainer(floats)
    for x in samples.x:
        ours, expected = integers.infer(x[None]), reals.infer(real_inputs(train, x[None]))
        assert np.abs(ours - expected).max() < 0.05 * max(np.abs(expected).max(), 0.1)
    assert len(nets.nodes_of(train, "QSharedBias")) == 5
    assert len({tuple(node.inputs[2:]) for node in nets.nodes_of(train, "QSharedBias")}) > 1


VARIANTS: dict[str, dict[str, Any]] = {
    "q8.8 momentum batch": {"store": "q8.8", "optimizer": "momentum", "batch": 4},
    "float head, inplace": {"head": "fp32", "batch": 2, "accumulate": "inplace"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_host_computes_the_same_bytes(name: str) -> None:
    check_exact(check_on(nets.int8_train(recursive(), **{"head": "int8", **VARIANTS[name]}), "host", steps=6), steps=6)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "cortex-m55"])
def test_boards_compute_the_same_bytes(board: str) -> None:
    train = nets.int8_train(recursive(), head="int8", store="mixed", batch=2)
    check_exact(check_on(train, board, steps=4), steps=4)


def test_micro_batches_give_the_same_bytes() -> None:
    made = [nets.int8_train(recursive(), head="int8", batch=4, micro_batch=size) for size in (1, 4)]
    one = with_exponents_of(made[0], random_samples(made[0], 8, 5))
    four = like_one(made[1], one)
    states: list[dict[str, np.ndarray]] = []
    for train in (one, four):
        trainer, samples = Trainer(train), random_samples(train, 12, 0)
        for start in range(0, 12, 4):
            trainer.step(samples.x[start : start + 4], samples.y[start : start + 4])
        states.append(dict(trainer.state))
    assert states[0].keys() == states[1].keys()
    for name, data in states[0].items():
        np.testing.assert_array_equal(data, states[1][name], name)


def test_a_weight_in_two_arrangements_stays_float() -> None:
    """Its scales belong to the output channels of one of them. The convolutions stay integers."""
    train = nets.int8_train(recursive(transposed=True), head="int8")
    kinds = {value.name: value.dtype for value in train.graph.state}
    assert (kinds["dense"], kinds["kernels"]) == ("float32", "int8")
    assert any(note.startswith("dense") and "stay float32" in note for note in train.graph.notes)
    check_exact(check_on(train, "host", steps=4), steps=4)


def test_a_weight_that_a_float_head_reads_stays_float() -> None:
    net = Network("head", "float[1, 6] x", "float[1, 6] y", seed=4)
    w, b = net.weight("w", 6, 6), net.near("b", 0.0, 0.1, 6)
    hidden = net.relu(net.node("hidden/Gemm", f"h = Gemm <transB = 1> (x, {w}, {b})"))
    net.node("logits/Gemm", f"y = Gemm <transB = 1> ({hidden}, {w}, {b})")
    train = nets.int8_train(net.model(), head="fp32")
    assert {value.name: value.dtype for value in train.graph.state if value.name in "wb"} == {
        "w": "float32",
        "b": "float32",
    }
    check_exact(check_on(train, "host", steps=4), steps=4)
    whole = nets.int8_train(net.model(), head="int8")
    assert {value.name: value.dtype for value in whole.graph.state if value.name in "wb"} == {"w": "int8", "b": "int32"}
