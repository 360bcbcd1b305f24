"""What the tests of `export` share: outputs by onnxruntime, what changed in a file, a network after some steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import tinytrain_compile as tt
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.export import Exported, judged_file


def outputs(model: bytes, x: Array, optimised: bool = False) -> Array:
    """By onnxruntime, node by node, or in its own integer kernels."""
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # a file may hold what no node reads
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session: Any = onnxruntime.InferenceSession(model, options)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: each[None]})[0] for each in x])


def numbers(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.SerializeToString() for tensor in model.graph.initializer}


def arrays(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def changed(before: Path, after: bytes) -> set[str]:
    """Initializers that differ; everything else of the file must be the same."""
    one, other = onnx.load(before), onnx.load_from_string(after)
    first, second = numbers(one), numbers(other)
    for model in (one, other):
        del model.graph.initializer[:]
    assert one == other
    assert list(first) == list(second)
    return {name for name in first if first[name] != second[name]}


def exported(path: Path, steps: int = 20, rate: float = 0.05, **options: Any) -> tuple[Exported, Array, Array]:
    """A network after some steps on random samples: the file, inputs, and what its twin makes of these."""
    compiled = tt.compile(path, verify="none", **options)
    train, face = compiled.project.summary.train, compiled.project.bundle.interface
    data = in_slots(face, random_samples(train, steps, 5))
    with compiled.twin() as twin:
        twin.instance.set_rate(rate)
        for i in range(steps):
            twin.instance.train(data.x[i : i + 1], data.y[i : i + 1])
        done = judged_file(compiled.project, twin, options_from(path, options), path.with_name("trained.onnx"))
        x = np.random.default_rng(3).standard_normal((6, *compiled.project.model.input_shape[1:])).astype(np.float32)
        return done, x, twin.predict(x)
