"""A QDQ file trains as the float file does that is left when its formats are taken out.

Taken out here, by rules that share no code with the importer; formats are wide, so that none cuts anything off.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tinytrain_compile as tt
from tests.campaign.nets import image_net, random_net
from tests.campaign.qdq_form import qdq_form
from tinytrain_compile.api import Compiled
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.ir.types import Array

STEPS, WIDER = 5, 64


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Activations with a larger step and the zero point in the middle."""
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    formats = {tuple(node.input[1:3]) for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for scale, zero in sorted(formats):
        kind = numpy_helper.to_array(held[zero]).dtype
        wide = numpy_helper.to_array(held[scale]) * np.float32(WIDER)
        held[scale].CopyFrom(numpy_helper.from_array(wide, scale))
        held[zero].CopyFrom(numpy_helper.from_array(np.asarray(128 if kind == np.uint8 else 0, kind), zero))
    return model


def real_numbers(node: onnx.NodeProto, held: dict[str, Array]) -> Array:
    """What a DequantizeLinear makes of a stored weight."""
    stored, scale, zero = (held[name].astype(np.float64) for name in node.input)
    if scale.size > 1:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape = [-1 if at == axis % stored.ndim else 1 for at in range(stored.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return ((stored - zero) * scale).astype(np.float32)


def without_formats(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stored weights as real numbers, under the name of the integers; what is quantised and back is itself."""
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    same, kept = dict[str, str](), list[onnx.NodeProto]()
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in held:
            if held[node.input[0]].dtype.kind != "f":
                held[node.input[0]] = real_numbers(node, held)
            same[node.output[0]] = node.input[0]
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            same[node.output[0]] = same.get(node.input[0], node.input[0])
        else:
            kept.append(onnx.NodeProto())
            kept[-1].CopyFrom(node)
            kept[-1].input[:] = [same.get(name, name) for name in node.input]
    ends = [output.name for output in model.graph.output if output.name in same]
    kept += [onnx.helper.make_node("Identity", [same[name]], [name], name=f"{name}.end") for name in ends]
    read = {name for node in kept for name in node.input}
    graph = onnx.helper.make_graph(
        kept,
        "float",
        model.graph.input,
        model.graph.output,
        [numpy_helper.from_array(array, name) for name, array in held.items() if name in read],
    )
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def losses(compiled: Compiled) -> list[float]:
    """Of some updates of all parameters."""
    project = compiled.project
    data = in_slots(project.bundle.interface, random_samples(project.summary.train, STEPS, 5))
    with compiled.twin() as twin:
        return [float(twin.instance.train(data.x[i : i + 1], data.y[i : i + 1])[0]) for i in range(STEPS)]


@pytest.mark.parametrize("number", [2, 5, 15, 16, 38])
def test_a_quantised_file_trains_as_its_real_numbers(number: int, tmp_path: Path) -> None:
    source = Random(f"quantised training {number}")
    drawn = image_net(source) if number % 2 else random_net(source)
    model = widened(qdq_form(drawn.model, source, tmp_path))
    loss = source.choice(drawn.losses)
    options = {"verify": "none", "quant": "fp32", "update": "all", "lr": 0.03, "batch_norm": "keep", "dropout": "off"}
    options |= {"loss": loss} if loss else {}
    found = list[list[float]]()
    for name, each in (("quantised.onnx", model), ("float.onnx", without_formats(model))):
        (tmp_path / name).write_bytes(each.SerializeToString())
        found.append(losses(tt.compile(tmp_path / name, **options)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-5)
    assert len(set(found[0])) == STEPS
