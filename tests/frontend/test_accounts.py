"""Every floating-point initializer that can change the result ends in one class, with a reason if it is not trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from testing.places import SHARED
from tests.e2e.marks import needs_shared
from tests.frontend.test_batch_norm import MODELS
from tests.frontend.test_trainable import HEAD, OUT, WIDTH, imported, normal
from tinytrain_compile.driver.summary import fates_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.frontend.weights import parameters
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.summary import Fate
from tinytrain_compile.sparse import resolve_update

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)


def fates(model: ImportedModel, update: str = "all") -> dict[str, Fate]:
    found = fates_of(model, resolve_update(model.graph, update))
    assert len({fate.name for fate in found}) == len(found)
    return {fate.name: fate for fate in found}


def of_file(model: onnx.ModelProto, folder: Path, update: str = "all", **options: object) -> dict[str, Fate]:
    path = folder / "net.onnx"
    onnx.save(model, path)
    return fates(load_model(path, FrontendOptions(**options)), update)  # type: ignore[arg-type]


def reached(model: onnx.ModelProto) -> set[str]:
    """Names of the floating-point initializers that outputs depend on, by the file alone."""
    needed = {value.name for value in model.graph.output}
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
    return {tensor.name for tensor in model.graph.initializer if tensor.data_type in FLOATS} & needed


def zoo() -> Iterator[Path]:
    for folder in ("zoo/keras", "zoo/torch-ts", "zoo/torch-dynamo", "zoo3", "models"):
        yield from sorted((SHARED / folder).glob("*.onnx"))


@needs_shared
def test_no_initializer_of_any_network_is_left_out() -> None:
    files = 0
    for path in zoo():
        try:
            found = fates(load_model(path, FrontendOptions()))
        except CompileError:
            continue
        files += 1
        assert reached(onnx.load(path, load_external_data=False)) <= set(found), path
        lost = [fate for fate in found.values() if fate.why.startswith("the compiler keeps it")]
        assert not lost, path  # a parameter that no layer trains would be here
    assert files > 200


def test_a_norm_has_every_class(tmp_path: Path) -> None:
    found = of_file(MODELS["conv with bias"], tmp_path)
    assert {name: fate.kind for name, fate in found.items()} == {
        "K": "trained",
        "bias": "trained",
        "head": "trained",
        "gamma": "absorbed",
        "beta": "absorbed",
        "mean": "other",
        "var": "other",
    }
    assert (found["gamma"].into, found["beta"].into) == ("K", "bias")
    assert found["mean"].why == "running statistics of BatchNormalization_n (BatchNormalization)"
    found = of_file(MODELS["conv with bias"], tmp_path, "head")
    assert {name for name, fate in found.items() if fate.kind == "update"} == {"K", "bias", "gamma", "beta"}
    found = of_file(MODELS["conv with bias"], tmp_path, batch_norm="keep")
    assert found["gamma"].kind == found["beta"].kind == "trained"


def test_part_of_a_layer_counts_as_that_part(tmp_path: Path) -> None:
    scheme = tmp_path / "scheme.toml"
    scheme.write_text('[[update]]\nlayer = "Conv_c"\nbias = true\nweight = 2\naxis = "out"\n')
    found = of_file(MODELS["conv with bias"], tmp_path, str(scheme))
    assert (found["K"].updated, found["bias"].updated) == (2 * found["K"].elements // 3, 3)
    assert found["head"].kind == "update"


def test_reasons(tmp_path: Path) -> None:
    body = "a = Mul (x, p) b = Clip (a, low) c = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> () h = Add (b, c)"
    tables = {"p": normal(WIDTH), "low": -3.0, **OUT}
    found = fates(imported(tmp_path, body + HEAD, tables, frozen=("p",)))
    assert {name: (fate.kind, fate.why) for name, fate in found.items()} == {
        "p": ("other", "--frozen"),
        "low": ("other", "a setting of Clip_b (Clip)"),
        "c": ("other", "the output of a Constant node"),
        "w": ("trained", "read by MatMul_y (MatMul)"),
    }


def test_a_parameter_that_the_importer_loses_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way a parameter is lost: it cannot count as trained."""
    real = parameters.Trainables.trained
    monkeypatch.setattr(parameters.Trainables, "trained", lambda self, name: name != "p" and real(self, name))
    found = fates(imported(tmp_path, "r = Relu (x) h = Mul (r, p)" + HEAD, {"p": normal(WIDTH), **OUT}))
    assert found["p"].kind == "other"
    assert found["p"].why == "the compiler keeps it as numbers of Mul_h (Mul)"
