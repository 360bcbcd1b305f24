"""Pre-training of the convergence experiment in numpy: convolutions with batch normalisation, which is then folded.

Nothing of the compiler takes part: a network is brought to a device trained by something else. All tensors are NHWC;
a weight is (taps, input channels or 1, output channels), its taps row by row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.learning.digit_domains import Split, domain_a

# (input channels, output channels, kernel, stride, depthwise)
LAYERS = [(1, 8, 3, 2, 0), (8, 8, 3, 1, 1), (8, 16, 1, 1, 0), (16, 16, 3, 2, 1), (16, 24, 1, 1, 0)]
LAYERS += [(24, 24, 3, 1, 1), (24, 32, 1, 1, 0)]
DEEP = [(1, 8, 3, 2, 0), (8, 8, 3, 1, 1), (8, 16, 1, 1, 0), (16, 16, 3, 2, 1), (16, 32, 1, 1, 0)]
DEEP += [part for _ in range(4) for part in ((32, 32, 3, 1, 1), (32, 32, 1, 1, 0))]
DEEP += [(32, 32, 3, 2, 1), (32, 48, 1, 1, 0)]
CLASSES = 10
EPSILON, MOVING = 1e-5, 0.1
"""Of the normalisation: added to the variance; share of a batch in the moving statistics."""
_RATE, _BETA1, _BETA2 = 3e-3, 0.9, 0.999
Tensors = dict[str, Any]
Layer = tuple[int, int, int, int, int]
Layers = list[Layer]


def pretrain(seed: int, part: Split, epochs: int = 30, batch: int = 32, layers: Layers = LAYERS) -> Tensors:
    """ONNX weights w0.. (out, in or 1, k, k), biases b0.., head wh, bh after Adam on upright digits."""
    rng = np.random.default_rng(500 + seed)
    params, moving = _initial(rng, layers), _moving(layers)
    means, squares = ({k: np.zeros_like(v) for k, v in params.items()} for _ in range(2))
    steps = 0
    for epoch in range(epochs):
        images = domain_a(part.x, seed * 977 + epoch).transpose(0, 2, 3, 1)
        order = rng.permutation(len(images))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            gradients = _gradients(layers, params, moving, images[chosen], part.y[chosen, 0])
            steps += 1
            for name, g in gradients.items():
                means[name] = _BETA1 * means[name] + (1 - _BETA1) * g
                squares[name] = _BETA2 * squares[name] + (1 - _BETA2) * g * g
                spread = np.sqrt(squares[name] / (1 - _BETA2**steps)) + 1e-8
                params[name] = params[name] - _RATE * means[name] / (1 - _BETA1**steps) / spread
    return _folded(layers, params, moving)


def _initial(rng: Any, layers: Layers) -> Tensors:
    """Uniform in +-1/sqrt(inputs of a sum), as the experiment's framework starts; scales of 1 and shifts of 0."""
    params: Tensors = {}
    for i, (cin, cout, k, _, depthwise) in enumerate(layers):
        shape = (k * k, 1 if depthwise else cin, cout)
        params[f"w{i}"] = rng.uniform(-1, 1, shape) / math.sqrt(shape[0] * shape[1])
        params[f"gamma{i}"], params[f"beta{i}"] = np.ones(cout), np.zeros(cout)
    width = layers[-1][1]
    for name, shape in (("wh", (CLASSES, width)), ("bh", (CLASSES,))):
        params[name] = rng.uniform(-1, 1, shape) / math.sqrt(width)
    return params


def _moving(layers: Layers) -> Tensors:
    means = {f"mean{i}": np.zeros(layer[1]) for i, layer in enumerate(layers)}
    return means | {f"var{i}": np.ones(layer[1]) for i, layer in enumerate(layers)}


def _folded(layers: Layers, params: Tensors, moving: Tensors) -> Tensors:
    """Weights and biases of plain convolutions with what the normalisation does, in ONNX layout."""
    weights: Tensors = {"wh": params["wh"], "bh": params["bh"]}
    for i, (_, cout, k, _, _) in enumerate(layers):
        scale = params[f"gamma{i}"] / np.sqrt(moving[f"var{i}"] + EPSILON)
        w = params[f"w{i}"] * scale
        weights[f"w{i}"] = w.reshape(k, k, -1, cout).transpose(3, 2, 0, 1)
        weights[f"b{i}"] = params[f"beta{i}"] - moving[f"mean{i}"] * scale
    return {name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()}


def _gradients(layers: Layers, params: Tensors, moving: Tensors, x: Any, labels: Any) -> Tensors:
    """Of the mean cross-entropy of one batch; brings the moving statistics up to date."""
    kept = []
    for i in range(len(layers)):
        taps, y = convolve(layers[i], x, params[f"w{i}"])
        mean, var, count = y.mean((0, 1, 2)), y.var((0, 1, 2)), y[..., 0].size
        for name, now in ((f"mean{i}", mean), (f"var{i}", var * count / (count - 1))):
            moving[name] = (1 - MOVING) * moving[name] + MOVING * now
        inverse = 1 / np.sqrt(var + EPSILON)
        normal = (y - mean) * inverse
        out = np.maximum(normal * params[f"gamma{i}"] + params[f"beta{i}"], 0)
        kept.append((x.shape, taps, normal, inverse, out > 0))
        x = out
    pooled = x.mean((1, 2))
    logits = pooled @ params["wh"].T + params["bh"]
    d = np.exp(logits - logits.max(1, keepdims=True))
    d /= d.sum(1, keepdims=True)
    d[np.arange(len(d)), labels] -= 1
    d /= len(d)
    found: Tensors = {"wh": d.T @ pooled, "bh": d.sum(0)}
    g: Any = np.broadcast_to((d @ params["wh"])[:, None, None] / (x.shape[1] * x.shape[2]), x.shape)
    for i in reversed(range(len(layers))):
        shape, taps, normal, inverse, passes = kept[i]
        g = g * passes
        found[f"beta{i}"], found[f"gamma{i}"] = g.sum((0, 1, 2)), (g * normal).sum((0, 1, 2))
        g = g * params[f"gamma{i}"]
        g = (g - g.mean((0, 1, 2)) - normal * (g * normal).mean((0, 1, 2))) * inverse
        found[f"w{i}"], g = convolution_gradients(layers[i], shape, taps, params[f"w{i}"], g)
    return found


def _windows(layer: Layer, padded: Any) -> list[Any]:
    """One view of the padded images for each tap: what the tap multiplies."""
    _, _, k, stride, _ = layer
    end = padded.shape[1] - k + 1
    return [padded[:, r : r + end : stride, c : c + end : stride] for r in range(k) for c in range(k)]


def convolve(layer: Layer, x: Any, w: Any) -> tuple[Any, Any]:
    """(what each tap multiplies, sums)."""
    _, _, k, _, depthwise = layer
    taps = np.stack(_windows(layer, np.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2), (0, 0)))), -2)
    if depthwise:
        return taps, (taps * w[:, 0]).sum(-2)
    return taps, taps.reshape(*taps.shape[:3], -1) @ w.reshape(-1, w.shape[-1])


def convolution_gradients(layer: Layer, shape: Any, taps: Any, w: Any, g: Any) -> tuple[Any, Any]:
    """(of the weight, of the input)."""
    _, _, k, _, depthwise = layer
    n, height, width, channels = shape
    if depthwise:
        weight, pieces = (taps * g[..., None, :]).sum((0, 1, 2))[:, None], g[..., None, :] * w[:, 0]
    else:
        flat = g.reshape(-1, g.shape[-1])
        weight = (taps.reshape(len(flat), -1).T @ flat).reshape(w.shape)
        pieces = (flat @ w.reshape(-1, w.shape[-1]).T).reshape(taps.shape)
    padded = np.zeros((n, height + k - 1, width + k - 1, channels))
    for tap, window in enumerate(_windows(layer, padded)):
        window += pieces[..., tap, :]
    return weight, padded[:, k // 2 : k // 2 + height, k // 2 : k // 2 + width]
