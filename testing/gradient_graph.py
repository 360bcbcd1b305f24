"""A forward model that ends in its loss as the training graph that ONNX Runtime's tools write of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


def gradient_graph(model: onnx.ModelProto, trained: Sequence[str] = ()) -> onnx.ModelProto:
    """Return it with weights as inputs, gradients by operators that do not exist, and accumulators.

    Its initializers with axes become inputs; of these `trained` have an accumulator (default: all).
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    weights = [tensor for tensor in graph.initializer if tensor.dims and tensor.data_type == TensorProto.FLOAT]
    for tensor in weights:
        graph.initializer.remove(tensor)
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    loss = graph.output[0].name
    for name in trained or [tensor.name for tensor in weights]:
        gradient, buffer = f"{name}_grad", f"{name}_grad.accumulation.buffer"
        graph.node.append(helper.make_node("UnreadGrad", [loss, name], [gradient], domain=MICROSOFT, anything=1))
        accumulate = [buffer, gradient, "lazy_reset_grad"]
        out = f"{name}_grad.accumulation.out"
        graph.node.append(helper.make_node("InPlaceAccumulatorV2", accumulate, [out], domain=MICROSOFT))
        graph.input.append(helper.make_tensor_value_info(buffer, TensorProto.FLOAT, None))
        graph.output.append(helper.make_tensor_value_info(out, TensorProto.FLOAT, None))
    graph.input.append(helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1]))
    made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the numbers of the initializers that `gradient_graph` makes inputs of."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.dims and tensor.data_type == TensorProto.FLOAT]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def write_graph(model: onnx.ModelProto, folder: Path, trained: Sequence[str] = ()) -> tuple[Path, Path]:
    """Write a forward model as a training graph; return the paths of it and of its weights."""
    path, weights = folder / "training_model.onnx", folder / "weights.npz"
    path.write_bytes(gradient_graph(model, trained).SerializeToString())
    np.savez(weights, allow_pickle=False, **weights_of(model))
    return path, weights
