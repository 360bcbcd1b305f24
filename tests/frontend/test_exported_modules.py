"""Modules as PyTorch's exporters write them (scripts/export_folded.py) train as there, or a note names the tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from testing.networks.zoo import Outcome, networks3, trained
from testing.networks.zoo_verdicts import judge
from tests.learn.exporting import arrays
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.frontend.exporters.remarks import REMEDY
from tinytrain_compile.frontend.exporters.weight_forms import form_of
from tinytrain_compile.frontend.written.file import written_file

FOLDER = Path(__file__).with_name("exported")
NETWORKS = {network.path.name.removesuffix(".onnx"): network for network in networks3(folder=FOLDER)}
NOTED = {
    "cosine_head.dyn": ("div_1", REMEDY),
    "exp_scale.dyn": ("exp", REMEDY),
    "lora_merged.dyn": ("add", REMEDY),
    "weight_norm.dyn": ("mul", REMEDY),
    "weight_norm.ts": ("onnx::Gemm_14", REMEDY),
    "relative_positions.dyn": ("index", REMEDY),
    "penalty.dyn": ("mul", REMEDY),
    "smoothed.dyn": ("cross_entropy_loss", "label_smoothing=0.1"),
    "smoothed.raw": ("cross_entropy_loss", "label_smoothing=0.1"),
    "fourier_features.ts": ("B", "--frozen B"),
}
"""Files that do not train as in PyTorch: the tensor that a note names, and the way out."""


def outcome(name: str, **more: Any) -> tuple[str, Outcome]:
    found = trained(NETWORKS[name], **more)
    return judge(NETWORKS[name], found)[0], found


def about_exporters(found: Outcome) -> list[str]:
    return [note for note in found.notes if not note.startswith("loss: ")]


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_equal_or_noted(name: str) -> None:
    verdict, found = outcome(name)
    if name not in NOTED:
        assert (verdict, about_exporters(found)) == ("equal", [])
        return
    (note,) = about_exporters(found)
    tensor, way = NOTED[name]
    assert verdict == "noted"
    assert f" {tensor} " in note and way in note


@pytest.mark.parametrize("name", sorted(name for name, (_, way) in NOTED.items() if way == REMEDY))
def test_the_remedy_trains_as_in_pytorch(name: str) -> None:
    assert outcome(f"{name.partition('.')[0]}.raw")[0] == "equal"


def test_flags_of_notes_train_as_in_pytorch() -> None:
    verdict, found = outcome("fourier_features.ts", frozen=("B",))
    assert (verdict, about_exporters(found)) == ("equal", [])
    assert outcome("smoothed_in_full.dyn")[0] == "equal"


def test_what_the_user_decides_is_not_noted() -> None:
    _, found = outcome("exp_scale.dyn", frozen=("exp",))
    assert about_exporters(found) == []


def test_names_are_enough_without_the_record(tmp_path: Path) -> None:
    """Tools that simplify a file may drop its metadata."""
    model = onnx.load(FOLDER / "exp_scale.dyn.onnx")
    del model.graph.metadata_props[:]
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    (note,) = load_model(path, FrontendOptions()).graph.notes
    assert "the exporter computed exp (8 from parameters)" in note and REMEDY in note


def test_a_parameter_behind_a_rule_is_noted(tmp_path: Path) -> None:
    """The record says PARAMETER, the rules say preprocessing: a module may hold that without a gradient."""
    model = onnx.load(FOLDER / "exp_scale.raw.onnx")
    model.graph.node.insert(0, helper.make_node("Sub", ["x", "mean"], ["less"], name="less"))
    for node in list(model.graph.node)[1:]:
        node.input[:] = ["less" if name == "x" else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.full(10, 0.3, np.float32), "mean"))
    signature = next(entry for entry in model.graph.metadata_props if entry.key.endswith("graph_signature"))
    signature.value = signature.value.replace("# inputs\n", "# inputs\np_mean: PARAMETER target='mean'\n")
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    (note,) = load_model(path, FrontendOptions()).graph.notes
    assert "mean (10, preprocessing of the input)" in note and "--trainable" in note


@pytest.mark.parametrize(("name", "copy"), [("gaussians.dyn", "exp"), ("tied_transpose.dyn", "t")])
def test_copies_follow_what_is_exported(name: str, copy: str) -> None:
    """The file holds a parameter twice; trained weights are written to both."""
    path = NETWORKS[name].path
    model = load_model(path, FrontendOptions())
    source = model.copies[copy].source
    numbers = np.random.default_rng(1).normal(size=arrays(onnx.load(path))[source].shape).astype(np.float32)
    written = onnx.load_from_string(written_file(path, "new", model, {source: numbers}).model)
    expected = np.exp(numbers) if copy == "exp" else numbers.T
    np.testing.assert_allclose(arrays(written)[copy], expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [17, 18])
def test_forms_are_found_by_their_numbers(opset: int) -> None:
    weight = np.random.default_rng(2).normal(size=(3, 4, 2)).astype(np.float32)
    lengths = np.sqrt((weight * weight).sum((1, 2), keepdims=True))
    for array in (weight.transpose(2, 0, 1), weight.reshape(12, 2), np.exp(weight), -weight, lengths[:, 0]):
        form = form_of(np.ascontiguousarray(array), weight, opset)
        assert form is not None and np.allclose(form.of(weight), array, rtol=1e-6)
    assert form_of(weight[::-1], weight, opset) is None
    assert form_of(weight + 1e-3, weight, opset) is None
    assert form_of(np.ones((3, 4, 2), np.float32), np.ones((2, 4, 3), np.float32), opset) is None
