"""ONNX files with explicit state, and what onnxruntime makes of a stream of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, parser

END = 2**63 - 1


@dataclass(frozen=True)
class Stateful:
    """A step: `text` of its graph, weights by shape, tables by their numbers. window: frames of `x`, along `axis`.

    hop: frames of a call; moment: whether x of a call has no axis of time.
    """

    text: str
    weights: Mapping[str, tuple[int, ...]]
    axis: int
    hop: int
    window: int
    tables: Mapping[str, object] = field(default_factory=dict[str, object])
    moment: bool = False
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {self.opset}]>\nnet {self.text}')
        for node in made.graph.node:
            node.name = f"{node.output[0]}/{node.op_type}"
        random = np.random.default_rng(0)
        for name, shape in self.weights.items():
            array = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
            made.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        common = {"first": [1], "end": [END], "last1": [-1], "last2": [-2], "last3": [-3], "last4": [-4], "two": [2]}
        read = {name for node in made.graph.node for name in node.input}
        for name, numbers in {**common, "one": [1], **self.tables}.items():
            if name in read:
                array = np.asarray(numbers, np.float32 if isinstance(numbers, float) else np.int64)
                made.graph.initializer.append(numpy_helper.from_array(array, name))
        onnx.checker.check_model(made)
        return made

    def stream(self, calls: int, seed: int = 0) -> np.ndarray:
        """Frames of so many calls, in the axes of the window's input."""
        value = self.model().graph.input[0].type.tensor_type.shape.dim
        shape = [one.dim_value for one in value] + ([1] if self.moment else [])
        shape[self.axis] = calls * self.hop
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def called(model: onnx.ModelProto, net: Stateful, stream: np.ndarray) -> np.ndarray:
    """First output of onnxruntime at every call, state handed back; outputs are in the order of the inputs."""
    step = session(model)
    x, *states = step.get_inputs()
    kept = {one.name: np.zeros(one.shape, np.float32) for one in states}
    found = list[np.ndarray]()
    for rows in np.split(stream, stream.shape[net.axis] // net.hop, net.axis):
        out, *after = step.run(None, {x.name: rows.reshape(x.shape), **kept})
        kept = {one.name: array for one, array in zip(states, after, strict=True)}
        found.append(out)
    return np.stack(found)


ROWS = Stateful(  # two rings of different rates, time as the rows of an image
    """(float[1, 1, 2, 6] x, float[1, 1, 3, 6] s1, float[1, 4, 2, 6] s2)
    => (float[1, 3] y, float[1, 1, 3, 6] n1, float[1, 4, 2, 6] n2) {
      j1 = Concat <axis = 2> (s1, x)
      n1 = Slice (j1, last3, end, two)
      c1 = Conv <pads = [0, 1, 0, 1], strides = [2, 1]> (j1, w1, b1)
      r1 = Relu (c1)
      j2 = Concat <axis = 2> (s2, r1)
      n2 = Slice (j2, last2, end, two)
      c2 = Conv <group = 4> (j2, w2, b2)
      r2 = Relu (c2)
      f = Flatten (r2)
      y = Gemm <transB = 1> (f, w3, b3)
    }""",
    {"w1": (4, 1, 5, 3), "b1": (4,), "w2": (4, 1, 3, 1), "b2": (4,), "w3": (3, 24), "b3": (3,)},
    axis=2,
    hop=2,
    window=9,
)
COLUMNS = Stateful(  # time as the columns of an image
    """(float[1, 1, 4, 1] x, float[1, 1, 4, 2] s1) => (float[1, 2] y, float[1, 1, 4, 2] n1) {
      j1 = Concat <axis = 3> (s1, x)
      n1 = Slice (j1, last2, end, axis)
      c1 = Conv (j1, w1, b1)
      f = Flatten (c1)
      y = Gemm <transB = 1> (f, w3, b3)
    }""",
    {"w1": (3, 1, 3, 3), "b1": (3,), "w3": (2, 6), "b3": (2,)},
    axis=3,
    hop=1,
    window=3,
    tables={"axis": [3]},
)
DEQUE = Stateful(  # a state is shifted first; a call takes one moment, and the second state keeps what a layer makes
    """(float[1, 5] x, float[1, 5, 4] s1, float[1, 6, 3] s2)
    => (float[1, 3] y, float[1, 5, 4] n1, float[1, 6, 3] n2) {
      u = Unsqueeze (x, two)
      k1 = Slice (s1, first, end, two)
      n1 = Concat <axis = 2> (k1, u)
      c1 = Conv (n1, w1, b1)
      r1 = Relu (c1)
      k2 = Slice (s2, first, end, two)
      n2 = Concat <axis = -1> (k2, r1)
      c2 = Conv (n2, w2, b2)
      q = Squeeze (c2, two)
      r2 = Relu (q)
      y = Gemm <transB = 1> (r2, w3, b3)
    }""",
    {"w1": (6, 5, 4), "b1": (6,), "w2": (8, 6, 3), "b2": (8,), "w3": (3, 8), "b3": (3,)},
    axis=2,
    hop=1,
    window=6,
    moment=True,
)
BRANCHES = (
    Stateful(  # a signal: a residual that waits, two kernel sizes side by side, dilation, a pool, the last moment
        """(float[1, 4, 4] x, float[1, 4, 2] s1, float[1, 8, 4] s2, float[1, 8, 3] s3)
    => (float[1, 3] y, float[1, 4, 2] n1, float[1, 8, 4] n2, float[1, 8, 3] n3) {
      i1 = Identity (s1)
      j1 = Concat <axis = 2> (i1, x)
      e1 = Slice (j1, last2, end, two)
      n1 = Identity (e1)
      c1 = Conv (j1, w1, b1)
      p1 = MaxPool <kernel_shape = [2], strides = [2]> (c1)
      r1 = HardSwish (p1)
      j2 = Concat <axis = 2> (s2, r1)
      n2 = Slice (j2, last4, end, two)
      d2 = Conv <group = 8, dilations = [2]> (j2, w2)
      a2, b2 = Split <axis = 1> (d2, sizes)
      m2 = Slice (j2, last3, last1, two)
      a3, b3 = Split <axis = 1> (m2, sizes)
      h3 = Mul (b3, half)
      t2 = Concat <axis = 1> (a2, h3)
      g2 = Sigmoid (t2)
      j3 = Concat <axis = 2> (s3, g2)
      n3 = Slice (j3, last3, end, two)
      c3 = Conv (j3, w4, b4)
      z = Gather <axis = 2> (c3, at)
      y = Gemm <transB = 1> (z, w5, b5)
    }""",
        {"w1": (8, 4, 3), "b1": (8,), "w2": (8, 1, 3), "w4": (6, 8, 4), "b4": (6,), "w5": (3, 6), "b5": (3,)},
        axis=2,
        hop=4,
        window=18,
        tables={"sizes": [4, 4], "half": 0.5, "at": -1},
    )
)
TOKENS = Stateful(  # time in front of features, in an older opset
    """(float[1, 1, 6] x, float[1, 3, 4] s1) => (float[1, 2] y, float[1, 3, 4] n1) {
      m1 = MatMul (x, w1)
      a1 = Add (m1, b1)
      l1 = Tanh (a1)
      j1 = Concat <axis = 1> (s1, l1)
      n1 = Slice (j1, last3, end, one)
      t1 = Transpose <perm = [0, 2, 1]> (j1)
      c1 = Conv (t1, w2)
      o1 = Transpose <perm = [0, 2, 1]> (c1)
      v1 = Reshape (o1, flat)
      y = Gemm <transB = 1> (v1, w3, b3)
    }""",
    {"w1": (6, 4), "b1": (4,), "w2": (5, 4, 4), "w3": (2, 5), "b3": (2,)},
    axis=1,
    hop=1,
    window=4,
    tables={"flat": [1, 5]},
    opset=12,
)
DELAY = Stateful(  # an older moment beside what a layer makes of the last two, of which it makes more than are read
    """(float[1, 3, 1] x, float[1, 3, 4] s1) => (float[1, 2] y, float[1, 3, 4] n1) {
      j1 = Concat <axis = 2> (s1, x)
      n1 = Slice (j1, last4, end, two)
      c1 = Conv (j1, w1, b1)
      e1 = Slice (c1, last1, end, two)
      m1 = Slice (j1, last5, last4, two)
      t1 = Concat <axis = 1> (e1, m1)
      f = Flatten (t1)
      y = Gemm <transB = 1> (f, w2, b2)
    }""",
    {"w1": (4, 3, 2), "b1": (4,), "w2": (2, 7), "b2": (2,)},
    axis=2,
    hop=1,
    window=5,
    tables={"last5": [-5]},
)
LAST = Stateful(  # the state is what the call before has read
    """(float[1, 3, 2] x, float[1, 3, 2] s1) => (float[1, 2] y, float[1, 3, 2] n1) {
      j1 = Concat <axis = 2> (s1, x)
      n1 = Identity (x)
      c1 = Conv (j1, w1, b1)
      r1 = Relu (c1)
      f = Flatten (r1)
      y = Gemm <transB = 1> (f, w2, b2)
    }""",
    {"w1": (4, 3, 3), "b1": (4,), "w2": (2, 8), "b2": (2,)},
    axis=2,
    hop=2,
    window=4,
)
NETS = {
    "rows": ROWS,
    "columns": COLUMNS,
    "deque": DEQUE,
    "branches": BRANCHES,
    "tokens": TOKENS,
    "delay": DELAY,
    "last": LAST,
}


def changed(net: Stateful, change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    made = net.model()
    change(made)
    return made


def node_of(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if output in node.output)


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
