"""Explicit state of ONNX files: the window gives what onnxruntime gives call by call, or the file is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tinytrain_compile as tt
from tests.emit.test_generated_c import needs_gcc
from tests.frontend import stateful_nets as nets
from tests.frontend.stateful_nets import NETS, Stateful, node_of, set_attribute
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FrontendOptions, load_model
from tinytrain_compile.frontend.evaluator import steps
from tinytrain_compile.frontend.file.model import OnnxModel, OnnxNode
from tinytrain_compile.frontend.rings import onnx_window
from tinytrain_compile.frontend.training_file.read import read_training_file
from tinytrain_compile.learn.export import judged_file

FLOAT = 1e-5
"""Largest difference to onnxruntime, which sums in another order."""


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("name", NETS)
def test_the_window_is_what_calls_give(name: str, tmp_path: Path) -> None:
    net = NETS[name]
    path = saved(net.model(), tmp_path)
    window, _ = read_training_file(path)
    onnx.checker.check_model(window)
    assert [one.name for one in window.graph.input] == ["x"]
    assert [one.name for one in window.graph.output] == ["y"]
    assert window.graph.input[0].type.tensor_type.shape.dim[net.axis].dim_value == net.window
    held = [one.name for one in window.graph.initializer]
    assert {*net.weights} <= {*held}, "each weight under its name"
    assert len(held) == len({*held})
    stream = net.stream(-(-net.window // net.hop) + 3)
    theirs = nets.called(net.model(), net, stream)
    runner, frames = nets.session(window), stream.shape[net.axis]
    for late in range(4):
        end = frames - late * net.hop
        x = np.take(stream, range(end - net.window, end), net.axis)
        assert np.allclose(runner.run(None, {"x": x})[0], theirs[-1 - late], rtol=0, atol=FLOAT)
    assert load_model(path).input_shape == x.shape
    steps.check_steps(path)


def test_a_long_way_of_a_state(tmp_path: Path) -> None:
    """Nodes that pass a state on are followed without recursion."""
    model = NETS[min(NETS)].model()
    state = next(one.name for one in model.graph.input if one.name != "x")
    for node in model.graph.node:
        node.input[:] = ["way1500" if name == state else name for name in node.input]
    way = [onnx.helper.make_node("Identity", [f"way{k}" if k else state], [f"way{k + 1}"]) for k in range(1500)]
    nodes = [*way, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    window, _ = read_training_file(saved(model, tmp_path))
    assert [one.name for one in window.graph.input] == ["x"]


def test_the_file_check_calls_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window whose slices are one row too early differs from the file's own calls."""
    path, rows = saved(nets.BRANCHES.model(), tmp_path), onnx_window.constant_rows

    def early(model: OnnxModel, node: OnnxNode, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
        bounds = rows(model, node, shape)
        return [(begin - 1, end - 1, step) if begin else (begin, end, step) for begin, end, step in bounds]

    monkeypatch.setattr(onnx_window, "constant_rows", early)
    with pytest.raises(CompileError, match=r"E0605.*net.onnx: its window and 5 of its own calls differ by"):
        tt.compile(path, verify="host")


def test_a_window_that_is_too_long(tmp_path: Path) -> None:
    path = saved(nets.ROWS.model(), tmp_path)
    with pytest.raises(CompileError, match=r"E0217.*net.onnx: its output depends on a window of 9 frames.*activations"):
        load_model(path, FrontendOptions(max_window=8))
    assert load_model(path, FrontendOptions(max_window=9)).input_shape == (1, 1, 9, 6)


def test_a_state_output_may_be_what_counts(tmp_path: Path) -> None:
    """With --model-output an output that could be state is an output like others, and its state an input of samples."""
    path = saved(nets.ROWS.model(), tmp_path)
    assert load_model(path, FrontendOptions(output="n2")).output_name == "n2"
    assert load_model(path, FrontendOptions(output="r2")).input_shape == (1, 1, 9, 6), "an inner result"
    steps.check_steps(path, "r2")


def _stored(scales: dict[str, float]) -> onnx.ModelProto:
    """The net of rows with these tensors as int8: QDQ pairs behind them."""
    made = nets.ROWS.model()
    graph, table = made.graph, [("zero", np.asarray(3, np.int8))]
    for name, scale in scales.items():
        for node in graph.node:
            node.input[:] = [f"{one}.dq" if one == name else one for one in node.input]
        table.append((f"{name}.scale", np.asarray(scale, np.float32)))
        pairs = [("QuantizeLinear", name, f"{name}.q"), ("DequantizeLinear", f"{name}.q", f"{name}.dq")]
        made_by = [k for k, node in enumerate(graph.node) if name in node.output]
        for op, source, result in reversed(pairs):
            node = onnx.helper.make_node(op, [source, f"{name}.scale", "zero"], [result], name=result)
            graph.node.insert(made_by[0] + 1 if made_by else 0, node)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in table)
    onnx.checker.check_model(made)
    return made


def test_a_state_of_integers(tmp_path: Path) -> None:
    """QDQ pairs on the way of a state are passed if they all have one scale: else rows are rounded at each call."""
    scales = {"x": 0.03, "s1": 0.03, "j1": 0.03, "r1": 0.02, "s2": 0.02, "j2": 0.02}
    path = saved(_stored(scales), tmp_path)
    steps.check_steps(path)
    imported = load_model(path)
    assert imported.input_shape == (1, 1, 9, 6)
    assert imported.quantised
    with pytest.raises(CompileError, match=r"E0501.*state s2, QuantizeLinear: its rows are stored in other scales"):
        load_model(saved(_stored({**scales, "s2": 0.021}), tmp_path))


# ---- what is no ring -------------------------------------------------------------------------------------------------


def _table(model: onnx.ModelProto, name: str, numbers: list[int]) -> None:
    place = next(one for one in model.graph.initializer if one.name == name)
    place.CopyFrom(numpy_helper.from_array(np.asarray(numbers, np.int64), name))


def _longer_state(model: onnx.ModelProto) -> None:
    model.graph.output[1].type.tensor_type.shape.dim[2].dim_value = 4
    node_of(model, "n1").input[1] = "last4"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([-4]), "last4"))


def _reads_first_rows(model: onnx.ModelProto) -> None:
    for name, number in (("zero", 0), ("three", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray([number]), name))
    node_of(model, "n1").input[1:3] = ["zero", "three"]


def _decays(model: onnx.ModelProto) -> None:
    """The state itself is computed with: a moving average."""
    node_of(model, "j1").CopyFrom(onnx.helper.make_node("Add", ["s1", "x"], ["j1"]))
    for value in (model.graph.input[0], model.graph.input[1], model.graph.output[1]):
        value.type.tensor_type.shape.dim[2].dim_value = 5
    node_of(model, "n1").CopyFrom(onnx.helper.make_node("Relu", ["j1"], ["n1"]))


def _pads(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "c2"), "pads", [1, 0, 1, 0])
    model.graph.initializer[4].CopyFrom(numpy_helper.from_array(np.zeros((3, 72), np.float32), "w3"))


def _normalises(model: onnx.ModelProto) -> None:
    node_of(model, "r1").CopyFrom(onnx.helper.make_node("Softmax", ["c1"], ["r1"], axis=2))


def _strides(model: onnx.ModelProto) -> None:
    set_attribute(node_of(model, "c2"), "strides", [2, 1])


PATTERN = "Concat of a state input with new rows behind it, and Slice of its last rows as the state output"
NO_RINGS: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "differing shape": (_longer_state, "state s1, Concat: it has shape [1, 1, 3, 6], and n1 [1, 1, 4, 6]"),
    "first rows": (_reads_first_rows, "state s1, Slice: what n1 keeps are not the last 3 rows"),
    "arithmetic": (_decays, "input s1 (read by Add) and output n1 (made by Relu) look like state, not a ring"),
    "padding": (_pads, "Conv: it pads along time"),
    "normalisation": (_normalises, "Softmax: it works along time"),
    "strides": (_strides, "Conv: [1] new rows by strides of 2"),
}


@pytest.mark.parametrize("name", NO_RINGS)
def test_state_that_is_no_ring(name: str, tmp_path: Path) -> None:
    change, said = NO_RINGS[name]
    with pytest.raises(CompileError) as found:
        load_model(saved(nets.changed(nets.ROWS, change), tmp_path))
    assert found.value.code == "E0501"
    assert said in found.value.what
    assert PATTERN in str(found.value)
    assert "\n" not in str(found.value)


CELLS = {
    "LSTM": "seq, n1, n2 = LSTM <hidden_size = 3> (t, w, r, b, no, s1, s2)",
    "arithmetic": "e = Mul (s1, k)\n n1 = Add (e, t)\n seq = Identity (n1)\n n2 = Tanh (s2)",
}


@pytest.mark.parametrize("name", CELLS)
def test_state_of_other_kinds(name: str, tmp_path: Path) -> None:
    size = "1, 1, 3"
    net = Stateful(
        f"""(float[1, 1, 3] t, float[{size}] s1, float[{size}] s2)
        => (float[1, 2] y, float[{size}] n1, float[{size}] n2) {{
          {CELLS[name].replace("no,", ",").replace(", , ", ', "", ')}
          f = Flatten (seq)
          y = Gemm <transB = 1> (f, w3)
        }}""",
        {"w": (1, 12, 3), "r": (1, 12, 3), "b": (1, 24), "w3": (2, 3)},
        axis=1,
        hop=1,
        window=1,
        tables={"k": 0.5},
    )
    with pytest.raises(CompileError) as found:
        load_model(saved(net.model(), tmp_path))
    assert found.value.code == "E0501"
    assert "look like state, not a ring" in found.value.what
    assert "if it is no state, choose an output with --model-output NAME" in str(found.value)


# ---- files that nobody has written -----------------------------------------------------------------------------------

OPERATORS = "Relu Softmax Concat Slice Conv Add Transpose Reshape Gather MatMul MaxPool ReduceMean Identity Split Pad"


def _mutate(source: Random, model: onnx.ModelProto) -> None:
    """Change one thing of a graph: an operand, an operator, an attribute, a table, a size, a name, a node less."""
    graph = model.graph
    node, names = source.choice(graph.node), [name for one in graph.node for name in (*one.input, *one.output)]
    kind, number = source.randrange(7), source.choice((-9, -1, 0, 1, 2, 3, 5, 1 << 40))
    if kind == 0:
        node.input[source.randrange(len(node.input))] = source.choice(names)
    elif kind == 1:
        node.op_type = source.choice(OPERATORS.split())
    elif kind == 2 and node.attribute:
        given = source.choice(node.attribute)
        given.i = number
        given.ints[:] = source.choice(([*given.ints, 1], given.ints[:-1], [number, *given.ints[1:]]))
    elif kind == 3:
        table = source.choice(graph.initializer)
        array = numpy_helper.to_array(table).copy()
        array.reshape(-1)[source.randrange(array.size)] = number
        table.CopyFrom(numpy_helper.from_array(array, table.name))
    elif kind == 4:
        source.choice(source.choice((*graph.input, *graph.output)).type.tensor_type.shape.dim).dim_value = max(
            number, 1
        )
    elif kind == 5:
        source.choice(graph.output).name = source.choice(names)
    else:
        graph.node.remove(node)


def test_mutants_are_refused_or_computed_as_they_say(tmp_path: Path) -> None:
    """No other exception comes out; what is accepted with state passes its own judge, if onnx.reference can run it."""
    source, judged = Random(1), 0
    for _ in range(240):
        model = NETS[source.choice([*NETS])].model()
        _mutate(source, model)
        path = saved(model, tmp_path)
        try:
            if load_model(path, FrontendOptions(output=source.choice(("", "", "y")))).time_axis is None:
                continue
        except CompileError:
            continue
        with suppress(EvaluatorLacksError):
            steps.check_steps(path)
            judged += 1
    assert judged > 20


# ---- on the device ---------------------------------------------------------------------------------------------------


@needs_gcc
@pytest.mark.parametrize("name", ["rows", "deque", "branches", "delay"])
def test_hears_what_onnxruntime_hears(name: str, tmp_path: Path) -> None:
    """Call by call from the first one on, before training and after it, when the file has what was learned."""
    net = NETS[name]
    path = saved(net.model(), tmp_path)
    options = {"update": "all", "listen": net.axis, "input_layout": "lc", "verify": "none"}
    compiled = tt.compile(path, **options)
    stream = net.stream(12)
    rows = np.ascontiguousarray(np.moveaxis(stream, net.axis, 0).reshape(stream.shape[net.axis], -1))

    with compiled.twin() as twin:

        def hears(model: onnx.ModelProto) -> None:
            heard = twin.instance.hear(rows)
            every = len(heard) // 12  # the device may listen in shorter calls
            theirs = nets.called(model, net, stream)[:, 0]
            assert np.allclose(heard[every - 1 :: every], theirs, rtol=0, atol=FLOAT)

        hears(net.model())
        window = np.take(stream, range(net.window), net.axis)
        for label in (0, 1, 0):
            twin.train_step(window, np.asarray([label]), lr=0.1)
        done = judged_file(compiled.project, twin, options_from(path, options), tmp_path / "learned.onnx")
        twin.instance.load(twin.instance.save())
        hears(onnx.load_from_string(done.file.model))
    before, after = net.model(), onnx.load_from_string(done.file.model)
    assert [*before.graph.node] == [*after.graph.node]
    assert [*before.graph.input, *before.graph.output] == [*after.graph.input, *after.graph.output]
    changed = {a.name for a, b in zip(before.graph.initializer, after.graph.initializer, strict=True) if a != b}
    assert changed - {"half"} == {*net.weights}


def test_time_is_the_axis_of_the_rings(tmp_path: Path) -> None:
    """An image whose time is its width is not listened to along its height."""
    path = saved(nets.COLUMNS.model(), tmp_path)
    with pytest.raises(
        CompileError, match=r"--listen on: axis 3 of x .* inside of axis 2.*export the model with time as"
    ):
        tt.compile(path, listen="on", verify="none")
