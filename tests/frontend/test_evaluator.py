"""onnx.reference as the judge of what was imported, and onnxruntime, its optimisations off, as the judge of that."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from testing.places import SHARED
from tests.e2e.file_level import agreement
from tests.e2e.marks import needs_shared
from tests.frontend.models import judged_by_the_file, parse, write
from tests.frontend.recurrent import Cell, model_of
from tests.frontend.test_random_nets import Chain
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel, FrontendOptions, load_model

SHORT = ("keras/kws_dscnn", "keras/unet_tconv", "torch-dynamo/shufflenetv2", "torch-dynamo/tcn", "torch-ts/vit_timm")
SHORT += ("torch-ts/bn_preserve_nofold", "torch-ts/groupnorm", "torch-ts/densenet", "torch-ts/linear_seq3d")
LOSSES = {"mse": "mse", "bce": "bce", "bcep": "bce"}
SILENT = onnxruntime.SessionOptions()
SILENT.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
SILENT.intra_op_num_threads = 1
SILENT.log_severity_level = 4
CASES = 250


def by_the_evaluator(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors of a file as onnx.reference has them; EvaluatorLacksError if it lacks one."""
    file = FileModel(path)
    values = {**file.constants, **feeds}
    for node in file.nodes:
        values.update(zip(node.outputs, file.run(node, values), strict=False))
    return values


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray | None:
    """The first output; None where onnxruntime refuses the model."""
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), SILENT).run(None, feeds)[0]
    except Exception:  # its own exception types, which are not exported
        return None


class Windows:
    """Convolutions and pools with attributes drawn at random: what onnx.reference gets wrong lies there."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def model(self) -> tuple[onnx.ModelProto, tuple[int, ...]]:
        channels, rank = 2 * self.below(1, 4), 2 if self.rng.random() < 0.8 else 1
        shape = (1, channels, *(self.below(3, 9) for _ in range(rank)))
        kernel = [self.below(1, 4) for _ in range(rank)]
        op = ("AveragePool", "Conv", "ConvTranspose", "MaxPool")[self.below(0, 4)]
        opset = self.below(19 if op == "AveragePool" else 13, 23)
        attrs: dict[str, Any] = {"strides": [self.below(1, 4) for _ in range(rank)], "kernel_shape": kernel}
        if self.rng.random() < 0.5:
            attrs["dilations"] = [self.below(1, 3) for _ in range(rank)]
        if self.rng.random() < 0.3:
            attrs["auto_pad"] = ("SAME_UPPER", "SAME_LOWER", "VALID")[self.below(0, 3)]
        elif self.rng.random() < 0.7:
            attrs["pads"] = [min(self.below(0, 3), kernel[i % rank] - 1) for i in range(2 * rank)]
        weights: dict[str, np.ndarray] = {}
        if op.endswith("Pool"):
            attrs["ceil_mode"] = self.below(0, 2)
            attrs |= {"count_include_pad": self.below(0, 2)} if op == "AveragePool" else {}
        else:
            attrs["group"] = groups = (1, 1, 2, channels)[self.below(0, 4)]
            ends = (groups * self.below(1, 3), channels // groups)
            weights["w"] = self.rng.normal(size=(*(ends if op == "Conv" else (channels, ends[0])), *kernel))
            if op == "ConvTranspose" and self.rng.random() < 0.3:
                attrs["output_padding"] = [self.below(0, s) for s in attrs["strides"]]
        return self.written(op, opset, attrs, shape, weights), shape

    def written(
        self, op: str, opset: int, attrs: dict[str, Any], shape: tuple[int, ...], weights: dict[str, np.ndarray]
    ) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        tensors = [numpy_helper.from_array(data.astype(np.float32), name) for name, data in weights.items()]
        graph = helper.make_graph(
            [helper.make_node(op, ["x", *weights], ["y"], **attrs)], "g", inputs, outputs, tensors
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def test_what_is_believed_of_windows_is_right(tmp_path: Path) -> None:
    """Where evaluator_limits.py trusts onnx.reference, onnxruntime says the same, and so does what was imported."""
    source, done = Windows(0), Counter[str]()
    for _ in range(CASES):
        model, shape = source.model()
        path = write(model, tmp_path)
        x = source.rng.normal(size=shape).astype(np.float32)
        expected = by_onnxruntime(model, {"x": x})
        try:
            found = by_the_evaluator(path, {"x": x})["y"]
            imported = load_model(path, FrontendOptions())
        except EvaluatorLacksError:
            done["not believed"] += 1
            continue
        except CompileError:
            done["refused"] += 1
            continue
        judged_by_the_file(path, imported, x)
        done["compared" if expected is not None else "onnxruntime refused"] += 1
        if expected is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=str(model.graph.node[0]))
    assert done["compared"] > CASES // 3, done
    assert done["not believed"] > 10, done


@pytest.mark.parametrize("seed", range(12))
def test_two_judges_agree_on_random_nets(seed: int, tmp_path: Path) -> None:
    chain = Chain(seed)
    for _ in range(12):
        chain.grow()
    last = chain.pool[-1][0]
    chain.net.header = f"net (float[{', '.join(map(str, chain.first))}] x) => (float[] {last})"
    model = chain.net.model()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    x = chain.rng.normal(size=chain.first).astype(np.float32)
    expected = by_onnxruntime(model, {"x": x})
    found = by_the_evaluator(write(model, tmp_path), {"x": x})[last]
    if expected is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_last_opset_of_a_domain_counts_for_the_judge(tmp_path: Path) -> None:
    """ReduceMean has its axes as an attribute in opset 17, as an input from 18 on."""
    model = parse("net (float[1, 4] x) => (float[1, 1] y) { y = ReduceMean <axes = [1]> (x) }")
    model.opset_import.insert(0, helper.make_opsetid("", 21))
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    assert by_the_evaluator(write(model, tmp_path), {"x": x})["y"] == 1.5


def test_an_operator_newer_than_the_opset_is_judged(tmp_path: Path) -> None:
    """The guard reads it as the newest that onnx knows, and so does the judge: ONNX Runtime writes Gelu at opset 17."""
    text = '<ir_version: 8, opset_import: ["": 17]> net (float[1, 3] x) => (float[1, 3] y) { y = Gelu(x) }'
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    found = by_the_evaluator(path, {"x": np.array([[-1, 0, 2]], np.float32)})
    np.testing.assert_allclose(found["y"], [[-0.15865526, 0, 1.9544997]], rtol=1e-6)


def test_unsorted_and_unnamed_nodes(tmp_path: Path) -> None:
    model = parse("net (float[1, 4] x) => (float[1, 4] y) { a = Relu (x) b = Neg (a) y = Exp (b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    assert [node.name for node in FileModel(write(model, tmp_path)).nodes] == ["Relu_a", "Neg_b", "Exp_y"]


def test_randomness_and_size_are_limits(tmp_path: Path) -> None:
    text = "net (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = RandomNormalLike (x) }"
    with pytest.raises(EvaluatorLacksError, match="random"):
        by_the_evaluator(write(parse(text), tmp_path), {"x": np.zeros((1, 3, 8, 8), np.float32)})
    text = "net (float[1, 1, 2000, 2000] x) => (float[1, 1, 2000, 2000] y) {"
    text += " y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }"
    with pytest.raises(EvaluatorLacksError, match="too large"):
        by_the_evaluator(write(parse(text), tmp_path), {"x": np.zeros((1, 1, 2000, 2000), np.float32)})


def test_a_dilated_kernel_counts_with_its_zeros(tmp_path: Path) -> None:
    """onnx.reference fills it: three taps 1,024 apart over 64 channels of 7,500 points would take 30 GB."""
    text = "net (float[1, 64, 7500] x) => (float[1, 64, 7500] y) {"
    text += " y = Conv <dilations = [1024], pads = [1024, 1024]> (x, w) }"
    model = parse(text, {"w": np.zeros((64, 64, 3), np.float32)})
    with pytest.raises(EvaluatorLacksError, match="too large"):
        by_the_evaluator(write(model, tmp_path), {"x": np.zeros((1, 64, 7500), np.float32)})


SOFTMAX_LOGARITHMS = {
    "LogSoftmax": "net (float[2, 4] x) => (float[2, 4] y) { y = LogSoftmax <axis = 1> (x) }",
    "loss": "net (float[2, 4] x, int64[2] labels) => (float y) { y = SoftmaxCrossEntropyLoss (x, labels) }",
}


@pytest.mark.parametrize("name", SOFTMAX_LOGARITHMS)
@pytest.mark.parametrize("apart", [1.0, 90.0, 104.0, 700.0, 1e4])
def test_scores_far_apart(name: str, apart: float, tmp_path: Path) -> None:
    """The logarithm of a softmax that underflows: right, or known to be no judge."""
    model = parse(SOFTMAX_LOGARITHMS[name])
    feeds = {"x": np.array([[0.0, 1.0, -2.0, apart], [apart, 0.5, 0.0, 2.0]], np.float32)}
    if name == "loss":
        feeds["labels"] = np.array([0, 3])
    path = write(model, tmp_path)
    if apart > 745:
        with pytest.raises(EvaluatorLacksError, match="softmax that is 0"):
            by_the_evaluator(path, feeds)
        return
    found, expected = by_the_evaluator(path, feeds)["y"], by_onnxruntime(model, feeds)
    assert expected is not None and found.dtype == expected.dtype and np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_outputs_that_a_node_leaves_out_keep_their_place(tmp_path: Path) -> None:
    """Results come by place: behind an output without a name they were those of the next one."""
    path = write(model_of(Cell("LSTM", used="hc")), tmp_path)
    x = np.random.default_rng(0).standard_normal((1, 4, 3)).astype(np.float32)
    found = by_the_evaluator(path, {"x": x})
    known = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found["y"], known, rtol=1e-5, atol=1e-6)


def test_activations_that_it_does_not_look_at_are_a_limit(tmp_path: Path) -> None:
    for op, names in (("LSTM", ("Sigmoid", "Relu", "Tanh")), ("GRU", ("HardSigmoid", "Tanh"))):
        path = write(model_of(Cell(op, activations=names)), tmp_path)
        with pytest.raises(EvaluatorLacksError, match="does not look at its activations"):
            by_the_evaluator(path, {"x": np.zeros((1, 4, 3), np.float32)})


def test_version_converter_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", broken)
    weights = {"s": np.float32(0.1), "z": np.int8(0)}
    text = "net (float[1, 4] x) => (float[1, 4] y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    with pytest.raises(EvaluatorLacksError, match=r"version converter.*no adapter"):
        FileModel(write(parse(text, weights), tmp_path))


def zoo() -> list[Path]:
    return sorted((SHARED / "zoo").glob("*/*.onnx"))


def judge(path: Path) -> str:
    """Run the file check, and onnxruntime beside it, on a network of the zoo; E0xxx if it is refused."""
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    kind = str(facts["loss"])
    loss = None if kind == "ce" else LOSSES.get(kind, "cross-entropy")
    try:
        found = agreement(path, loss=loss)
    except CompileError as problem:
        if problem.code == "E0605":
            raise
        return problem.code
    assert found.whole
    model = onnx.load(path)
    source = model.graph.input[0]
    shape = [dim.dim_value or 1 for dim in source.type.tensor_type.shape.dim]
    feeds = {source.name: np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    expected = by_onnxruntime(model, feeds)
    output = model.graph.output[0].name
    if expected is not None and not found.skipped:
        values = by_the_evaluator(path, feeds)[output]
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
    return "PASS" + "".join(f" but for {reason}" for reason in found.skipped)


@needs_shared
@pytest.mark.parametrize("name", SHORT)
def test_zoo(name: str) -> None:
    assert judge(SHARED / "zoo" / f"{name}.onnx") == "PASS"


@needs_shared
@pytest.mark.slow
def test_whole_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    """Every network that is imported is what its file says."""
    results = {f"{path.parent.name}/{path.stem}": judge(path) for path in zoo()}
    with capsys.disabled():
        for name, result in results.items():
            print(f"{name:40} {result}")
        print(Counter(result.partition(" ")[0] for result in results.values()))
    assert sum(result.startswith("PASS") for result in results.values()) >= 100


@pytest.mark.parametrize("shape", [(1, 3, 7), (1, 3, 5, 4)])
def test_the_largest_of_each_channel(shape: tuple[int, ...], tmp_path: Path) -> None:
    """onnx.reference takes the maximum of a signal over its channels too; the file is right, and trains."""
    dims = ", ".join(map(str, shape))
    text = f"net (float[{dims}] x) => (float[1, 3{', 1' * (len(shape) - 2)}] y) {{ a = Abs (x) y = GlobalMaxPool (a) }}"
    path = write(parse(text, {}), tmp_path)
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    expected = by_onnxruntime(onnx.load(path), {"x": x})
    np.testing.assert_array_equal(by_the_evaluator(path, {"x": x})["y"], expected)
    judged_by_the_file(path, load_model(path), x)
