"""Mutants of sound models: on the level of bytes, and of ONNX fields (which get much deeper)."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import numpy_helper

from tests.e2e import models
from tinytrain_compile.frontend import supported_operators

NUMBERS = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 5, 255, 2**31 - 1, 2**40, 2**63 - 1)
REALS = (0.0, -0.0, 1e-45, -1.0, 1.0, 3e38, float("inf"), float("-inf"), float("nan"), 0.5)


def originals() -> list[onnx.ModelProto]:
    """Small models that together use most operators."""
    spotting = models.ds_cnn(channels=4, blocks=1, size=(12, 6))
    return [
        models.mlp(tail="Softmax"),
        models.with_loss(spotting, ignore=2),
        models.resnet8(channels=2, size=8),
        models.transformer(tokens=3, width=4, heads=2),
    ]


def byte_mutant(data: bytes, source: random.Random) -> bytes:
    """Flipped bits, changed bytes, cut or repeated pieces."""
    result = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        place = source.randrange(len(result))
        kind = source.randrange(5)
        if kind == 0:
            result[place] ^= 1 << source.randrange(8)
        elif kind == 1:
            result[place] = source.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del result[place : place + source.choice((1, 2, 8, 64))]
        elif kind == 3:
            result[place:place] = result[place : place + source.choice((1, 4, 32))]
        else:
            del result[max(place, 1) :]
    return bytes(result)


def field_mutant(model: onnx.ModelProto, source: random.Random) -> bytes:
    """One to three changed fields; the result is always a readable protobuf."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for _ in range(source.choice((1, 1, 2, 3))):
        source.choice((_operator, _edge, _attribute, _weight, _input, _node))(result, source)
    return result.SerializeToString()


def _operator(model: onnx.ModelProto, source: random.Random) -> None:
    source.choice(model.graph.node).op_type = source.choice(supported_operators())


def _edge(model: onnx.ModelProto, source: random.Random) -> None:
    """A node reads another value, one more, or one less."""
    graph = model.graph
    node = source.choice(graph.node)
    names = [out for other in graph.node for out in other.output]
    names += [item.name for item in (*graph.initializer, *graph.input)] + [""]
    if node.input and source.randrange(3):
        node.input[source.randrange(len(node.input))] = source.choice(names)
    elif node.input and source.randrange(2):
        del node.input[-1]
    else:
        node.input.append(source.choice(names))


def _attribute(model: onnx.ModelProto, source: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    attribute = source.choice(source.choice(nodes).attribute)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = source.choice(NUMBERS)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = source.choice(REALS)
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        kind = source.randrange(3)
        if kind == 0:
            attribute.ints[source.randrange(len(attribute.ints))] = source.choice(NUMBERS)
        elif kind == 1:
            del attribute.ints[-1]
        else:
            attribute.ints.append(source.choice(NUMBERS[3:8]))
    else:
        attribute.name = source.choice(("axis", "pads", "perm", "alpha"))


def _weight(model: onnx.ModelProto, source: random.Random) -> None:
    """Another shape of the same data, or another number in it."""
    tensor = source.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    kind = source.randrange(4)
    if kind == 0:
        array = array.reshape(source.choice(((-1,), (1, -1), (-1, 1), (1, *array.shape), array.shape[::-1])))
    elif kind == 1:
        array = array.astype(source.choice((np.float16, np.float64, np.int32, np.int64, np.uint8)))
    elif kind == 2 and array.size:
        numbers = REALS if array.dtype.kind == "f" else NUMBERS
        array.ravel()[source.randrange(array.size)] = source.choice(numbers)
    elif array.ndim:
        array = array[..., :-1]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _input(model: onnx.ModelProto, source: random.Random) -> None:
    shape = source.choice(model.graph.input).type.tensor_type.shape
    if shape.dim and source.randrange(3):
        source.choice(shape.dim).dim_value = source.choice(NUMBERS)
    elif shape.dim and source.randrange(2):
        del shape.dim[-1]
    else:
        shape.dim.add().dim_param = "n"


def _node(model: onnx.ModelProto, source: random.Random) -> None:
    """A node is lost, or occurs twice."""
    place = source.randrange(len(model.graph.node))
    if source.randrange(2):
        copy = model.graph.node.add()
        copy.CopyFrom(model.graph.node[place])
        if source.randrange(2):
            copy.name += "_again"
            copy.output[0] += "_again"
    else:
        del model.graph.node[place]
