"""The first attempt: what was imported is what the file says. Faults planted in the importer are found and placed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.places import SHARED
from tests.e2e.command import FILE, HERE, run
from tests.e2e.file_level import agreement
from tests.e2e.marks import needs_shared
from tests.frontend.models import write
from tests.frontend.nets import Net
from tests.frontend.qdq import Maker
from tests.frontend.test_qdq import conv_net
from tinytrain_compile.driver.file_check.check import as_stored
from tinytrain_compile.driver.file_check.compare import Format, in_numbers, in_steps
from tinytrain_compile.driver.file_check.imported_values import Held
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileModel, importer
from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.loss import ending
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.int8.pointwise import QuantAttrs

Fault = Callable[[ImportContext, OnnxNode], None]


def tokens() -> onnx.ModelProto:
    """One of each: a convolution, a clip, a turn of two axes of the same length, a norm and a square weight."""
    net = Net("float[1, 4, 6, 6] x", "float[1, 3] y")
    net.conv("c", "x", (8, 4, 3, 3), "pads = [1, 1, 1, 1], strides = [1, 1]")
    net.add(f"k = Clip (c, {net.table('low', -0.4, np.float32)}, {net.table('high', 0.6, np.float32)})")
    net.add("t = Transpose <perm = [0, 1, 3, 2]> (k)")
    net.add(f"r = Reshape (t, {net.table('r_shape', (1, 8, 36))})")
    net.weights["n_s"], net.weights["n_b"] = np.ones(36, np.float32), np.zeros(36, np.float32)
    net.add("n = LayerNormalization <epsilon = 0.1> (r, n_s, n_b)")
    net.add(f"m = ReduceMean <axes = [2], keepdims = 0> ({'n2'})")
    net.lines.insert(-1, f"n2 = Mul (n, {net.weight('gain', 36)})")
    net.dense("g", "m", 8, 8)
    net.dense("y", "g", 8, 3)
    return net.model()


def _with(op: str, **attrs: Any) -> Fault:
    """The handler of an operator, told other attributes."""
    handler = importer.HANDLERS[op]
    return lambda ctx, node: handler(ctx, replace(node, attrs={**node.attrs, **attrs}))


def _dropped(ctx: ImportContext, node: OnnxNode) -> None:
    ctx.define(node.output(0), ctx.entry(node.input(0)))


def _weight_as_it_lies(ctx: ImportContext, node: OnnxNode) -> None:
    """A square weight, taken for its transpose."""
    turn = 1 - node.integer("transB", 0) if node.name.endswith("_g") else node.integer("transB", 0)
    importer_gemm(ctx, replace(node, attrs={**node.attrs, "transB": turn}))


importer_gemm = importer.HANDLERS["Gemm"]
FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a clip is dropped": ("Clip", _dropped, "k"),
    "two axes are swapped": ("Transpose", _with("Transpose", perm=[0, 1, 2, 3]), "t"),
    "the pad is at the wrong end": ("Conv", _with("Conv", pads=[0, 0, 2, 2]), "c"),
    "the epsilon is another": ("LayerNormalization", _with("LayerNormalization", epsilon=1e-5), "n"),
    "a weight is transposed": ("Gemm", _weight_as_it_lies, "g"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_in_float32(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op, handler, tensor = FAULTS[fault]
    path = write(tokens(), tmp_path)
    monkeypatch.setitem(importer.HANDLERS, op, handler)
    with pytest.raises(CompileError) as caught:
        agreement(path)
    assert caught.value.code == "E0605" and caught.value.exit_code == 5
    assert caught.value.where.startswith(f"tensor {tensor} (node ")


def test_the_same_model_without_a_fault(tmp_path: Path) -> None:
    found = agreement(write(tokens(), tmp_path), verify_steps=1)
    assert found.samples == 2 and found.whole and not found.skipped
    assert found.tensors == 9 and found.max_error is not None and found.max_error < 1e-5
    assert found.steps is None


INT8_FAULTS: dict[str, tuple[str, Fault]] = {
    "the pad is at the wrong end": ("Conv", _with("Conv", pads=[0, 0, 2, 2])),
    "a stride is another": ("Conv", _with("Conv", strides=[1, 1], pads=[0, 0, 0, 0])),
}


@pytest.mark.parametrize("quant", ["int8", "fp32"])
@pytest.mark.parametrize("fault", INT8_FAULTS)
def test_planted_fault_in_a_quantised_model(
    fault: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(conv_net(Maker()), tmp_path)
    found = agreement(path, quant=quant, loss="mse", head="int8")
    assert found.whole and found.steps is not None and found.steps <= 1
    assert found.equal_bytes is not None and found.equal_bytes > 0.9
    op, handler = INT8_FAULTS[fault]
    monkeypatch.setitem(importer.HANDLERS, op, handler)
    with pytest.raises(CompileError, match=r"E0605|E0212"):
        agreement(path, quant=quant, loss="mse", head="int8")


def test_weights_that_rescaling_quantises_anew_are_named(tmp_path: Path) -> None:
    """--rescale on leaves room in channels that reach +-127; nine taps of a depthwise layer may be two steps apart."""
    maker = Maker()
    x, c = maker.scale("x", 0.025, -7), maker.scale("c", 0.0094, -128)
    w, v = maker.weight("w", (3, 1, 3, 3), 3), maker.weight("v", (3, 84), 3)
    maker.weights["w"][:, 0, 0, 0] = 127
    text = f"""net (float[1, 3, 7, 4] x) => (float[1, 3] y) {{
        xq = QuantizeLinear (x, {x})  xd = DequantizeLinear (xq, {x})  wd = DequantizeLinear <axis = 0> (w, {w})
        conv = Conv <group = 3, pads = [1, 1, 1, 1]> (xd, wd)
        cq = QuantizeLinear (conv, {c})  cd = DequantizeLinear (cq, {c})
        f = Flatten (cd)  vd = DequantizeLinear <axis = 0> (v, {v})  y = Gemm <transB = 1> (f, vd)
    }}"""
    path = write(maker.model(text), tmp_path)
    found = agreement(path, quant="int8", loss="cross-entropy", rescale="on", update="last:2")
    assert any("its weight is quantised anew" in reason for reason in found.skipped)


def weighted_loss() -> onnx.ModelProto:
    net = Net("float[1, 6] x, int64[1] t", "float loss")
    net.dense("s", "x", 6, 4)
    net.weights["w"] = np.array([0.2, 3, 1, 0.5], np.float32)
    net.add('loss = SoftmaxCrossEntropyLoss <reduction = "sum"> (s, t, w)')
    return net.model()


def test_loss_of_a_model_that_ends_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(weighted_loss(), tmp_path)
    assert agreement(path).whole
    real = ending.describe_loss
    monkeypatch.setattr(ending, "describe_loss", lambda *a: replace(real(*a), class_weights=None))
    with pytest.raises(CompileError, match=r"E0605.*tensor loss \(node SoftmaxCrossEntropyLoss_loss"):
        agreement(path)


def test_samples_whose_label_counts_are_preferred(tmp_path: Path) -> None:
    model = weighted_loss()
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("ignore_index", 2))
    np.savez(tmp_path / "data.npz", x=np.ones((4, 6), np.float32), y=np.array([2, 2, 1, 2]))
    assert agreement(write(model, tmp_path), data=tmp_path / "data.npz").whole


def test_what_the_evaluator_lacks_is_named_and_the_rest_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tokens(), tmp_path)
    real = FileModel.run

    def lacking(self: FileModel, node: Any, values: Any, unrounded: Any) -> Any:
        if node.op == "Transpose":
            raise EvaluatorLacksError("node t (Transpose)", "not today")
        return real(self, node, values, unrounded)

    monkeypatch.setattr(FileModel, "run", lacking)
    found = agreement(path)
    assert found.skipped == ("node t (Transpose): not today",)
    assert found.whole and found.tensors == 8
    monkeypatch.setitem(importer.HANDLERS, "LayerNormalization", FAULTS["the epsilon is another"][1])
    with pytest.raises(CompileError, match="tensor n "):
        agreement(path)


def test_command_says_what_was_compared(tmp_path: Path) -> None:
    net = Net("float[1, 2, 5, 5] x", "float[1, 3] y")
    net.add("p = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)")
    net.add("f = Flatten (p)")
    net.dense("y", "f", 18, 3)
    path = write(net.model(), tmp_path)
    outcome = run(path, "--verify", "host", "-v", "-o", tmp_path / "out").check_success()
    said = " ".join(outcome.out.split())
    assert outcome.agreed[:2] == (FILE, HERE)
    assert "not compared with the file: node AveragePool_p (AveragePool): onnx.reference computes ceil_mode" in said
    assert "file compared with the reference: 2 tensors on 2 samples" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())["verify"]["file"]
    assert report["tensors"] == 2 and report["whole"] and len(report["skipped"]) == 1
    assert "seconds" not in report, "the same input gives the same bytes"
    outcome = run(path, "--verify", "none", "-o", tmp_path / "out").check_success()
    assert outcome.agreed == ()


def test_error_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importer.HANDLERS, "Clip", _dropped)
    outcome = run(write(tokens(), tmp_path), "--verify", "host", "-o", tmp_path / "out")
    assert outcome.exit_code == 5
    assert outcome.err.startswith("error[E0605]: tensor k (node Clip_k, Clip): ")
    assert "in the file" in outcome.err and "as imported" in outcome.err
    assert not (tmp_path / "out").exists()


def test_comparison_ends_at_the_replaced_layer(tmp_path: Path) -> None:
    found = agreement(write(tokens(), tmp_path), classes=3)
    assert found.tensors == 8 and not found.whole


def test_float_model_is_compared_before_it_is_quantised(tmp_path: Path) -> None:
    path = write(tokens(), tmp_path)
    np.savez(tmp_path / "calib.npz", x=np.random.default_rng(0).normal(size=(4, 4, 6, 6)).astype(np.float32))
    found = agreement(path, quant="int8", calib=tmp_path / "calib.npz")
    assert found.whole and found.tensors == 9 and found.steps is None


def test_own_loss_of_a_float_model_is_compared_before_it_is_quantised(tmp_path: Path) -> None:
    np.savez(tmp_path / "calib.npz", x=np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32))
    found = agreement(write(weighted_loss(), tmp_path), quant="int8", calib=tmp_path / "calib.npz", head="int8")
    assert found.whole and found.max_error is not None and found.max_error < 1e-5


def test_another_name_of_what_was_stored_is_compared_as_stored(tmp_path: Path) -> None:
    """Behind its format a tensor is clamped, also under the name that an Identity gives it: all of x is beyond 12.7."""
    m = Maker()
    x, w, s = m.scale("x", 0.1), m.weight("w", (3, 6)), m.scale("s", 0.001)
    text = f"""net (float[1, 6] x) => (float[1, 3] y) {{
        xq = QuantizeLinear(x, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear(w, {w})
        r = Gemm<transB = 1>(xd, wd)
        sq = QuantizeLinear(r, {s})
        sd = DequantizeLinear(sq, {s})
        y = Identity(sd)
        }}"""
    np.savez(tmp_path / "data.npz", x=np.full((2, 6), 20, np.float32), y=np.zeros((2, 3), np.float32))
    found = agreement(write(m.model(text), tmp_path), quant="fp32", loss="mse", data=tmp_path / "data.npz")
    assert found.whole and found.steps is not None and found.steps <= 1


def test_one_sample_of_the_user_is_joined_by_a_random_one(tmp_path: Path) -> None:
    path = write(tokens(), tmp_path)
    x = np.ones((1, 4, 6, 6), np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(1, np.int64))
    assert agreement(path, data=tmp_path / "data.npz").samples == 2


def test_softmax_at_the_end_is_compared_though_the_loss_absorbs_it(tmp_path: Path) -> None:
    net = Net("float[1, 6] x", "float[1, 4] y")
    net.dense("s", "x", 6, 4)
    net.add("y = Softmax (s)")
    assert agreement(write(net.model(), tmp_path)).tensors == 2


def test_external_data_is_read_for_the_evaluator(tmp_path: Path) -> None:
    model = tokens()
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert agreement(tmp_path / "net.onnx").whole


def test_no_number_equals_no_number() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert in_numbers(Held(odd, 0.0), odd).largest == 0
    assert in_numbers(Held(odd, 0.0), np.array([0, np.inf, -np.inf, 1], np.float32)).wrong
    assert in_numbers(Held(odd[1:], 0.0), np.array([-np.inf, -np.inf, 1], np.float32)).wrong
    form = Format(0.5, 3, -128, 127, "int8")
    ours = Held(np.array([0.0, np.nan], np.float32), 0.0)
    assert in_steps(ours, np.array([3, 3], np.int8), form).wrong


def test_two_steps_are_too_many() -> None:
    form = Format(0.5, 3, -128, 127, "int8")
    near, far = (in_steps(Held(np.array([x], np.float32), 0.5), np.array([3], np.int8), form) for x in (0.5, 1.0))
    assert (near.wrong, near.largest, near.equal) == ("", 1.0, 0)
    assert far.wrong.startswith("0 in the file, 1 as imported, at [0] of [1] (2 steps of 0.5")


@needs_shared
def test_lost_relu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """relu_lost.onnx, read as it was before clamps stayed where QuantizeLinear is dropped."""
    path = SHARED / "repros" / "relu_lost.onnx"
    found = agreement(path, quant="fp32", loss="cross-entropy")
    assert found.whole and found.steps is not None and found.steps <= 1
    from tinytrain_compile.driver import pipeline

    monkeypatch.setattr(pipeline, "saturated", lambda graph: graph)
    with pytest.raises(CompileError, match=r"E0605.*tensor hq "):
        agreement(path, quant="fp32", loss="cross-entropy")


@needs_shared
def test_real_model() -> None:
    """Float32 and opset 17; the others are compiled whole in test_real_models.py."""
    found = agreement(SHARED / "models" / "mcunet-5fps-10c.onnx")
    assert found.whole and not found.skipped and found.tensors >= 80
    found = agreement(SHARED / "models" / "mcunet-5fps-10c-qdq.onnx", quant="int8")
    assert found.whole and found.steps == 1 and found.equal_bytes is not None and found.equal_bytes > 0.99


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_weights_that_the_file_computes_are_named(kind: str, tmp_path: Path) -> None:
    """Products of constants are computed in real numbers here, and quantised as weights are, without a zero point; the
    file rounds every one of them (seed 8 of the campaign, int8 QDQ 10; seed 9, 206)."""
    maker, random = Maker(), np.random.default_rng(3)
    x, m, c = maker.scale("x", 0.025, -7), maker.scale("m", 0.0037, -15), maker.scale("c", 0.03, 4)
    v = maker.weight("v", (3, 84), 3)
    maker.weights["u"] = random.uniform(-0.4, 0.5, (3, 3, 3, 3)).astype(np.float32)
    maker.weights["g"] = random.uniform(0.8, 1.0, (3, 1, 1, 1)).astype(np.float32)
    if kind == "uint8":
        zero = m.split(", ")[1]
        maker.weights[zero] = np.asarray(128 - 15, np.uint8)
    text = f"""net (float[1, 3, 7, 4] x) => (float[1, 3] y) {{
        xq = QuantizeLinear (x, {x})  xd = DequantizeLinear (xq, {x})
        w = Mul (u, g)  wq = QuantizeLinear (w, {m})  wd = DequantizeLinear (wq, {m})
        conv = Conv <pads = [1, 1, 1, 1]> (xd, wd)
        cq = QuantizeLinear (conv, {c})  cd = DequantizeLinear (cq, {c})
        f = Flatten (cd)  vd = DequantizeLinear <axis = 0> (v, {v})  y = Gemm <transB = 1> (f, vd)
    }}"""
    found = agreement(write(maker.model(text), tmp_path), quant="int8", loss="cross-entropy", update="head")
    assert any("its weight is quantised anew" in reason for reason in found.skipped)


def test_a_dropout_shows_what_was_clamped(tmp_path: Path) -> None:
    """Behind a DequantizeLinear a Dropout in training mode is the same numbers (seed 8 of the campaign, QDQ 277)."""
    maker = Maker()
    x, c = maker.scale("x", 0.025, -7), maker.scale("c", 0.004, -28)
    v, u = maker.weight("v", (6, 84), 6), maker.weight("u", (3, 6), 3)
    maker.weights["ratio"], maker.weights["mode"] = np.float32(0.5), np.bool_(True)
    text = f"""net (float[1, 84] x) => (float[1, 3] y) {{
        xq = QuantizeLinear (x, {x})  xd = DequantizeLinear (xq, {x})  vd = DequantizeLinear <axis = 0> (v, {v})
        d = Gemm <transB = 1> (xd, vd)  dq = QuantizeLinear (d, {c})  dd = DequantizeLinear (dq, {c})
        e = Dropout (dd, ratio, mode)  f = Erf (e)
        ud = DequantizeLinear <axis = 0> (u, {u})  y = Gemm <transB = 1> (f, ud)
    }}"""
    found = agreement(write(maker.model(text), tmp_path), quant="fp32", loss="cross-entropy", update="all")
    assert found.whole


def test_a_number_between_two_integers_is_rounded_as_here() -> None:
    """Half a step above an integer, by a division in the file and by a product here: what reads it is judged on ours
    (seed 9, int8 QDQ 428: averages that stay float32 here, in front of large weights)."""
    differ = 0
    for scale in np.linspace(0.03, 0.05, 200, dtype=np.float32):
        real = ((np.arange(-40, 40) + 0.5) * np.float64(scale)).astype(np.float32)
        form = Format(float(scale), 18, -128, 127, "int8")
        kept = as_stored(real, form)
        attrs = QuantAttrs(form.scale, form.zero, form.low, form.high)
        assert kept.dtype == np.int8
        np.testing.assert_array_equal(kept, OPS["Quantize"].reference((real,), attrs)[0])
        differ += int(np.count_nonzero(kept != form.integers(real)))
    assert differ > 100
