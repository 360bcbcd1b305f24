"""`export` of files of every form: layouts, norms, QDQ, moved and tied weights. onnxruntime is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import tinytrain_compile as tt
from tests.frontend.models import parse, write
from tests.frontend.qdq import Maker
from tests.frontend.qoperator import qoperator_form
from tests.learn.exporting import arrays, changed, exported, outputs
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.frontend.written.file import written_file
from tinytrain_compile.ir.imported import ParameterSource
from tinytrain_compile.ir.types import Array

LAYERS = """net (float[1, 3, 8, 8] input) => (float[1, 5] output) {
    a = Conv<pads=[1, 1, 1, 1]>(input, w1)
    b = BatchNormalization(a, g1, s1, m1, v1)
    c = Relu(b)
    d = Conv<pads=[1, 1, 1, 1], group=6>(c, w2, b2)
    e = BatchNormalization(d, g2, s2, m2, v2)
    f = ConvTranspose<strides=[2, 2]>(e, w3, b3)
    p = AveragePool<kernel_shape=[4, 4], strides=[4, 4]>(f)
    q = Flatten(p)
    t = Transpose<perm=[1, 0]>(w4)
    output = Gemm<alpha=0.5, beta=2.0>(q, t, b4)
    }"""


def layers() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {
        "w1": (6, 3, 3, 3),
        "w2": (6, 1, 3, 3),
        "b2": (6,),
        "w3": (6, 4, 2, 2),
        "b3": (4,),
        "w4": (5, 64),
        "b4": (5,),
    }
    weights = {name: random.standard_normal(shape) * 0.3 for name, shape in shapes.items()}
    for index in "12":
        weights |= {f"{name}{index}": random.uniform(0.5, 2, 6) for name in "gv"}
        weights |= {f"{name}{index}": random.standard_normal(6) for name in "sm"}
    return parse(LAYERS, {name: array.astype(np.float32) for name, array in weights.items()})


SCHEME = """[[update]]
layer = "Conv_a"
bias = true
weight = [1, 4]
axis = "in"
[[update]]
layer = "Conv_d"
bias = true
weight = [0, 5]
[[update]]
layer = "*_f"
bias = true
weight = "all"
[[update]]
layer = "Gemm_output"
bias = true
weight = "all"
"""


@pytest.mark.parametrize("sliced", [False, True])
def test_layouts_norms_and_slices(sliced: bool, tmp_path: Path) -> None:
    path = write(layers(), tmp_path)
    (tmp_path / "scheme.toml").write_text(SCHEME.replace("[1, 4]", "[1]"))
    done, x, wanted = exported(path, update=tmp_path / "scheme.toml" if sliced else "all")
    found = outputs(done.file.model, x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * max(1.0, np.abs(wanted).max()))
    learned = changed(path, done.file.model)
    assert learned == {"w1", "s1", "w2", "b2", "w3", "b3", "w4", "b4"}  # the norms keep gamma, mean and variance
    if sliced:
        arrays = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in onnx.load_from_string(done.file.model).graph.initializer
        }
        before = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
        moved = {name: arrays[name] != before[name] for name in ("w1", "w2")}
        assert set(np.nonzero(moved["w1"])[1]) == {1} and set(np.nonzero(moved["w2"])[0]) <= {0, 5}


@pytest.mark.parametrize("qdq", [False, True])
def test_a_new_head(qdq: bool, tmp_path: Path) -> None:
    path = write(quantised(True) if qdq else layers(), tmp_path)
    done, x, wanted = exported(path, update="last:2", classes=3)
    assert wanted.shape == (6, 3)
    if qdq:  # steps of what is in front of the head
        assert done.agreement.steps is not None and done.agreement.steps <= 1
        return
    np.testing.assert_allclose(outputs(done.file.model, x), wanted, rtol=0, atol=1e-5 * max(1.0, np.abs(wanted).max()))


def quantised(per_channel: bool, dtype: type = np.int8) -> onnx.ModelProto:
    made = Maker(1)
    x, y, o = made.scale("x", 0.02, 3), made.scale("y", 0.05, -10), made.scale("o", 0.1, 0)
    w, b = made.weight("w", (8, 3, 3, 3), 8 if per_channel else 0, dtype), made.bias("b", 8, 0.02, "w")
    v, c = made.weight("v", (5, 8), 0, dtype), made.bias("c", 5, 0.05, "v")
    axis = "<axis=0>" if per_channel else ""
    return made.model(f"""net (float[1, 3, 6, 6] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear{axis}(w, {w})
        bd = DequantizeLinear<axis=0>(b, {b})
        h = Conv<pads=[1, 1, 1, 1]>(xd, wd, bd)
        r = Relu(h)
        yq = QuantizeLinear(r, {y})
        yd = DequantizeLinear(yq, {y})
        p = GlobalAveragePool(yd)
        pq = QuantizeLinear(p, {y})
        pd = DequantizeLinear(pq, {y})
        f = Flatten(pd)
        vd = DequantizeLinear(v, {v})
        cd = DequantizeLinear<axis=0>(c, {c})
        g = Gemm<transB=1>(f, vd, cd)
        oq = QuantizeLinear(g, {o})
        output = DequantizeLinear(oq, {o})
        }}""")


@pytest.mark.parametrize(
    ("per_channel", "dtype", "options"),
    [
        (True, np.int8, {"weight_store": "q8.8", "head": "int8"}),
        (True, np.uint8, {"weight_store": "sr8", "head": "int8"}),
        (False, np.int8, {"rescale": "on", "head": "int8"}),
        (True, np.int8, {}),
    ],
    ids=["q8.8", "uint8", "rescaled", "float head"],
)
def test_quantised_files(per_channel: bool, dtype: type, options: dict[str, Any], tmp_path: Path) -> None:
    """Outputs are at most a step of the file's format away; of a float head, which it rounds, half of one more."""
    path = write(quantised(per_channel, dtype), tmp_path)
    done, x, wanted = exported(path, steps=90, update="all", loss="cross-entropy", **options)
    assert done.agreement.steps is not None and done.agreement.steps <= 1
    limit = 0.1 * (1.0 if options else 1.5) * 1.001
    with_scale = any("larger scale" in note for note in done.notes)
    assert with_scale == ("rescale" in options)
    found = outputs(done.file.model, x)
    assert np.abs(found - np.clip(wanted, -12.8, 12.7)).max() <= limit
    assert np.abs(outputs(done.file.model, x, optimised=True) - found).max() <= limit  # biases have the scale of sums
    if not with_scale:
        assert changed(path, done.file.model) == {"w", "b", "v", "c"}


def test_operators_on_integers(tmp_path: Path) -> None:
    text = """net (float[1, 3, 8, 8] input) => (float[1, 5] output) {
        a = Conv<pads=[1, 1, 1, 1]>(input, w, b)
        r = Relu(a)
        p = GlobalAveragePool(r)
        f = Flatten(p)
        output = Gemm<transB=1>(f, v, c)
        }"""
    random = np.random.default_rng(0)
    shapes = {"w": (6, 3, 3, 3), "b": (6,), "v": (5, 6), "c": (5,)}
    weights = {name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    path = qoperator_form(parse(text, weights), tmp_path)
    done, x, wanted = exported(path, update="all", loss="cross-entropy", head="int8")
    assert changed(path, done.file.model) == {f"{name}_quantized" for name in shapes}
    assert np.abs(outputs(done.file.model, x) - wanted).max() <= 1e-6
    with pytest.raises(tt.CompileError, match=r"E0112.*QDQ form"):  # others count on the scales
        exported(path, update="all", loss="cross-entropy", head="int8", rescale="on")


# ---- files that hold a parameter in a way of their own, without compiling them ---------------------------------------


def rewritten(
    path: Path, options: FrontendOptions | None = None, step: float = 1e-6
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The file with other numbers in every parameter; read back, the graph holds just these. Both are returned."""
    model, random = load_model(path, options), np.random.default_rng(7)
    learned = {
        source.tensor.name: (source.tensor.initial + random.uniform(0.1, 0.2, source.tensor.initial.shape)).astype("f4")
        for source in model.sources.values()
    }
    made = written_file(path, "trained.onnx", model, learned)
    out = path.with_name("trained.onnx")
    out.write_bytes(made.model)
    out.with_name("trained.onnx.data").write_bytes(made.data)
    again = load_model(out)
    assert sorted(again.sources) == sorted(model.sources)
    for name, source in model.sources.items():
        wanted = source.in_graph(learned[source.tensor.name])
        np.testing.assert_allclose(again.graph.constants[name], wanted, rtol=2e-3, atol=step, err_msg=name)
    return onnx.load(out), learned


def test_a_weight_that_nodes_move_is_written_where_it_is(tmp_path: Path) -> None:
    text = """net (float[1, 4] input) => (float[1, 3] output) {
        t = Transpose<perm=[1, 0]>(w)
        r = Reshape(b, shape)
        h = MatMul(input, t)
        output = Add(h, r)
        }"""
    weights = {"w": np.ones((3, 4), np.float32), "b": np.ones((3, 1), np.float32), "shape": np.array([1, 3])}
    path = write(parse(text, weights), tmp_path)
    made, learned = rewritten(path)
    assert np.array_equal(arrays(made)["w"], learned["w"]) and np.array_equal(arrays(made)["b"], learned["b"])


def test_a_tied_weight_is_written_once(tmp_path: Path) -> None:
    text = """net (float[1, 4] input) => (float[1, 4] output) {
        h = Gemm<transB=1>(input, w)
        r = Relu(h)
        output = Gemm(r, w)
        }"""
    path = write(parse(text, {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}), tmp_path)
    made, learned = rewritten(path)
    assert np.array_equal(arrays(made)["w"], learned["w"])


def test_constant_nodes_keep_their_weights(tmp_path: Path) -> None:
    model = parse("net (float[1, 4] input) => (float[1, 3] output) { output = MatMul(input, w) }", {})
    node = onnx.helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.ones((4, 3), np.float32)))
    model.graph.node.insert(0, node)
    made, learned = rewritten(write(model, tmp_path))
    assert np.array_equal(numpy_helper.to_array(made.graph.node[0].attribute[0].t), learned["w"])


def test_what_is_computed_becomes_an_initializer(tmp_path: Path) -> None:
    """Scale and shift of a normalisation are computed at compile time, and train as they are."""
    text = """net (float[1, 4, 5, 5] input) => (float[1, 4, 5, 5] output) {
        g = Add(w, one)
        output = InstanceNormalization(input, g, b)
        }"""
    weights = {"w": np.zeros(4), "one": np.ones(1), "b": np.zeros(4)}
    path = write(parse(text, {name: array.astype(np.float32) for name, array in weights.items()}), tmp_path)
    made, learned = rewritten(path)
    assert [node.op_type for node in made.graph.node] == ["InstanceNormalization"]
    assert np.array_equal(arrays(made)["g"], learned["g"])


def test_float16_and_external_data(tmp_path: Path) -> None:
    model = layers()
    for tensor in model.graph.initializer:
        if tensor.name == "w4":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), "w4"))
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["w4"], ["w5"], to=onnx.TensorProto.FLOAT))
    next(node for node in model.graph.node if node.op_type == "Transpose").input[0] = "w5"
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.bin", size_threshold=100)
    made, _ = rewritten(path)
    assert arrays(made)["w4"].dtype == np.float16
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "net.bin",
        "net.onnx",
        "trained.onnx",
        "trained.onnx.data",
    ]


def test_scales_grow_again(tmp_path: Path) -> None:
    """What was exported is a file like any other."""
    path = write(quantised(False), tmp_path)
    for _ in range(3):
        made, _ = rewritten(path, step=0.01)
        onnx.checker.check_model(made, full_check=True)
        assert len(arrays(made)) == len(arrays(onnx.load(path)))
        path.write_bytes(made.SerializeToString())
        assert arrays(made)["w_scale"].shape == (8,)


def test_a_weight_behind_any_move_has_a_scale_for_each_channel(tmp_path: Path) -> None:
    """As that of a convolution in one dimension has, which is given a second one."""
    made = Maker(4)
    x, y, w = made.scale("x", 0.02, 3), made.scale("y", 0.05, -10), made.weight("w", (6, 3, 1))
    made.weights["axes"] = np.array([3])
    path = write(
        made.model(f"""net (float[1, 3, 4, 4] input) => (float[1, 6, 4, 4] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear(w, {w})
        wu = Unsqueeze(wd, axes)
        h = Conv(xd, wu)
        yq = QuantizeLinear(h, {y})
        output = DequantizeLinear(yq, {y})
        }}"""),
        tmp_path,
    )
    model = load_model(path)
    (source,) = model.sources.values()
    learned = source.tensor.initial.copy()
    learned[2] *= 3  # one channel has outgrown the scale
    out = tmp_path / "trained.onnx"
    out.write_bytes(written_file(path, out.name, model, {source.tensor.name: learned}).model)
    scale = arrays(onnx.load(out))["w_scale"]
    assert scale.shape == (6,) and np.array_equal(scale[[0, 1, 3, 4, 5]], np.full(5, made.weights["w_s"]))
    assert scale[2] > made.weights["w_s"]


@pytest.mark.parametrize("zero", [0, -24])
def test_what_is_added_keeps_one_scale(zero: int, tmp_path: Path) -> None:
    """Of a position that learns, one scale doubles: an import takes none for each of its rows. And at most so far from
    the zero point as int8 reaches, though the file's integers go further."""
    made = Maker(3)
    x, y, o = made.scale("x", 0.02, 3), made.scale("y", 0.05, -10), made.scale("o", 0.1, 0)
    p, v, c = made.scale("p", 0.001, zero), made.weight("v", (5, 6)), made.bias("c", 5, 0.05, "v")
    made.weights["p"] = np.full((1, 3, 6), 100 + zero, np.int8)
    path = write(
        made.model(f"""net (float[1, 3, 6] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        pd = DequantizeLinear(p, {p})
        h = Add(xd, pd)
        yq = QuantizeLinear(h, {y})
        yd = DequantizeLinear(yq, {y})
        m = ReduceMean<axes=[1], keepdims=0>(yd)
        mq = QuantizeLinear(m, {y})
        md = DequantizeLinear(mq, {y})
        vd = DequantizeLinear(v, {v})
        cd = DequantizeLinear<axis=0>(c, {c})
        g = Gemm<transB=1>(md, vd, cd)
        oq = QuantizeLinear(g, {o})
        output = DequantizeLinear(oq, {o})
        }}"""),
        tmp_path,
    )
    found, _ = rewritten(path, step=0.01)
    scale = arrays(found)["p_scale"]
    assert scale.shape == () and scale >= np.float32(0.002)
    onnxruntime.InferenceSession(found.SerializeToString())


def test_the_norm_of_a_single_channel(tmp_path: Path) -> None:
    """What is folded is one number then, and none less."""
    text = """net (float[1, 2, 5, 5] input) => (float[1, 1, 5, 5] output) {
        a = Conv(input, w)
        output = BatchNormalization(a, g, b, m, v)
        }"""
    each = {"g": 0.9, "b": 0.4, "m": -0.1, "v": 2.0}
    weights = {name: np.array([number], np.float32) for name, number in each.items()}
    path = write(parse(text, {"w": np.full((1, 2, 1, 1), 0.5, np.float32), **weights}), tmp_path)
    rewritten(path)
    done, x, wanted = exported(path, update="all", loss="mse")
    np.testing.assert_allclose(outputs(done.file.model, x), wanted, rtol=0, atol=1e-5)
    with tt.compile(path, verify="none", update="all", loss="mse").twin() as twin:
        before, known = twin.predict(x), twin.state_dict()
        twin.load_state_dict(known)
        np.testing.assert_allclose(twin.predict(x), before, rtol=0, atol=1e-6)


def test_untied_readers_get_initializers_of_their_own(tmp_path: Path) -> None:
    text = """net (float[1, 4, 5, 5] input) => (float[1, 4, 5, 5] output) {
        a = InstanceNormalization(input, g, b)
        r = Relu(a)
        output = InstanceNormalization(r, g, b)
        }"""
    path = write(parse(text, {"g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}), tmp_path)
    made, _ = rewritten(path, FrontendOptions(untie=True))
    assert len(arrays(made)) == 4


# ---- what must be noticed -------------------------------------------------------------------------------------------


def test_a_file_that_forgets_something_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(layers(), tmp_path)
    real = ParameterSource.in_file

    def forgetful(self: ParameterSource, parameter: Array) -> Array:
        return (
            real(self, parameter.swapaxes(1, 2))
            if parameter.ndim == 4 and len(set(parameter.shape[1:3])) == 1
            else real(self, parameter)
        )

    monkeypatch.setattr(ParameterSource, "in_file", forgetful)
    with pytest.raises(tt.CompileError, match="E0606"):
        exported(path, update="all")


def test_a_channel_that_a_norm_switched_off_cannot_be_written(tmp_path: Path) -> None:
    model = layers()
    gamma = next(tensor for tensor in model.graph.initializer if tensor.name == "g2")
    gamma.CopyFrom(numpy_helper.from_array(np.array([1, 0, 1, 1, 1, 1], np.float32), "g2"))
    with pytest.raises(tt.CompileError, match=r"E0112.*--batch-norm keep"):
        exported(write(model, tmp_path), update="all")
