"""Which nodes become integers, where float regions of float32 stay, and how everything is stored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.quantize import nets
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Quant
from tinytrain_compile.ops import infer
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import has_trait, shown_name
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.update import QUpdateAttrs
from tinytrain_compile.ops.names import error_operands
from tinytrain_compile.quantize.forms import ends_of
from tinytrain_compile.quantize.prepare import real_range
from tinytrain_compile.report.rows.formats import float_regions, quant_tensors

LOSS = ("LogSoftmax", "NegativeLogLikelihood", "NegativeLogLikelihoodGrad", "LogSoftmaxGrad")
FLOAT_HEAD = ("Gemm", "GemmGradWeight", "GemmGradInput", "SgdUpdate")
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": nets.cnn,
    "max pool": lambda: nets.cnn(pool="MaxPool"),
    "overlapping": lambda: nets.cnn(pool="MaxPool", window=nets.OVERLAPPING),
    "qdq": nets.quantised,
    "regions": nets.float_regions,
    "mlp": models.mlp,
    "resnet8": lambda: models.resnet8(channels=4, size=8),
    "transformer": lambda: models.transformer(tokens=4, width=8, heads=2),
}


def ops_of(train: TrainGraph) -> Counter[str]:
    return Counter(shown_name(node) for node in train.graph.nodes)


def float_regions_of(train: TrainGraph) -> Counter[str]:
    return Counter(node.op for node in nets.float_nodes(train))


# ---- which nodes are integer ----------------------------------------------------------------------------------------


def test_cnn_with_a_float_head() -> None:
    found = ops_of(nets.int8_train(nets.cnn()))
    assert {op: found[op] for op in ("QConv", "QAdd", "QRescale")} == {"QConv": 5, "QAdd": 1, "QRescale": 1}
    assert (found["QConvUpdate"], found["QBiasUpdate"], found["SgdUpdate"]) == (4, 4, 2)
    assert found["QConvGradInput"] == 4, "three convolutions and the pool: nobody wants the error of the input"
    assert found["ErrorAdd"] == 1
    assert found["NoiseTick"] == 1
    assert found["ExponentUpdate"] == sum(found[op] for op in nets.ERROR_OPS) == 10
    assert float_regions_of(nets.int8_train(nets.cnn())) == Counter(
        {**dict.fromkeys(LOSS, 1), "Gemm": 1, "GemmGradWeight": 1, "GemmGradInput": 1, "SgdUpdate": 2, "Dequantize": 1}
    )


def test_cnn_with_an_integer_head() -> None:
    """Nothing is float but what the user sees of the output."""
    train = nets.int8_train(nets.cnn(), head="int8")
    assert float_regions_of(train) == Counter({"Dequantize": 1})
    found = ops_of(train)
    assert (found["QConv"], found["QConvUpdate"], found["QBiasUpdate"], found["QuantizeError"]) == (6, 5, 5, 0)
    assert (found["QSoftmaxSum"], found["QSoftmaxLoss"], found["QSoftmaxError"]) == (1, 1, 1)
    assert (found["Quantize"], found["DequantizeError"]) == (0, 0)


def test_accumulation_is_in_integers() -> None:
    found = ops_of(nets.int8_train(nets.cnn(), head="int8", batch=4))
    assert (found["QConvSum"], found["QBiasSum"], found["QWeightApply"], found["QBiasApply"]) == (5, 5, 5, 5)
    assert (found["Clear"], found["Accumulate"], found["QConvUpdate"], found["QBiasUpdate"]) == (10, 0, 0, 0)
    train = nets.int8_train(nets.cnn(), head="int8", batch=4)
    late = {shown_name(node) for node in train.graph.nodes if node.phase == "apply"}
    assert late == {"QWeightApply", "QBiasApply", "Clear", "ExponentUpdate", "NoiseTick"}


def test_float_regions_of_what_has_no_integer_form() -> None:
    train = nets.int8_train(nets.float_regions())
    found, floats = ops_of(train), float_regions_of(train)
    assert (found["QConv"], found["QConvUpdate"]) == (5, 5), "convolutions between float regions are integer"
    for op in ("HardSwish", "Sigmoid", "Normalize", "Softmax"):
        assert floats[op] == 1
        assert floats[f"{op.removesuffix('e') if op == 'Normalise' else op}Grad"] == 1
    assert not any(op.startswith(("Conv", "MaxPool", "AveragePool")) for op in floats)
    assert found["Quantize"] == 4, "one way back for every region"


@pytest.mark.parametrize(("window", "gradient"), [(nets.APART, "MaxPoolGrad"), (nets.OVERLAPPING, "QMaxPoolGrad")])
def test_max_pool_moves_integers(window: str, gradient: str) -> None:
    """Errors of windows that overlap are added, with an exponent of their own."""
    train = nets.int8_train(nets.cnn(pool="MaxPool", window=window), head="int8")
    assert float_regions_of(train) == Counter({"Dequantize": 1})
    found = ops_of(train)
    assert (found["MaxPool"], found["MaxPoolIndex"], found[gradient]) == (1, 1, 1)
    assert found["MaxPoolGrad"] + found["QMaxPoolGrad"] == 1
    (pool,) = nets.nodes_of(train, "MaxPool")
    assert [v.dtype for v in (*pool.inputs, *pool.outputs)] == ["int8", "int8"]


def test_dense_layers_are_convolutions_of_one_pixel() -> None:
    train = nets.int8_train(models.mlp(), head="int8")
    layers = nets.nodes_of(train, "QConv")
    assert [node.inputs[1].shape for node in layers] == [(10, 1, 1, 12), (10, 1, 1, 10), (4, 1, 1, 10)]
    assert float_regions_of(train)["Tanh"] == float_regions_of(train)["TanhGrad"] == 1
    assert not set(float_regions_of(train)) & set(FLOAT_HEAD)


def test_frozen_layers_have_no_backward_pass() -> None:
    train = nets.int8_train(nets.cnn(), "fc/Gemm")
    assert not nets.nodes_of(train, *nets.ERROR_OPS, "QConvUpdate", "QBiasUpdate", "NoiseTick", "QClipMask")
    assert train.exponents_known and train.rate is None
    biases = nets.int8_train(nets.cnn(), "bias")
    found = ops_of(biases)
    assert (found["QBiasUpdate"], found["QConvUpdate"], found["NoiseTick"]) == (4, 0, 0)
    assert {v.name for v in biases.graph.state if v.dtype == "int8"} == set()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("head", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_whole_graphs(name: str, head: str, batch: int) -> None:
    """Sound; trains every parameter that the float graph trains; no error is made that nobody reads."""
    floats = nets.float_train(MODELS[name](), head=head, batch=batch)
    train = nets.int8_train(MODELS[name](), head=head, batch=batch)
    check_graph(train.graph, infer)
    assert train.integer
    updated = {old.name for old, _ in train.graph.updates}
    trained = {old.name for old, _ in floats.graph.updates if old in floats.graph.state}
    assert len(trained) >= 2
    assert trained <= updated
    read = {value.name for node in train.graph.nodes for value in node.inputs}
    errors = nets.nodes_of(train, *nets.ERROR_OPS)
    assert [node.name for node in errors if node.outputs[0].name not in read] == []
    assert len({node.inputs[1].name for node in errors}) == len(errors), "one exponent for each"


@pytest.mark.parametrize(("option", "value"), [("optimizer", "adam"), ("weight_decay", 0.1)])
def test_only_sgd_without_decay(option: str, value: object) -> None:
    with pytest.raises(CompileError, match="E0113") as caught:
        nets.int8_train(nets.cnn(), **{option: value})  # type: ignore[arg-type]
    assert f"--{option.replace('_', '-')}" in str(caught.value)
    assert ": int8 weights (--quant int8, or a quantised model) t" in str(caught.value)


def test_a_float_head_alone_may_use_any_optimizer() -> None:
    train = nets.int8_train(nets.cnn(), "fc/Gemm", optimizer="adam", weight_decay=0.1)
    assert len(nets.nodes_of(train, "AdamUpdate")) == 2


# ---- saturation in the float graph ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "calibrated"])
def test_prepared_graph_clamps_every_quantised_value(stored: bool) -> None:
    """To the ranges of a file, with their ends; a calibrated range is an estimate, at which no error stops."""
    model = nets.quantised() if stored else nets.cnn()
    graph = nets.prepared(model, "int8").graph
    ends = set[tuple[float, float]]()
    for node in graph.nodes:
        quant = node.outputs[0].quant
        if node.op == "Clip":
            assert quant is not None and isinstance(node.attrs, ClipAttrs)
            low, high = real_range(quant)
            ends.add((node.attrs.low, node.attrs.high))
            assert not stored or low <= node.attrs.low < node.attrs.high <= high
        else:
            assert quant is None or has_trait(node.op, "moves_data"), node.name
    assert stored or ends == {(0.0, math.inf), (0.0, 6.0), (-math.inf, math.inf)}
    x = nets.calibration(model, 1).transpose(0, 2, 3, 1)
    assert x.shape == graph.inputs[0].shape


def test_errors_pass_a_calibrated_range() -> None:
    """A ReLU stops them at zero alone, and other layers need no mask."""
    train = nets.int8_train(nets.cnn(), head="int8")
    masks = [n.attrs for n in nets.nodes_of(train, "QClipMask")]
    masks += [n.attrs.mask for n in nets.nodes_of(train, "QConvGradInput", "ErrorScale")]
    known = {(one.low, one.high) for one in masks if one.kind == "value"}
    assert known == {(-128, 128)}


@pytest.mark.parametrize(
    ("largest", "clip", "ends"),
    [
        (6.0, ClipAttrs(0.0, 6.0), (-128, 127)),
        (4.0, ClipAttrs(0.0, 6.0), (-128, 128)),
        (8.0, ClipAttrs(0.0, 6.0), (-128, 63)),
        (6.0, ClipAttrs(), (-129, 128)),
    ],
    ids=["at its end", "beyond the range", "inside", "none"],
)
def test_ends_of_a_clamp(largest: float, clip: ClipAttrs, ends: tuple[int, int]) -> None:
    assert ends_of(Quant((largest / 255,), -128), clip) == ends


def test_float_head_has_no_format() -> None:
    graph = nets.prepared(nets.cnn()).graph
    head = next(node for node in graph.nodes if node.op == "Gemm")
    assert head.outputs[0].quant is None
    assert graph.outputs[0].quant is None
    assert nets.prepared(nets.cnn(), "int8").graph.outputs[0].quant is not None


def test_real_range() -> None:
    assert real_range(Quant((0.5,), -128)) == (0.0, 127.5)
    assert real_range(Quant((0.25,), 28)) == (-39.0, 24.75)


# ---- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["fp32", "int8"])
@pytest.mark.parametrize("name", ["cnn", "qdq", "regions", "mlp", "resnet8"])
def test_what_is_stored(name: str, head: str) -> None:
    """Activations, errors and weights are int8, masks bits, biases and sums int32; float32 only in float regions."""
    train = nets.int8_train(MODELS[name](), head=head, batch=2)
    rows = quant_tensors(train)
    by_kind: dict[str, set[str]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], set()).add(row["stored"])
    expected = {"input": {"int8"}, "activation": {"int8"}, "error": {"int8"}, "weight": {"int8"}, "exponent": {"int32"}}
    assert by_kind | expected == by_kind
    assert by_kind["bias"] == {"int32"}
    assert by_kind["setting"] == {"int32", "float32"}, "noise and learning rate"
    assert by_kind.get("mask", {"bits"}) == {"bits"}
    regions = {value.name for node in nets.float_nodes(train) for value in node.outputs}
    floats = {row["name"] for row in rows if row["stored"] == "float32" and row["kind"] == "float region"}
    assert floats <= regions
    for row in rows:
        if row["kind"] in ("input", "activation") and row["name"] in train.formats:
            assert row["scale"] == train.formats[row["name"]].scale[0]
            assert -128 <= row["zero"] <= 127
        if row["kind"] == "error" and row["exponent"] is not None:
            assert {"name": row["exponent"], "kind": "exponent"}.items() <= {
                key: value for other in rows if other["name"] == row["exponent"] for key, value in other.items()
            }.items()


def test_every_activation_of_the_cnn_has_a_format() -> None:
    train = nets.int8_train(nets.cnn(), head="int8")
    rows = [row for row in quant_tensors(train) if row["kind"] == "activation"]
    assert len([row for row in rows if row["scale"] is not None]) == 9, (
        "stem, deep, point, join, pool, last, mean, fc, the largest logit"
    )
    assert [row["name"] for row in rows if row["scale"] is None] == []


def test_float_graph_has_no_formats() -> None:
    assert quant_tensors(nets.float_train(nets.cnn())) == []
    assert nets.float_nodes(nets.float_train(nets.cnn())) == []


def test_fused_clamps_bound_the_integers() -> None:
    """A ReLU's zero is the lowest integer; a Clip at 6 bounds from above where the range is wider."""
    train = nets.int8_train(nets.quantised(), head="int8")
    conv = nets.nodes_of(train, "QConv")[0]
    assert isinstance(conv.attrs, QConvAttrs)
    assert (conv.attrs.x_zero, conv.attrs.y_zero, conv.attrs.low, conv.attrs.high) == (0, -128, -128, 127)
    second = nets.nodes_of(train, "QConv")[1]
    assert isinstance(second.attrs, QConvAttrs)
    assert (second.attrs.x_zero, second.attrs.y_zero) == (-128, 3)
    updates = [node.attrs for node in nets.nodes_of(train, "QConvUpdate")]
    assert sorted(a.x_zero for a in updates if isinstance(a, QUpdateAttrs)) == [-128, -20, 0]


def test_parameters_are_the_models_integers() -> None:
    model = nets.quantised()
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    train = nets.int8_train(model, head="int8")
    constants = train.graph.constants
    np.testing.assert_array_equal(constants["w"], known["w"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(constants["d"], known["d"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(constants["f"].reshape(5, 4), known["f"])
    np.testing.assert_array_equal(constants["bias"], known["bias"])
    assert (constants["w"].dtype, constants["bias"].dtype) == (np.int8, np.int32)


# ---- exponents ------------------------------------------------------------------------------------------------------


def test_every_error_has_its_own_exponent_and_peak() -> None:
    train = nets.int8_train(nets.cnn(), head="int8")
    state = {value.name for value in train.graph.state}
    sums = {value.name for value in train.graph.accumulators}
    made = {}
    for node in nets.nodes_of(train, *nets.ERROR_OPS):
        error = error_operands(node)
        assert error is not None
        peak, own = error.peak, error.exponent
        assert (peak.shape, peak.dtype, own.shape, own.dtype) == ((), "int32", (2,), "int32")
        assert own.name in state and peak.name in sums
        assert train.graph.constants[own.name].tolist() == [-7, -1]
        for read in error.read:
            assert read.name in made, "an exponent is read behind the error that it belongs to"
        made[own.name] = node
    follow = {node.inputs[0].name: node for node in nets.nodes_of(train, "ExponentUpdate")}
    assert set(follow) == set(made)
    for name, node in made.items():
        assert follow[name].inputs[1] == node.outputs[1], "fed by the peak that this error gathered"
        assert follow[name].attrs.float_peak == (node.op == "QuantizeError")  # type: ignore[attr-defined]


def test_noise_of_two_weights_starts_apart() -> None:
    """Salts are the running count of weights, so that no two weights share a position."""
    train = nets.int8_train(nets.cnn(), head="int8")
    position = 0
    for node in nets.nodes_of(train, "QConvUpdate"):
        assert int(train.graph.constants[node.inputs[-1].name]) == position
        position += node.inputs[0].elements
    assert position == sum(v.elements for v in train.graph.state if v.dtype == "int8")


def test_the_seed_is_the_state_of_the_noise() -> None:
    starts = [nets.int8_train(nets.quantised(), seed=seed).graph.constants["noise"] for seed in (0, 1)]
    assert [int(start) for start in starts] == [12345, 12347]


def test_float_regions_are_priced() -> None:
    """Head and loss are one region; what lies between integer layers is others; a float32 graph has none."""
    cnn = float_regions(nets.int8_train(nets.cnn()))
    assert [("loss" in i.origins, "fc/Gemm" in i.origins) for i in cnn] == [(True, True)]
    assert cnn[0].macs == 3 * 12 * 5 and cnn[0].conversions == 2
    mixed = float_regions(nets.int8_train(nets.float_regions()))
    assert mixed[0].origins == ("swish", "gate", "mix") and mixed[0].macs == 0
    swished = 6 * 6 * 4 * 4
    assert mixed[0].float_bytes >= 7 * swished and mixed[0].float_bytes % swished == 0
    assert not float_regions(nets.float_train(nets.cnn()))
