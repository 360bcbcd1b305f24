"""Makes keywords.onnx: a small DS-CNN that knows ten words of the base speakers, trained by its own generated C.

Needs out/base.npz (make_data.py, which needs espeak-ng). The model in this folder was made by this script; run.py does
not need it. The twin trains: `tinytrain_compile.compile` with all layers, Adam and a batch, built for this machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from make_data import STEPS, WORDS
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import tinytrain_compile as tt

HERE = Path(__file__).resolve().parent
EPOCHS, BATCH, SEED = 24, 16, 3
RATES = (0.002, 0.0005, 0.0001)
"""Each for a third of the epochs."""
CHANNELS, BLOCKS = 48, 3

Array = NDArray[Any]


def network() -> str:
    """The graph in ONNX's text form: a convolution, separable blocks, the mean over time and cepstrum, a classifier."""
    lines = ["[conv1] c = Conv<pads=[5,1,4,1], strides=[2,2]>(mfcc, conv1_w, conv1_b)", "[relu1] r0 = Relu(c)"]
    for i in range(1, BLOCKS + 1):
        lines += [
            f"[depth{i}] d{i} = Conv<pads=[1,1,1,1], group={CHANNELS}>(r{i - 1}, depth{i}_w, depth{i}_b)",
            f"[relu_d{i}] e{i} = Relu(d{i})",
            f"[point{i}] p{i} = Conv(e{i}, point{i}_w, point{i}_b)",
            f"[relu_p{i}] r{i} = Relu(p{i})",
        ]
    lines += [
        f"[pool] m = GlobalAveragePool(r{BLOCKS})",
        "[flatten] f = Flatten(m)",
        "[classifier] logits = Gemm<transB=1>(f, classifier_w, classifier_b)",
    ]
    head = '<ir_version: 10, opset_import: ["" : 21]>\n'
    return head + "keywords (float[1,1,49,10] mfcc) => (float[1,10] logits) {\n" + "\n".join(lines) + "\n}"


def fresh_weights() -> dict[str, Array]:
    """He initialisation; biases zero."""
    shapes = {"conv1": (CHANNELS, 1, 10, 4), "classifier": (len(WORDS), CHANNELS)}
    for i in range(1, BLOCKS + 1):
        shapes |= {f"depth{i}": (CHANNELS, 1, 3, 3), f"point{i}": (CHANNELS, CHANNELS, 1, 1)}
    rng, weights = np.random.default_rng(SEED), dict[str, Array]()
    for name, shape in shapes.items():
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weights[f"{name}_w"] = (spread * rng.standard_normal(shape)).astype(np.float32)
        weights[f"{name}_b"] = np.zeros(shape[0], np.float32)
    return weights


def model_with(weights: dict[str, Array]) -> onnx.ModelProto:
    """The network with these weights."""
    model = parser.parse_model(network())
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def real(features: Array) -> Array:
    """Stored features as the network takes them: (N, 1, 49, 10)."""
    return (features / np.float32(STEPS)).astype(np.float32)[:, None]


def shifted(x: Array, rng: np.random.Generator) -> Array:
    """Each a few frames earlier or later, and a little louder or softer: other samples of what is known."""
    moved = np.stack([np.roll(one, int(rng.integers(-3, 4)), axis=1) for one in x])
    return (moved + rng.normal(0, 0.15, (len(x), 1, 1, 1))).astype(np.float32)


def main() -> None:
    """Train, say how well it knows speakers that it has never heard, write the file."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--base", type=Path, default=HERE / "out" / "base.npz")
    arguments.add_argument("--out", type=Path, default=HERE / "keywords.onnx")
    given = arguments.parse_args()
    with np.load(given.base) as base, np.load(HERE / "features.npz") as features:
        x, y = real(base["x"]), base["y"]
        old_x, old_y = real(features["old_development_x"]), features["old_development_y"]
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "keywords.onnx"
        onnx.save(model_with(fresh_weights()), fresh)
        compiled = tt.compile(fresh, update="all", optimizer="adam", batch=BATCH, verify="none")
    rng = np.random.default_rng(SEED)
    with compiled.twin() as twin:
        for epoch in range(EPOCHS):
            order, rate = rng.permutation(len(x)), RATES[epoch * len(RATES) // EPOCHS]
            seen = shifted(x, rng)
            batches = [order[i : i + BATCH] for i in range(0, len(x) - BATCH + 1, BATCH)]
            losses = [twin.train_step(seen[batch], y[batch], lr=rate) for batch in batches]
            print(f"epoch {epoch + 1:2}  loss {np.mean(losses):.3f}", flush=True)
        print(f"old speakers never heard: {twin.evaluate(old_x, old_y)['accuracy']:.1%} right")
        onnx.save(model_with(twin.state_dict()), given.out)
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
