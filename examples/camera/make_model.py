"""Writes camera.onnx, whose weights are random, and calib.npz: what the camera of main.c sees, in real numbers.

A picture of 16x16 pixels shows a square of one of four colours on a dark ground. A byte b of a pixel is
the number b / 255.
"""

from pathlib import Path

import numpy as np
from onnx import numpy_helper, parser, save

HERE = Path(__file__).resolve().parent
MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
camera (float[1, 3, 16, 16] picture) => (float[1, 4] colour) {
    [edges] a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (picture, edges_weight, edges_bias)
    b = Relu (a)
    [shapes] c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (b, shapes_weight, shapes_bias)
    d = Relu (c)
    e = GlobalAveragePool (d)
    f = Flatten (e)
    [head] colour = Gemm <transB = 1> (f, head_weight, head_bias)
}
"""
COLOURS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])


def pictures(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(count, 3, 16, 16) numbers from 0 to 1, and which colour each shows."""
    labels = random.integers(0, 4, count)
    x = random.integers(0, 64, (count, 3, 16, 16))
    for picture, label in zip(x, labels, strict=True):
        top, left = random.integers(0, 10, 2)
        square = picture[:, top : top + 6, left : left + 6]
        square += 160 * COLOURS[label][:, None, None]
    x[0, :, 0, 0] = 0, 255, 255  # the whole range of a byte, so that a byte is a step of the input
    return (x / 255).astype(np.float32), labels


def main() -> None:
    """Both files, beside this one."""
    random, model = np.random.default_rng(0), parser.parse_model(MODEL)
    for name, shape in (("edges", (8, 3, 3, 3)), ("shapes", (16, 8, 3, 3)), ("head", (4, 16))):
        weight = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) / 2)
        for part, numbers in (("weight", weight), ("bias", np.zeros(shape[0]))):
            model.graph.initializer.append(numpy_helper.from_array(numbers.astype(np.float32), f"{name}_{part}"))
    save(model, HERE / "camera.onnx")
    x, y = pictures(32, random)
    np.savez_compressed(HERE / "calib.npz", x=x, y=y)


if __name__ == "__main__":
    main()
