"""What a quantised model's storage cuts off is a part of what it computes: exporters leave ReLUs to it.

onnxruntime runs the file; our float32 form, and the int8 form with either head, must stay within rounding of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.e2e import chain
from tests.frontend.models import write
from tests.frontend.qdq import Maker
from tests.quantize import nets
from tests.quantize.gradients import float_gradients, integer_gradients
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.interpreter import run_graph
from tinytrain_compile.quantize import QuantOptions, prepare, quantise, saturated
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

STEP = 0.05
IMAGE = "net (float[1, 3, 6, 6] input) => (float[1, 4] output)"


def image_net(middle: str, formats: dict[str, tuple[float, int]], last: str = "m") -> onnx.ModelProto:
    """input -> Q/DQ -> Conv c -> `middle`, which makes `last` -> mean -> Q/DQ -> dense layer -> Q/DQ."""
    m = Maker(3)
    known = {name: m.scale(name, *numbers) for name, numbers in formats.items()}
    x, p, y = m.scale("x", 0.02), m.scale("p", 0.02), m.scale("y", STEP)
    w, f = m.weight("w", (4, 3, 3, 3), 4), m.weight("f", (4, 4), 4)
    m.weights["shape"] = np.asarray([1, 4, 36], np.int64)
    m.weights["back"] = np.asarray([1, 4, 6, 6], np.int64)
    text = f"""{IMAGE} {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        {middle.format(**known)}
        mean = GlobalAveragePool({last})
        pq = QuantizeLinear(mean, {p})
        pd = DequantizeLinear(pq, {p})
        flat = Flatten(pd)
        fd = DequantizeLinear<axis = 0>(f, {f})
        g = Gemm<transB = 1>(flat, fd)
        yq = QuantizeLinear(g, {y})
        output = DequantizeLinear(yq, {y})
        }}"""
    return nets.named(m.model(text))


def qdq(source: str, form: str, name: str) -> str:
    """Source -> QuantizeLinear -> DequantizeLinear -> name."""
    return f"{name}q = QuantizeLinear({source}, {{{form}}})\n{name} = DequantizeLinear({name}q, {{{form}}})\n"


RELU = {"a": (0.02, -128), "b": (0.02, 0), "n": (0.007, 5)}
"""A format that begins at 0, a symmetric one, and one of a smaller range."""
NETS: dict[str, onnx.ModelProto] = {
    "behind a convolution": image_net(qdq("c", "a", "m"), RELU),
    "behind a pool": image_net(
        qdq("c", "b", "r") + "k = MaxPool<kernel_shape = [2, 2]>(r)\n" + qdq("k", "a", "m"), RELU
    ),
    "behind a pool, to a smaller range": image_net(
        qdq("c", "b", "r") + "k = MaxPool<kernel_shape = [2, 2]>(r)\n" + qdq("k", "n", "m"), RELU
    ),
    "behind a sum": image_net(qdq("c", "b", "r") + "s = Add(r, r)\n" + qdq("s", "a", "m"), RELU),
    "of both operands of a concatenation": image_net(
        qdq("c", "b", "r") + qdq("xd", "b", "x2") + "k = Concat<axis = 2>(r, r)\n" + qdq("k", "n", "m"), RELU
    ),
    "of a concatenation": image_net(qdq("c", "b", "r") + "k = Concat<axis = 2>(r, r)\n" + qdq("k", "a", "m"), RELU),
    "of a concatenation of an integer and a real number": image_net(
        qdq("c", "b", "r")
        + "s = Mul(r, r)\n"
        + qdq("s", "b", "t")
        + "k = Concat<axis = 2>(t, r)\n"
        + qdq("k", "a", "m"),
        RELU,
    ),
    "of a concatenation of real numbers": image_net(
        "s = Sigmoid(c)\nt = Tanh(c)\nk = Concat<axis = 2>(s, t)\n" + qdq("k", "a", "v") + "m = Exp(v)\n", RELU
    ),
    "in one of two branches": image_net(
        qdq("c", "a", "r") + qdq("c", "b", "s") + "t = Sub(r, s)\n" + qdq("t", "b", "m"), RELU
    ),
    "in one of two branches, the other first": image_net(
        qdq("c", "b", "s") + qdq("c", "a", "r") + "t = Sub(r, s)\n" + qdq("t", "b", "m"), RELU
    ),
    "beside a reader of the number itself": image_net(
        qdq("c", "a", "r") + "t = Sub(r, c)\n" + qdq("t", "b", "m"), RELU
    ),
    "of a stored number again": image_net(qdq("c", "b", "r") + qdq("r", "a", "m"), RELU),
    "behind an operator that changes nothing": image_net(
        qdq("c", "b", "r") + "i = Identity(r)\n" + qdq("i", "a", "m"), RELU
    ),
    "behind a change of shape": image_net(
        qdq("c", "b", "r") + "i = Reshape(r, shape)\n" + qdq("i", "a", "v") + "m = Reshape(v, back)", RELU
    ),
    "of another name beside a reader": image_net(
        "i = Identity(c)\n" + qdq("i", "a", "r") + "t = Sub(r, c)\n" + qdq("t", "b", "m"), RELU
    ),
    "behind tanh": image_net("h = Tanh(c)\n" + qdq("h", "n", "m"), RELU),
}


def output_relu() -> onnx.ModelProto:
    """The last layer's ReLU is in its format too, in front of a mean that keeps real numbers."""
    m = Maker(5)
    x, y = m.scale("x", 0.02), m.scale("y", STEP, -128)
    w, f = m.weight("w", (4, 3, 3, 3), 4), m.weight("f", (4, 4, 1, 1), 4)
    z = m.scale("z", 0.02)
    return nets.named(
        m.model(f"""net (float[1, 3, 6, 6] input) => (float[1, 4, 1, 1] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        cq = QuantizeLinear(c, {z})
        cd = DequantizeLinear(cq, {z})
        fd = DequantizeLinear<axis = 0>(f, {f})
        h = Conv(cd, fd)
        hq = QuantizeLinear(h, {y})
        hd = DequantizeLinear(hq, {y})
        output = GlobalAveragePool(hd)
        }}""")
    )


NETS["behind the head"] = output_relu()


def expected_of(model: onnx.ModelProto, xs: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(write(model, folder).read_bytes(), options)
    return [session.run(None, {"input": x})[0] for x in xs]


def samples(spread: float) -> list[np.ndarray]:
    """Some leave the range of the input's format (2.5)."""
    random = np.random.default_rng(2)
    return [random.normal(0, spread, (1, 3, 6, 6)).astype(np.float32) for _ in range(6)]


def in_integers(known: ImportedModel, head: bool, xs: list[np.ndarray]) -> list[np.ndarray]:
    """Inference of the int8 training graph; its inputs saturate where they are stored."""
    model = replace(known, graph=prepare(known.graph, head, True))
    update = resolve_update(model.graph, "all")
    train = quantise(build_training(model, update, TrainingOptions(loss="mse")), QuantOptions())
    source = train.graph.inputs[0]
    assert source.quant is not None
    trainer = Trainer(train)
    stored = [np.rint(x / np.float32(source.quant.scale[0])) + source.quant.zero for x in xs]
    return [trainer.infer(np.clip(q, -128, 127).astype(np.int8)) for q in stored]


@pytest.mark.parametrize("case", NETS)
def test_what_storage_cuts_off_is_cut_off(case: str, tmp_path: Path) -> None:
    model, xs = NETS[case], samples(2.0)
    expected = expected_of(model, xs, tmp_path)
    known = chain.imported(model)
    real = saturated(known.graph)
    assert all(value.quant is None for node in real.nodes for value in node.outputs)
    images = [x.transpose(known.input_perm) for x in xs]
    found = {"float32": [run_graph(real, {real.inputs[0].name: x})[real.outputs[0].name] for x in images]}
    for head in (True, False):
        found[f"int8, {'float' if head else 'int8'} head"] = in_integers(known, head, images)
    for form, results in found.items():
        for ours, theirs in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours.ravel(), theirs.ravel(), rtol=0, atol=2.5 * STEP, err_msg=form)
    assert float(np.ptp(expected)) > 8 * STEP


def test_only_where_something_may_be_cut_off() -> None:
    """What is moved or averaged within its range needs no second clamp; a ReLU and its range are one."""
    middle = (
        "z = Relu(c)\n"
        + qdq("z", "a", "r")
        + "k = MaxPool<kernel_shape = [2, 2]>(r)\n"
        + qdq("k", "a", "l")
        + "v = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(l)\n"
        + qdq("v", "a", "m")
    )
    graph = saturated(chain.imported(image_net(middle, RELU)).graph)
    clips = [node for node in graph.nodes if node.op == "Clip"]
    makers = graph.producers()
    clamped = [makers[node.inputs[0].name].op if node.inputs[0].name in makers else "input" for node in clips]
    assert clamped == ["input", "Conv", "Reduce", "Gemm"]  # the mean's own range is smaller
    low, high = np.float32(0), 255 * np.float32(0.02)
    assert isinstance(clips[1].attrs, ClipAttrs)
    assert (clips[1].attrs.low, clips[1].attrs.high) == (low, pytest.approx(high))


def test_gradients_stop_where_a_concatenation_is_cut_off() -> None:
    """As of a ReLU behind it, which exporters leave to its format."""
    known = chain.imported(NETS["of a concatenation"])
    cut = prepare(known.graph, True, True)
    for graph in (cut, saturated(known.graph)):
        joined = next(node for node in graph.nodes if node.op == "Concat")
        (clamp,) = graph.consumers()[joined.outputs[0].name]
        assert isinstance(clamp.attrs, ClipAttrs) and clamp.attrs.low == 0.0
    options = TrainingOptions(loss="mse")
    train = quantise(build_training(replace(known, graph=cut), resolve_update(cut, "all"), options), QuantOptions())
    joined = next(node for node in train.graph.nodes if node.op == "Concat")
    assert joined.outputs[0].dtype == "int8", "nothing becomes real numbers for that"
    (mask,) = [node for node in train.graph.consumers()[joined.outputs[0].name] if node.op == "QClipMask"]
    assert isinstance(mask.attrs, MaskAttrs) and mask.attrs.low == -128
    ours, floats = (of(NETS["of a concatenation"])["w"].ravel() for of in (integer_gradients, float_gradients))
    assert ours @ floats > 0.99 * np.linalg.norm(ours) * np.linalg.norm(floats)


def test_ranges_that_do_not_meet() -> None:
    """A clamp to 0.5..6 stored from -5.1 to 0 is always 0, not a clamp whose bounds are the wrong way round."""
    m = nets.named(image_net("z = Clip(c, zero, six)\n" + qdq("z", "far", "m"), {"far": (0.02, 127)}))
    m.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in (("zero", 0.5), ("six", 6.0))
    )
    graph = saturated(chain.imported(m).graph)
    clip = next(node for node in graph.nodes[1:] if node.op == "Clip")
    assert isinstance(clip.attrs, ClipAttrs)
    assert clip.attrs.low == clip.attrs.high == 0.0


def test_calibrated_ranges_leave_a_float_head_open() -> None:
    """They are what was seen, not what the model computes."""
    graph = nets.prepared(nets.cnn()).graph
    head = next(index for index, node in enumerate(graph.nodes) if node.op == "Gemm")
    assert all(node.op != "Clip" for node in graph.nodes[head:])


def test_a_second_format_that_nothing_computes_between_is_refused() -> None:
    """A full slice is no node of the graph: there is no value to put the clamp on."""
    middle = qdq("c", "b", "r") + "i = Slice(r, from, to)\n" + qdq("i", "a", "m")
    model = image_net(middle, RELU)
    for name, number in (("from", 0), ("to", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([number], np.int64), name))
    with pytest.raises(CompileError, match="quantised a second time") as caught:
        chain.imported(model)
    assert caught.value.code == "E0501"
