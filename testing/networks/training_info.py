"""A dense network whose file says how it is trained (TrainingInfoProto), by any of its four optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PREVIEW = "ai.onnx.preview.training"
SHAPES = {"w1": (8, 6), "b1": (8,), "w2": (4, 8), "b2": (4,)}
STATES = {"Momentum": ("v",), "Adam": ("v", "h"), "Adagrad": ("h",), "Sgd": ()}


def info_model(optimizer: str, start: int = 0, bind_state: bool = True, **attributes: Any) -> onnx.ModelProto:
    """Return a network with cross-entropy, its Gradient, and one optimizer for all four weights."""
    random = np.random.default_rng(4)
    weights = [numpy_helper.from_array(random.normal(size=s).astype(np.float32) * 0.4, n) for n, s in SHAPES.items()]
    forward = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["a"], "act"),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["y"], "fc2", transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    names, states = list(SHAPES), STATES[optimizer]
    gradients = [f"g_{name}" for name in names]
    nodes = [
        helper.make_node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"]),
        helper.make_node("Gradient", [*names, "x"], gradients, domain=PREVIEW, xs=names, y="loss", zs=["x"]),
        helper.make_node("Add", ["T", "one"], ["T_new"]),
    ]
    kept = [f"{kind}_{name}" for kind in states for name in names]
    if optimizer == "Sgd":
        for name, gradient in zip(names, gradients, strict=True):
            nodes.append(helper.make_node("Mul", [gradient, "R"], [f"s_{name}"]))
            nodes.append(helper.make_node("Sub", [name, f"s_{name}"], [f"{name}_new"]))
    else:
        operands, results = ["R", "T", *names, *gradients, *kept], [f"{name}_new" for name in (*names, *kept)]
        nodes.append(helper.make_node(optimizer, operands, results, domain=PREVIEW, **attributes))
    state = [
        numpy_helper.from_array(np.abs(random.normal(size=SHAPES[n.partition("_")[2]])).astype(np.float32) * start, n)
        for n in kept
    ]
    numbers = {"R": np.float32(0.05), "T": np.asarray(start), "one": np.asarray(1)}
    tensors = [*state, *(numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items())]
    label = helper.make_tensor_value_info("labels", TensorProto.INT64, [1])
    bound = [*names, "T", *(kept if bind_state else ())]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("loss", *(f"{n}_new" for n in bound))]
    info = onnx.TrainingInfoProto()
    info.algorithm.CopyFrom(helper.make_graph(nodes, "step", [label], outs, tensors))
    for name in bound:
        info.update_binding.add(key=name, value=f"{name}_new")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(PREVIEW, 1)]
    model = helper.make_model(helper.make_graph(forward, "net", [x], [y], weights), opset_imports=opsets, ir_version=9)
    model.training_info.append(info)
    return model
