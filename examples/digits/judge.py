"""How much of the held-back digits a model file knows, by onnxruntime: python judge.py trained.onnx."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime

with np.load(Path(__file__).parent / "data.npz") as data:
    images, labels = data["x_test"], data["y_test"]
session = onnxruntime.InferenceSession(sys.argv[1])
found = [session.run(None, {"image": image[None]})[0].argmax() for image in images]
print(f"{sys.argv[1]}: held-back accuracy {np.mean(found == labels):.1%}, by onnxruntime")
