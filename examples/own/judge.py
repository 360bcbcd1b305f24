"""What a model file makes of the test samples, by onnxruntime, beside what the board made of them: own/judged.npz.

python examples/own/judge.py trained.onnx
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

model, judged = (*sys.argv[1:], "own/judged.npz")[:2]
with np.load(judged) as data:
    samples, labels, board = data["x"], data["y"], data["outputs"]
session = onnxruntime.InferenceSession(model)
source = session.get_inputs()[0]
kind = source.type.removeprefix("tensor(").removesuffix(")").replace("float", "float32")
each = [session.run(None, {source.name: sample[None].astype(kind)})[0] for sample in samples]
outputs = np.stack(each).reshape(board.shape)
if labels.dtype.kind in "iu" and outputs.ndim >= 2:
    axis = -1 if outputs[..., 0].size == labels.size else 1
    said = f"{np.mean(outputs.argmax(axis).ravel() == labels.ravel()):.1%} right"
else:
    said = f"mean squared error {np.mean(np.square(outputs - labels.reshape(outputs.shape))):.4g}"
print(
    f"{model}: {len(samples)} test samples, {said}; largest difference to the board {np.abs(outputs - board).max():.1e}"
)
