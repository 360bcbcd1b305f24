"""Files that hang, never end, or ask for all memory: one line, soon, whichever option names them."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from testing.networks import models
from tests.e2e.broken import weight, write
from tests.e2e.command import run
from tinytrain_compile.data import samples

KERNEL = '[[kernel]]\nop = "Gemm"\nfunction = "f"\nfiles = ["{}"]\n'
OPTIONS = {
    "--data": ("E0105", "npz"),
    "--calib": ("E0105", "npz"),
    "--lock": ("E0106", "json"),
    "--kernels": ("E0108", "toml"),
    "--update": ("E0302", "toml"),
    "--target": ("E0102", "toml"),
}


class TooLongError(BaseException):
    """No OSError, which is what a file that cannot be read gives."""


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Whatever waits for a file is ended."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    return write(models.mlp(), tmp_path)


def pipe(place: Path) -> None:
    os.mkfifo(place)


def endless(place: Path) -> None:
    place.symlink_to("/dev/zero")


def huge(place: Path) -> None:
    with place.open("wb") as stream:
        stream.truncate(1 << 41)


@pytest.mark.parametrize("make", [pipe, endless, huge, Path.mkdir])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_file_that_is_none(option: str, make: Callable[[Path], None], mlp: str, tmp_path: Path) -> None:
    error_id, suffix = OPTIONS[option]
    place = tmp_path / f"it.{suffix}"
    make(place)
    more = ("--quant", "int8") if option == "--calib" else ()
    run(mlp, option, place, *more, "--dry-run", "-o", tmp_path / "out").check_error(error_id, 2)


@pytest.mark.parametrize("make", [pipe, endless, huge, Path.mkdir])
def test_a_kernel_in_a_file_that_is_none(make: Callable[[Path], None], mlp: str, tmp_path: Path) -> None:
    make(tmp_path / "k.c")
    (tmp_path / "k.toml").write_text(KERNEL.format("k.c"))
    run(mlp, "--kernels", tmp_path / "k.toml", "--dry-run").check_error("E0108", 2)


# ---- external data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "error_id"),
    [
        ({"location": "it"}, "E0220"),
        ({"location": "zero\0byte"}, "E0210"),
        ({"location": "x" * 5000}, "E0220"),
        ({"location": "it", "offset": str(2**70)}, "E0216"),
        ({"location": "it", "offset": str(2**62 - 1)}, "E0220"),
        ({"location": "it", "offset": "9" * 5000}, "E0216"),
        ({"location": "it", "length": "-1"}, "E0216"),
        ({"location": "round"}, "E0210"),
    ],
)
@pytest.mark.parametrize("make", [pipe, endless])
def test_external_data(entries: dict[str, str], error_id: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    model = models.mlp()
    tensor = weight(model, "fc1_weight")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))
    make(tmp_path / "it")
    (tmp_path / "round").symlink_to("round")
    leads_out = make is endless and entries["location"] == "it"
    wanted = "E0210" if leads_out else error_id
    run(write(model, tmp_path), "--dry-run").check_error(wanted, 2)


def test_a_tensor_in_segments(tmp_path: Path) -> None:
    model = models.mlp()
    weight(model, "fc1_weight").segment.end = 3
    run(write(model, tmp_path), "--dry-run").check_error("E0223", 2)


# ---- memory ---------------------------------------------------------------------------------------------------------


def grown(nodes: list[onnx.NodeProto], *constants: TensorProto) -> onnx.ModelProto:
    """A model whose weight depends on the sum of a constant `big` that the nodes make."""
    weights = [numpy_helper.from_array(np.ones((4, 3), np.float32), "w0"), *constants]
    nodes = [
        *nodes,
        helper.make_node("Cast", ["big"], ["real"], "cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["real"], ["sum"], "sum", keepdims=0),
        helper.make_node("Add", ["w0", "sum"], ["w"], "add"),
        helper.make_node("Gemm", ["x", "w"], ["y"], "gemm"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n, size in (("x", 4), ("y", 3))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def scalar(name: str, value: int) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, np.int64), name)


def _many() -> onnx.ModelProto:
    """Forty constants of 2^23 elements, each allowed alone."""
    nodes = [helper.make_node("ConstantOfShape", ["shape"], [f"big{i}"], f"big{i}") for i in range(40)]
    return grown(
        [*nodes, helper.make_node("Sum", [f"big{i}" for i in range(40)], ["big"], "all")], numbers("shape", 2**23)
    )


LARGE = {
    "ConstantOfShape": lambda: grown([helper.make_node("ConstantOfShape", ["s"], ["big"], "n")], numbers("s", 2**27)),
    "Expand": lambda: grown([helper.make_node("Expand", ["w0", "s"], ["big"], "n")], numbers("s", 2**24, 4, 3)),
    "Tile": lambda: grown([helper.make_node("Tile", ["w0", "s"], ["big"], "n")], numbers("s", 2**14, 2**12)),
    "Range": lambda: grown(
        [helper.make_node("Range", ["a", "b", "c"], ["big"], "n")], scalar("a", 0), scalar("b", 2**27), scalar("c", 1)
    ),
    "Gather": lambda: grown(
        [helper.make_node("ConstantOfShape", ["s"], ["d"], "d"), helper.make_node("Gather", ["d", "i"], ["big"], "n")],
        numbers("s", 2, 2**20),
        numbers("i", *([0] * 64)),
    ),
    "MatMul": lambda: grown(
        [
            helper.make_node("ConstantOfShape", ["s"], ["a"], "a"),
            helper.make_node("Transpose", ["a"], ["b"], "b"),
            helper.make_node("MatMul", ["a", "b"], ["big"], "n"),
        ],
        numbers("s", 2**14, 1),
    ),
    "forty": _many,
    "60 dimensions": lambda: grown(
        [helper.make_node("Expand", ["w0", "s"], ["big"], "n")], numbers("s", *[1] * 60, 4, 3)
    ),
    "70 dimensions": lambda: grown(
        [helper.make_node("Expand", ["w0", "s"], ["big"], "n")], numbers("s", *[1] * 70, 4, 3)
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_constants_that_would_take_all_memory(name: str, tmp_path: Path) -> None:
    """A file of less than a KB."""
    path = Path(write(LARGE[name](), tmp_path))
    assert path.stat().st_size < 4096
    error_id = "E0212" if name == "70 dimensions" else "E0217"
    run(path, "--dry-run", "--loss", "mse").check_error(error_id, 2)


def test_batched_products_of_constants_are_not_mistaken_for_large_ones(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["a"], "a"),
        helper.make_node("MatMul", ["a", "a"], ["big"], "n"),
    ]
    run(write(grown(nodes, numbers("s", 64, 128, 128)), tmp_path), "--dry-run", "--loss", "mse").check_success()


@pytest.mark.parametrize("kind", ["shape", "zeros"])
def test_data_that_would_take_all_memory(kind: str, mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that says more than is there, and zeros that pack well."""
    monkeypatch.setattr(samples, "MOST_DATA_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        shape = (1 << 40, 12) if kind == "shape" else (1 << 15, 12)
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with archive.open("x.npy", "w") as stream:
            stream.write(header.getvalue() + bytes(48 * min(shape[0], 1 << 15)))
    outcome = run(mlp, "--data", tmp_path / "data.npz", "--verify", "none", "-o", tmp_path / "out")
    outcome.check_error("E0105", 2)


# ---- text that is no text -------------------------------------------------------------------------------------------

DEEP = "a = " + "[" * 5000
LONG = "a = 1" + "0" * 5000


@pytest.mark.parametrize("text", [DEEP, LONG, "a = 1\0", "\ufeff"])
@pytest.mark.parametrize(("option", "error_id"), [("--update", "E0302"), ("--target", "E0103"), ("--kernels", "E0108")])
def test_toml(option: str, error_id: str, text: str, mlp: str, tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(text)
    run(mlp, option, tmp_path / "it.toml", "--dry-run").check_error(error_id, 2)


@pytest.fixture
def plan(mlp: str, tmp_path: Path) -> dict[str, object]:
    run(mlp, "-o", tmp_path / "out", "--verify", "none", "--update", "last:1").check_success()
    return json.loads((tmp_path / "out" / "plan.json").read_text())


DAMAGE: dict[str, Callable[[dict[str, list[object]]], object]] = {
    "null": lambda plan: plan["buffers"].append(None),
    "a list": lambda plan: plan["buffers"].append([1]),
    "order of numbers": lambda plan: plan["order"].append(3),
    "within": lambda plan: plan["buffers"][1].update(within=[[1, 2, 3]]),
    "over": lambda plan: plan["buffers"][1].update(over=[]),
    "memories": lambda plan: plan.update(memories=3),
    "runs": lambda plan: plan.update(second_runs=[None]),
    "moves": lambda plan: plan.update(page_moves=[{"name": []}]),
    "offset": lambda plan: plan["buffers"][-1].update(offset=2**31),
    "size": lambda plan: plan["buffers"][-1].update(size_bytes=2**31),
    "far": lambda plan: plan["buffers"][-1].update(offset=2**39),
    "step": lambda plan: plan["buffers"][-1].update(last_step=2**39),
    "micro-batch": lambda plan: plan.update(micro_batch=2**39),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_lock(name: str, plan: dict[str, list[object]], mlp: str, tmp_path: Path) -> None:
    DAMAGE[name](plan)
    (tmp_path / "lock.json").write_text(json.dumps(plan))
    run(mlp, "--lock", tmp_path / "lock.json", "-o", tmp_path / "again", "--verify", "none").check_error("E0106", 2)
    for text in ("[" * 100000, '{"a": 1' + "0" * 5000 + "}", "null", "\udcff"):
        (tmp_path / "lock.json").write_text(text, errors="surrogateescape")
        run(mlp, "--lock", tmp_path / "lock.json", "--dry-run").check_error("E0106", 2)


def test_a_lock_opens_no_file(
    plan: dict[str, object], mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lock trains may be a scheme, which the user has to name; a lock from elsewhere could name any file."""
    monkeypatch.chdir(tmp_path)
    scheme = tmp_path / "secret.toml"
    scheme.write_text('[[update]]\nlayer = "fc3/Gemm"\nbias = true\nweight = "all"\n')
    os.mkfifo(tmp_path / "pipe")
    for name in (str(scheme), "secret.toml", "pipe", "auto: secret.toml"):
        plan["update"] = name
        (tmp_path / "lock.json").write_text(json.dumps(plan))
        run(mlp, "--lock", tmp_path / "lock.json", "--dry-run").check_error("E0106", 2)
    plan["update"] = "secret.toml"
    (tmp_path / "lock.json").write_text(json.dumps(plan))
    run(mlp, "--lock", tmp_path / "lock.json", "--update", scheme, "--dry-run").check_success()
