"""Forms of a file that become the one that is imported: one output, opset 13, float32, a batch of 1."""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper, version_converter

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.model import OnnxModel

DEFAULT_DOMAINS = ("", "ai.onnx")
OPSET = 13
"""The first that is imported as it stands."""
OLDEST_OPSET = 7
"""The first that onnx's version converter knows well enough."""
FREE_INITIALIZERS = 4
"""The first IR version whose initializers need not be inputs."""


def with_output(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The file with this output only; "" keeps what it has. E0218 if it has no such output."""
    if not name:
        return proto
    chosen = [value for value in proto.graph.output if value.name == name]
    if not chosen:
        names = ", ".join(value.name for value in proto.graph.output)
        raise CompileError(
            "E0218", f"--model-output {name}", "the model has no such output", f"its outputs are: {names}"
        )
    del proto.graph.output[:]
    proto.graph.output.extend(chosen[:1])
    return proto


def at_opset_13(model: OnnxModel) -> onnx.ModelProto:
    """What counts of a checked model of an older opset, as onnx's converter writes it. E0208 where that cannot."""
    graph = onnx.GraphProto(name=model.name)
    graph.node.extend(node.proto for node in model.nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in model.constants.items())
    graph.input.extend(helper.make_tensor_value_info(v.name, v.elem_type, v.shape) for v in model.inputs)
    graph.output.extend(model.proto.graph.output)
    foreign = [entry for entry in model.proto.opset_import if entry.domain not in DEFAULT_DOMAINS]
    opsets = [helper.make_opsetid("", model.opset), *foreign]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=max(model.proto.ir_version, FREE_INITIALIZERS))
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as problem:  # ConvertError, RuntimeError of the C++ part
        what = f"opset {model.opset}, and onnx's version converter fails: {' '.join(str(problem).split())[:120]}"
        raise CompileError("E0208", model.name, what, f"export with opset {OPSET} or later") from problem
