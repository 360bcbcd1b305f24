"""What was made apart works together: rescaled channels, integer losses, masks, momentum, fractions, accumulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e.exact import check_exact, check_on
from tests.frontend.qdq import Maker
from tests.quantize import nets
from tests.quantize.gradients import check_gradients
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.rescale import rescales
from tinytrain_compile.quantize import count_saturations, forward
from tinytrain_compile.reference.trainer import run_reference

RATE, STEPS = 0.2, 10

# ---- every way to update --------------------------------------------------------------------------------------------

COMBINATIONS = [
    {"optimizer": optimizer, "store": store, "rescale": rescale, "batch": batch, "accumulate": accumulate}
    for optimizer, store, rescale, (batch, accumulate) in product(
        ("sgd", "momentum"), ("sr8", "q8.8"), (False, True), ((1, "exact"), (2, "exact"), (2, "inplace"))
    )
]


@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda options: " ".join(map(str, options.values())))
def test_every_way_to_update_equals_numpy(options: dict[str, Any]) -> None:
    train = nets.int8_train(nets.pixels(), head="int8", learning_rate=RATE, **options)
    assert any(map(rescales, train.graph.nodes)) == options["rescale"]
    check_exact(check_on(train, "host", steps=STEPS), STEPS)


# ---- rescaled channels ----------------------------------------------------------------------------------------------

LOSSES: dict[str, tuple[onnx.ModelProto, dict[str, Any], str]] = {
    "cross-entropy": (nets.pixels(), {}, "QSoftmaxError"),
    "weighted": (nets.pixels([1.0, 0.25, 3.0], ignore=1), {}, "QWeightedSoftmaxError"),
    "mse": (nets.cnn(), {"loss": "mse"}, "QMeanSquaredErrorGrad"),
    "bce": (nets.cnn(), {"loss": "bce", "batch": 2}, "QSigmoidCrossEntropyGrad"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_channels_of_the_head_change_scale_under_an_integer_loss(name: str) -> None:
    model, options, error = LOSSES[name]
    train = nets.int8_train(model, head="int8", rescale=True, learning_rate=4 * RATE, **options)
    assert nets.nodes_of(train, error)
    samples = random_samples(train, STEPS * train.batch, 0)
    counted = count_saturations(train, run_reference(train, samples, STEPS).states[-1])
    assert counted is not None and counted.rescaled
    check_exact(check_on(train, "host", steps=STEPS), STEPS)


def check_shifts(train: TrainGraph) -> int:
    """No kernel that needs shifts in -31..-1 reads a table that changes; returns how many have such shifts for good."""
    overwritten = {parameter.name for parameter, _ in train.graph.updates}
    found = 0
    for node in nets.nodes_of(train, "QConv"):
        assert isinstance(node.attrs, QConvAttrs)
        shift = train.graph.constants[node.inputs[-1].name]
        assert not (node.attrs.shifts_down and node.inputs[-1].name in overwritten), node.name
        assert not node.attrs.shifts_down or (shift.min() >= -31 and shift.max() <= -1)
        found += node.attrs.shifts_down
    return found


def test_kernels_with_short_shifts_read_no_table_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_shifts(nets.int8_train(nets.cnn())) == 4
    assert check_shifts(nets.int8_train(nets.cnn(), "last:2", rescale=True)) == 3, "frozen layers keep theirs"
    assert check_shifts(nets.int8_train(nets.cnn(), rescale=True)) == 0
    always = lambda *arguments: replace(QConvAttrs(*arguments), shifts_down=True)  # noqa: E731
    monkeypatch.setattr(forward, "QConvAttrs", always)
    with pytest.raises(AssertionError):
        check_shifts(nets.int8_train(nets.cnn(), rescale=True))


# ---- masks with bounds ----------------------------------------------------------------------------------------------


def clamped() -> onnx.ModelProto:
    """A QDQ model with formats wider than its clamps: before a MaxPool whose windows overlap, and before the loss."""
    m = Maker(8)
    x, a, b, y = m.scale("x", 2 / 255), m.scale("a", 0.03), m.scale("b", 0.04), m.scale("y", 0.01, 7)
    w, p, f = m.weight("w", (4, 3, 3, 3), 4), m.weight("p", (6, 4, 1, 1), 6), m.weight("f", (5, 6), 5)
    m.weights |= {"low": np.asarray(-0.2, np.float32), "high": np.asarray(0.3, np.float32)}
    model = m.model(f"""net (float[1, 3, 8, 8] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        r = Relu(c)
        aq = QuantizeLinear(r, {a})
        ad = DequantizeLinear(aq, {a})
        pool = MaxPool<{nets.OVERLAPPING}>(ad)
        pd = DequantizeLinear<axis = 0>(p, {p})
        e = Conv(pool, pd)
        s = Relu(e)
        bq = QuantizeLinear(s, {b})
        bd = DequantizeLinear(bq, {b})
        mean = GlobalAveragePool(bd)
        mq = QuantizeLinear(mean, {b})
        md = DequantizeLinear(mq, {b})
        flat = Flatten(md)
        fd = DequantizeLinear<axis = 0>(f, {f})
        g = Gemm<transB = 1>(flat, fd)
        z = Clip(g, low, high)
        yq = QuantizeLinear(z, {y})
        output = DequantizeLinear(yq, {y})
        }}""")
    return nets.named(model)


def bounds_of(train: TrainGraph) -> set[str]:
    """Nodes whose error goes through a clamp that is narrower than int8."""
    masked = [n for n in train.graph.nodes if isinstance(getattr(n.attrs, "mask", None), MaskAttrs)]
    masked += nets.nodes_of(train, "QClipMask")
    attrs = [(n, n.attrs if isinstance(n.attrs, MaskAttrs) else n.attrs.mask) for n in masked]  # type: ignore[attr-defined]
    return {n.op for n, mask in attrs if mask.kind and (mask.low > -128 or mask.high < 127)}


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "bce"])
def test_errors_of_pool_and_loss_stop_at_the_bounds_of_clamps(loss: str) -> None:
    train = nets.int8_train(clamped(), head="int8", loss=loss, learning_rate=RATE)
    assert nets.nodes_of(train, "QMaxPoolGrad") and bounds_of(train)
    check_exact(check_on(train, "host", steps=5), 5)


def test_gradients_behind_clamps_are_those_of_float() -> None:
    check_gradients(clamped())


def test_bounds_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskAttrs, "passes", lambda _attrs, value: (value > -128) & (value < 127))
    with pytest.raises(AssertionError):
        check_gradients(clamped())
