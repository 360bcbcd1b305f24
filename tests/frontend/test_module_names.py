"""Names of the framework: of modules and their parameters, wherever a user names what is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.sparse import layers_of, resolve_update

FILES = Path(__file__).parent / "exported"
BOTH = ("relative_positions.dyn", "relative_positions.ts", "relative_positions.raw")
"""The same module by three exports: only the last one names the weight of `q`."""


def graph(name: str, **options: tuple[str, ...]) -> Graph:
    return load_model(FILES / f"{name}.onnx", FrontendOptions(**options)).graph


def trained(name: str, spec: str) -> dict[str, int]:
    """Node -> how many of its parameters are trained."""
    found, chosen = graph(name), resolve_update(graph(name), spec).updates
    each = {layer.name: sum(value.name in chosen for value in layer.parameters) for layer in layers_of(found)}
    return {layer: count for layer, count in each.items() if count}


@pytest.mark.parametrize("name", BOTH)
def test_a_module_names_its_layer(name: str) -> None:
    for module in ("q", "b"):
        (whole,) = trained(name, module).values()
        assert whole == 2, "weight and bias"
        ((_, one),) = trained(name, f"{module}.bias").items()
        assert one == 1, "the parameter alone"
    assert trained(name, "q,b.weight") == {**trained(name, "q"), **trained(name, "b.weight")}
    assert len(trained(name, "[qb]")) == 2


def test_an_outer_module_names_all_that_is_in_it(tmp_path: Path) -> None:
    """Nodes are numbered; a BatchNormalization is folded into the layer in front of it, and still has its name."""
    path = _block(tmp_path)
    found = load_model(path).graph
    assert [layer.modules for layer in layers_of(found)] == [("f.0", "f", "f.1"), ("f.3", "f"), ("c",)]
    assert [layer.module for layer in layers_of(found)] == ["f.0", "f.3", "c"]
    for spec, count in (("f", 2), ("f.1", 1), ("f.*", 2), ("f.1.weight", 1), ("*", 3)):
        updates = resolve_update(found, spec).updates
        assert sum(any(v.name in updates for v in layer.parameters) for layer in layers_of(found)) == count, spec


def test_node_names_come_first(tmp_path: Path) -> None:
    """What was a node's name stays that of the node alone, even if a module has it too."""
    found = load_model(_block(tmp_path, {"n0": "c", "n4": "f"})).graph
    assert list(resolve_update(found, "c").updates) == [value.name for value in layers_of(found)[0].parameters]


def test_trainable_and_frozen_take_modules(tmp_path: Path) -> None:
    path = _block(tmp_path)
    names = {value.name for value in load_model(path, FrontendOptions(frozen=("f.3",))).graph.parameters}
    assert names == {value.name for value in load_model(path).graph.parameters} - {"f.3.weight", "f.3.bias"}
    same = load_model(path, FrontendOptions(trainable=("c",)))
    assert {choice.why for choice in same.choices if choice.name.startswith("c.")} == {"--trainable"}
    for name in BOTH:
        model = load_model(FILES / f"{name}.onnx", FrontendOptions(frozen=("q",)))
        assert "q.bias" in {choice.name for choice in model.choices if not choice.trained}
        assert not any("q" in layer.modules for layer in layers_of(model.graph)), name
    with pytest.raises(CompileError, match="nor its module"):
        load_model(path, FrontendOptions(frozen=("g",)))


def test_a_scheme_takes_them_and_the_report_shows_them(tmp_path: Path) -> None:
    path, scheme = _block(tmp_path), tmp_path / "scheme.toml"
    scheme.write_text('[[update]]\nlayer = "f.3"\nweight = 2\n[[update]]\nlayer = "c.weight"\nbias = true\n')
    x = np.random.default_rng(0).standard_normal((8, 2, 6, 6)).astype(np.float32)
    for quant in ({}, {"quant": "int8", "calib": x}):
        report = tt.compile(path, update=scheme, verify="none", **quant).report
        assert [(layer["layer"], layer["module"]) for layer in report["update"]] == [("n3", "f.3"), ("n5", "c")]
    with pytest.raises(CompileError, match=r"E0301.*nearest names: .*f\.3"):
        tt.compile(path, update="f.4", verify="none")


def test_names_that_tell_enough_are_not_repeated() -> None:
    assert {layer.module for layer in layers_of(graph("relative_positions.ts"))} == {""}
    assert {layer.module for layer in layers_of(graph("relative_positions.dyn"))} == {"q", "b", ""}
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    assert {layer.module for layer in layers_of(load_model(digits).graph)} == {""}


def _block(folder: Path, renamed: dict[str, str] | None = None) -> Path:
    """Conv, BatchNormalization, Relu, Conv as a Sequential `f`; a Linear `c`. Nodes are numbered."""
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(1)
    shapes = {
        "f.0.weight": (4, 2, 3, 3),
        "f.0.bias": (4,),
        "f.1.weight": (4,),
        "f.1.bias": (4,),
        "f.1.running_mean": (4,),
    }
    shapes |= {
        "f.1.running_var": (4,),
        "f.3.weight": (4, 4, 3, 3),
        "f.3.bias": (4,),
        "c.weight": (3, 16),
        "c.bias": (3,),
    }
    weights = [
        numpy_helper.from_array(random.uniform(0.1, 1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    normed = ["f.1.weight", "f.1.bias", "f.1.running_mean", "f.1.running_var"]
    nodes = [
        helper.make_node("Conv", ["x", "f.0.weight", "f.0.bias"], ["a"], "n0"),
        helper.make_node("BatchNormalization", ["a", *normed], ["b"], "n1"),
        helper.make_node("Relu", ["b"], ["r"], "n2"),
        helper.make_node("Conv", ["r", "f.3.weight", "f.3.bias"], ["d"], "n3"),
        helper.make_node("Flatten", ["d"], ["e"], "n4"),
        helper.make_node("Gemm", ["e", "c.weight", "c.bias"], ["y"], "n5", transB=1),
    ]
    for node in nodes:
        node.name = (renamed or {}).get(node.name, node.name)
    info = helper.make_tensor_value_info
    x, y = info("x", onnx.TensorProto.FLOAT, [1, 2, 6, 6]), info("y", onnx.TensorProto.FLOAT, [1, 3])
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = folder / "block.onnx"
    onnx.save(made, path)
    return path
