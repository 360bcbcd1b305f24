"""What a step of the integer reference computes, beside the float graph, and checks that tests and faults share."""

from __future__ import annotations

import numpy as np
import onnx

from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OPS
from tinytrain_compile.ops.int8.update import QUpdateAttrs
from tinytrain_compile.reference.trainer import Trainer

SAMPLES = 16


# ---- what a step of the integer reference computes ------------------------------------------------------------------


def real_inputs(train: TrainGraph, x: np.ndarray) -> np.ndarray:
    """What stored inputs stand for."""
    quant = train.graph.inputs[0].quant
    assert quant is not None and x.dtype == np.int8
    return ((x.astype(np.float64) - quant.zero) * quant.scale[0]).astype(np.float32)


def gathered(train: TrainGraph, samples: Samples) -> tuple[dict[str, np.ndarray], Trainer]:
    """All values after the step nodes of all samples (no update is applied), and the trainer.

    A step at rate 0 comes first: it finds exponents for all samples, not only for the first one.
    """
    trainer = Trainer(train)
    trainer.set_rate(0.0)
    trainer.step(samples.x, samples.y)
    trainer.set_scalars(1)
    values: dict[str, np.ndarray] = {}
    for x, y in zip(samples.x, samples.y, strict=True):
        values = trainer.gather(x.reshape(train.graph.inputs[0].shape), y.reshape(train.label.shape))
    return values, trainer


def integer_sums(train: TrainGraph, samples: Samples) -> dict[str, tuple[np.ndarray, int]]:
    """Parameter -> (int32 gradient sum over the samples, exponent of its error); needs a graph that accumulates."""
    values, _ = gathered(train, samples)
    found: dict[str, tuple[np.ndarray, int]] = {}
    for node in nets.nodes_of(train, "QWeightApply", "QBiasApply"):
        parameter, total, exponent = node.inputs[0], node.inputs[1], node.inputs[5]
        found[parameter.name] = (values[total.name], int(values[exponent.name][0]))
    return found


def scales_of(floats: TrainGraph) -> dict[str, np.ndarray]:
    """Scale per output channel of every trained parameter."""
    found = {v.name: v.quant for node in floats.graph.nodes for v in node.inputs if v.quant is not None}
    return {v.name: np.asarray(found[v.name].scale) for v in floats.graph.state if v.name in found}


def per_channel(scale: np.ndarray, data: np.ndarray) -> np.ndarray:
    return scale.reshape(-1, *(1,) * (data.ndim - 1))


def integer_gradients(model: onnx.ModelProto, update: str = "all", head: str = "int8") -> dict[str, np.ndarray]:
    """Real gradients of integer parameters, summed over the samples: dL/dW = sum 2**p / scale."""
    floats = nets.float_train(model, update, head, batch=SAMPLES)
    train = nets.int8_train(model, update, head, batch=SAMPLES)
    scales = scales_of(floats)
    shapes = {v.name: v.shape for v in floats.graph.state}
    result: dict[str, np.ndarray] = {}
    for name, (total, exponent) in integer_sums(train, random_samples(train, SAMPLES, 0)).items():
        gradient = total * 2.0**exponent / per_channel(scales[name], total)
        result[name] = gradient.reshape(shapes[name])
    return result


def float_gradients(model: onnx.ModelProto, update: str = "all", head: str = "int8") -> dict[str, np.ndarray]:
    """The same gradients by the float graph, which does not round, on the same inputs."""
    floats = nets.float_train(model, update, head, batch=SAMPLES, learning_rate=1.0)
    train = nets.int8_train(model, update, head, batch=SAMPLES)
    samples = random_samples(train, SAMPLES, 0)
    trainer = Trainer(floats)
    before = dict(trainer.state)
    trainer.step(real_inputs(train, samples.x), samples.y)
    names = [v.name for v in floats.graph.state if v.name != "learning_rate"]
    return {name: SAMPLES * (before[name].astype(np.float64) - trainer.state[name]) for name in names}


# ---- the checks, each of which a planted fault must fail ------------------------------------------------------------


def check_gradients(
    model: onnx.ModelProto, correlation: float = 0.95, slope: float = 0.15, update: str = "all"
) -> None:
    """Integer gradients point where float gradients point, and are as long."""
    found, expected = integer_gradients(model, update), float_gradients(model, update)
    assert set(found) == set(expected)
    for name, gradient in found.items():
        a, b = expected[name].ravel(), gradient.ravel()
        assert float(np.abs(a).max()) > 0, name
        assert np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) > correlation, name
        assert abs(np.dot(a, b) / np.dot(a, a) - 1) < slope, name


def one_step(start: int, fraction: int, count: int = 100_000) -> np.ndarray:
    """`count` weights after a step of fraction / 256, over many states of the noise."""
    w = np.full((1, 1, 1, 1000), start, np.int8)
    multiplier, shift = fx.split_factors([1.0 / 256])
    scale = (multiplier, shift, np.asarray(fx.split_factor(1.0), np.int32), np.zeros(2, np.int32))
    gradient = np.full(w.shape, fraction, np.int64)
    noise, rows = np.asarray(12345, np.int32), []
    for _ in range(count // w.size):
        rows.append(OPS["QUpdate"].reference((w, gradient, *scale, noise, np.int32(0)), QUpdateAttrs("sum"))[0])
        noise = OPS["NoiseTick"].reference((noise,), None)[0]  # type: ignore[arg-type]
    return np.concatenate(rows).ravel()


def check_unbiased() -> None:
    for start in (5, -5, 0, 90):
        for fraction in (3, -3, 128, 250, -77, 256 + 40):
            after = one_step(start, fraction)
            lower = np.floor(start - fraction / 256)
            share = start - fraction / 256 - lower
            sigma = np.sqrt(share * (1 - share) / after.size)
            assert set(after.tolist()) <= {lower, lower + 1}
            assert abs(after.mean() - (start - fraction / 256)) < 3 * sigma, (start, fraction)
