"""Makes vibration.onnx: an autoencoder 48-24-12-24-48 of the factory's machines, trained by its own generated C.

The model in this folder was made by this script; run.py does not need it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from make_data import BANDS, BASE, raw, real, stored
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import tinytrain_compile as tt

HERE = Path(__file__).resolve().parent
SIZES = (BANDS, 24, 12, 24, BANDS)
WINDOWS, EPOCHS, BATCH, SEED, RATES = 120, 30, 16, 3, (0.003, 0.001, 0.0003)
"""Windows of each machine; each rate serves for a third of the epochs."""
GRAPH = """<ir_version: 10, opset_import: ["" : 21]>
vibration (float[1,48] bands) => (float[1,48] again) {
    [enter] a = Gemm<transB=1>(bands, enter_w, enter_b)
    [relu1] b = Relu(a)
    [code] c = Gemm<transB=1>(b, code_w, code_b)
    [relu2] d = Relu(c)
    [leave] e = Gemm<transB=1>(d, leave_w, leave_b)
    [relu3] f = Relu(e)
    [bands_again] again = Gemm<transB=1>(f, bands_again_w, bands_again_b)
}"""
LAYERS = ("enter", "code", "leave", "bands_again")


def fresh_weights() -> dict[str, NDArray[np.float32]]:
    """He initialisation; biases zero."""
    rng, weights = np.random.default_rng(SEED), dict[str, NDArray[np.float32]]()
    for name, before, after in zip(LAYERS, SIZES, SIZES[1:], strict=False):
        weights[f"{name}_w"] = (np.sqrt(2 / before) * rng.standard_normal((after, before))).astype(np.float32)
        weights[f"{name}_b"] = np.zeros(after, np.float32)
    return weights


def model_with(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """The graph with these numbers."""
    model = parser.parse_model(GRAPH)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--out", type=Path, default=HERE / "vibration.onnx")
    given = arguments.parse_args()
    x = real(stored(np.concatenate([raw(number, "factory", WINDOWS) for number in BASE])))
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "vibration.onnx"
        fresh.write_bytes(model_with(fresh_weights()).SerializeToString())
        compiled = tt.compile(fresh, update="all", optimizer="adam", loss="mse", batch=BATCH, verify="none")
    rng = np.random.default_rng(SEED)
    with compiled.twin() as twin:
        for epoch in range(EPOCHS):
            order, rate = rng.permutation(len(x)), RATES[epoch * len(RATES) // EPOCHS]
            batches = [order[i : i + BATCH] for i in range(0, len(x) - BATCH + 1, BATCH)]
            losses = [twin.train_step(x[batch], x[batch], lr=rate) for batch in batches]
            print(f"epoch {epoch + 1:2}  loss {np.mean(losses):.3f}", flush=True)
        given.out.write_bytes(model_with(twin.state_dict()).SerializeToString())
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
