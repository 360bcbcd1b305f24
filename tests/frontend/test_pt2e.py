"""Files of PyTorch's PT2E quantisation (examples/pt2e): all weights train, in int8, as docs/pt2e.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.learn.exporting import changed, exported, outputs
from tinytrain_compile.frontend import load_model
from tinytrain_compile.sparse import layers_of

FILES = Path(__file__).parents[2] / "examples" / "pt2e"
KINDS = ("after", "aware")


def samples() -> dict[str, np.ndarray[Any, Any]]:
    with np.load(FILES / "data.npz") as data:
        return dict(data)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_became_buffers_are_trained(kind: str) -> None:
    model = load_model(FILES / f"{kind}.onnx")
    layers = layers_of(model.graph)
    assert [(layer.module, len(layer.weights), len(layer.biases)) for layer in layers] == [
        ("f.0", 1, 1),
        ("g.0", 1, 1),
        ("c", 1, 1),
    ]
    left = {choice.name: choice.why for choice in model.choices if not choice.trained}
    assert left and set(left.values()) == {"scales of the quantised file"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_head_is_float(kind: str) -> None:
    """It computes what PyTorch does, to a step of the output; and the head alone is no integer layer."""
    data = samples()
    compiled = tt.compile(FILES / f"{kind}.onnx", verify="none", update="all", data=(data["x"], data["y"]))
    assert [region["origins"][0] for region in compiled.report["islands"]] == ["node_linear"]
    output = load_model(FILES / f"{kind}.onnx").graph.outputs[0]
    assert output.quant is not None
    with compiled.twin() as twin:
        found, wanted = twin.predict(data["x"]), data[kind]
        assert np.abs(found - wanted).max() <= 2 * output.quant.scale[0]
        before = twin.evaluate(data["x"], data["y"])["loss"]
        for _ in range(10):
            for x, y in zip(data["x"], data["y"], strict=True):
                twin.train_step(x[None], y[None], lr=0.05)
        assert twin.evaluate(data["x"], data["y"])["loss"] < before


def test_what_was_learned_goes_back_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes((FILES / "after.onnx").read_bytes())
    done, x, device = exported(path, update="f.0,c", head="int8")
    assert changed(path, done.file.model) <= {"_frozen_param0", "_frozen_param2", "f.0.bias", "c.bias"}
    assert {"_frozen_param0", "_frozen_param2"} <= changed(path, done.file.model)
    output = load_model(path).graph.outputs[0].quant
    assert output is not None
    assert np.abs(outputs(done.file.model, x) - device).max() <= 2 * output.scale[0]
