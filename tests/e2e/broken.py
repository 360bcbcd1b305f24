"""Broken inputs of the command line: how to make each, and the error that it must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from testing.networks import models
from tinytrain_compile.target.loader import data_dir

Edit = Callable[[onnx.ModelProto], None]
Make = Callable[[Path], list[str]]
"""Writes files into a folder and returns the command's arguments (without -o)."""


@dataclass(frozen=True)
class Broken:
    """One broken input and what it must lead to."""

    name: str
    error_id: str
    exit_code: int
    make: Make


def write(model: onnx.ModelProto, folder: Path, name: str = "net.onnx") -> str:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return str(path)


def edited(edit: Edit, *options: str) -> Make:
    """A sound MLP with one change."""

    def make(folder: Path) -> list[str]:
        model = models.mlp()
        edit(model)
        return [write(model, folder), *options]

    return make


def given(*options: str, model: Callable[[], onnx.ModelProto] = models.mlp) -> Make:
    """A sound model with wrong options."""
    return lambda folder: [write(model(), folder), *options]


def model_file(data: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "net.onnx").write_bytes(data)
        return [str(folder / "net.onnx")]

    return make


def side_file(option: str, name: str, content: str | bytes, *more: str) -> Make:
    """A sound model and another file that is not."""

    def make(folder: Path) -> list[str]:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
        return [write(models.mlp(), folder), option, str(folder / name), *more]

    return make


def arrays(**data: object) -> Make:
    def make(folder: Path) -> list[str]:
        np.savez(folder / "data.npz", **{name: np.asarray(array) for name, array in data.items()})
        return [write(models.mlp(), folder), "--data", str(folder / "data.npz")]

    return make


def weight(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def spoiled(value: float) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = weight(model, "fc2_weight")
        array = numpy_helper.to_array(tensor).copy()
        array[3, 1] = value
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return edit


def data_input(*shape: int | str, kind: int = TensorProto.FLOAT) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, shape))

    return edit


def _meeting(model: onnx.ModelProto) -> None:
    data_input(4, 12)(model)
    node(model, "tail").op_type = "Softmax"
    node(model, "tail").attribute.append(helper.make_attribute("axis", 0))


def opset(version: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return edit


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(item for item in model.graph.node if item.name == name)


def _cycle(model: onnx.ModelProto) -> None:
    node(model, "fc1/Gemm").input[0] = "fc2_tanh"


def _same_value_name(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["x"], ["fc1"], "again"))


def _no_value_name(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), ""))


def _unknown_operators(model: onnx.ModelProto) -> None:
    node(model, "fc2/Tanh").op_type = "Frobnicate"
    node(model, "fc1/Relu").op_type = "Det"


def _foreign_domain(model: onnx.ModelProto) -> None:
    node(model, "fc2/Tanh").domain = "com.microsoft"


def _training_norm(model: onnx.ModelProto) -> None:
    for part in ("scale", "bias", "mean", "var"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(10, np.float32), part))
    operands = ["fc1", "scale", "bias", "mean", "var"]
    node(model, "fc1/Relu").input[0] = "normal"
    norm = helper.make_node("BatchNormalization", operands, ["normal"], "norm", training_mode=1)
    model.graph.node.insert(1, norm)


def _short_weight(model: onnx.ModelProto) -> None:
    weight(model, "fc1_weight").raw_data = weight(model, "fc1_weight").raw_data[:-4]


def _undefined_value(model: onnx.ModelProto) -> None:
    node(model, "fc2/Gemm").input[0] = "nowhere"


def _two_outputs(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("fc2_tanh", TensorProto.FLOAT, [1, 10]))


def _nine_inputs(model: onnx.ModelProto) -> None:
    more = [f"input{index}" for index in range(2, 10)]
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 10]) for name in more)
    model.graph.node.append(helper.make_node("Sum", ["fc2_tanh", *more], ["sum"], "sum"))
    node(model, "fc3/Gemm").input[0] = "sum"


def _no_input(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 12), np.float32), "x"))


def _training_information(model: onnx.ModelProto) -> None:
    model.training_info.add()


def _short_inputs(model: onnx.ModelProto) -> None:
    del node(model, "fc2/Gemm").input[1:]


def _wrong_attribute(model: onnx.ModelProto) -> None:
    node(model, "fc2/Gemm").attribute.append(helper.make_attribute("alpha", "one"))


def _misfit(model: onnx.ModelProto) -> None:
    tensor = weight(model, "fc2_weight")
    tensor.CopyFrom(numpy_helper.from_array(np.ones((10, 11), np.float32), tensor.name))


def _external(location: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        tensor = weight(model, "fc1_weight")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=location))

    return edit


def _no_parameters(model: onnx.ModelProto) -> None:
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Softmax", ["x"], ["y"], "only"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12]))


def _single_score() -> onnx.ModelProto:
    return models.mlp(classes=1)


def _labelled(shape: list[int], kind: int = TensorProto.INT64) -> Make:
    def make(folder: Path) -> list[str]:
        model = models.with_loss(models.mlp())
        model.graph.input[1].CopyFrom(helper.make_tensor_value_info("target", kind, shape))
        return [write(model, folder)]

    return make


def _missing_model(folder: Path) -> list[str]:
    return [str(folder / "nowhere.onnx")]


def _folder_model(folder: Path) -> list[str]:
    (folder / "net.onnx").mkdir()
    return [str(folder / "net.onnx")]


def _scheme(text: str) -> Make:
    return side_file("--update", "scheme.toml", text)


def _target(old: str, new: str) -> Make:
    text = (data_dir("targets") / "cortex-m7.toml").read_text()
    assert old in text
    return side_file("--target", "board.toml", text.replace(old, new, 1))


SOUND = models.mlp().SerializeToString()
_X = np.zeros((3, 12), np.float32)

MODELS = [
    Broken("missing", "E0201", 2, _missing_model),
    Broken("a folder", "E0201", 2, _folder_model),
    Broken("empty file", "E0213", 2, model_file(b"")),
    Broken("a picture", "E0213", 2, model_file(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))),
    Broken("git-lfs pointer", "E0213", 2, model_file(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n")),
    Broken("truncated", "E0214", 2, model_file(SOUND[: len(SOUND) * 2 // 3])),
    Broken("garbled", "E0214", 2, model_file(SOUND[:40] + b"\xff" * 60 + SOUND[100:])),
    Broken("cyclic", "E0207", 2, edited(_cycle)),
    Broken("NaN weight", "E0205", 2, edited(spoiled(float("nan")))),
    Broken("infinite weight", "E0225", 2, edited(spoiled(float("inf")))),
    Broken("huge dimension", "E0217", 2, edited(data_input(1, 2**40))),
    Broken("negative dimension", "E0204", 2, edited(data_input(1, -12))),
    Broken("zero dimension", "E0226", 2, edited(data_input(1, 0))),
    Broken("duplicate value name", "E0206", 2, edited(_same_value_name)),
    Broken("empty weight name", "E0227", 2, edited(_no_value_name)),
    Broken("unknown operators", "E0501", 4, edited(_unknown_operators)),
    Broken("foreign domain", "E0503", 4, edited(_foreign_domain)),
    Broken("unsupported attribute", "E0501", 4, edited(_training_norm)),
    Broken("dynamic shape", "E0203", 2, edited(data_input(1, "length"))),
    Broken("integer input", "E0221", 2, edited(data_input(1, 12, kind=TensorProto.INT32))),
    Broken("batch of 4 whose samples meet", "E0211", 2, edited(_meeting)),
    Broken("opset 6", "E0208", 2, edited(opset(6))),
    Broken("opset 999", "E0230", 2, edited(opset(999))),
    Broken("nine inputs", "E0209", 2, edited(_nine_inputs)),
    Broken("two outputs", "E0218", 2, edited(_two_outputs)),
    Broken("no data input", "E0219", 2, edited(_no_input)),
    Broken("undefined value", "E0215", 2, edited(_undefined_value)),
    Broken("short weight data", "E0216", 2, edited(_short_weight)),
    Broken("training information", "E0231", 2, edited(_training_information)),
    Broken("too few operands", "E0228", 2, edited(_short_inputs)),
    Broken("attribute of the wrong type", "E0229", 2, edited(_wrong_attribute)),
    Broken("shapes that do not fit", "E0212", 2, edited(_misfit)),
    Broken("external data outside", "E0210", 2, edited(_external("../../etc/passwd"))),
    Broken("external data missing", "E0220", 2, edited(_external("weights.bin"))),
    Broken("labels of a wrong shape", "E0305", 2, _labelled([1, 4])),
    Broken("float labels", "E0305", 2, _labelled([1], TensorProto.FLOAT)),
    Broken("no parameters", "E0303", 2, edited(_no_parameters)),
]

OPTIONS = [
    Broken("arena 0", "E0101", 2, given("--arena", "0")),
    Broken("arena in furlongs", "E0101", 2, given("--arena", "12furlongs")),
    Broken("negative arena", "E0101", 2, given("--arena", "-1")),
    Broken("arena of 5,000 digits", "E0101", 2, given("--arena", "9" * 5000)),
    Broken("arena too small", "E0401", 3, given("--arena", "100")),
    Broken("unknown option", "E0101", 2, given("--frobnicate")),
    Broken("unknown optimizer", "E0101", 2, given("--optimizer", "adabelief")),
    Broken("learning rate NaN", "E0101", 2, given("--lr", "nan")),
    Broken("negative learning rate", "E0101", 2, given("--lr", "-1")),
    Broken("batch 0", "E0101", 2, given("--batch", "0")),
    Broken("negative seed", "E0101", 2, given("--seed", "-1")),
    Broken("huge seed", "E0101", 2, given("--seed", str(2**40))),
    Broken("no steps", "E0101", 2, given("--verify-steps", "0")),
    Broken("unknown report", "E0101", 2, given("--report", "pdf")),
    Broken("last:0", "E0101", 2, given("--update", "last:0")),
    Broken("last:many", "E0101", 2, given("--update", "last:" + "9" * 5000)),
    Broken("empty update", "E0101", 2, given("--update", " , ")),
    Broken("glob without match", "E0301", 2, given("--update", "fc9/*")),
    Broken("long glob list", "E0301", 2, given("--update", ",".join(f"layer{i}/Conv" for i in range(100)))),
    Broken("input shape of an unknown input", "E0224", 2, given("--input-shape", "z=1,12")),
    Broken("input shape that contradicts", "E0224", 2, given("--input-shape", "x=1,13")),
    Broken("input shape without numbers", "E0101", 2, given("--input-shape", "x=1,n")),
    Broken("unknown label", "E0222", 2, given("--label", "truth")),
    Broken("cross-entropy of one score", "E0304", 2, given("--loss", "cross-entropy", model=_single_score)),
    Broken("no default loss", "E0304", 2, given(model=_single_score)),
    Broken(
        "loss beside the model's own", "E0304", 2, given("--loss", "mse", model=lambda: models.with_loss(models.mlp()))
    ),
    Broken("unknown target", "E0102", 2, given("--target", "cortex-m99")),
    Broken("missing target file", "E0102", 2, given("--target", "nowhere.toml")),
    Broken(
        "loss explodes", "E0603", 5, given("--loss", "mse", "--lr", "1e6", "--verify", "host", "--verify-steps", "9")
    ),
]

FILES = [
    Broken("scheme: not TOML", "E0302", 2, _scheme("[[update]\n")),
    Broken("scheme: missing file", "E0302", 2, given("--update", "nowhere.toml")),
    Broken("scheme: no entries", "E0302", 2, _scheme("")),
    Broken("scheme: not UTF-8", "E0302", 2, side_file("--update", "scheme.toml", b"\xff\xfe\x00")),
    Broken("scheme: unknown key", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweights = 3\n')),
    Broken("scheme: entry without layer", "E0302", 2, _scheme("[[update]]\nbias = true\n")),
    Broken("scheme: negative count", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = -3\n')),
    Broken("scheme: boolean weight", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = true\n')),
    Broken("scheme: empty list", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = []\n')),
    Broken("scheme: too many channels", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = 11\n')),
    Broken("scheme: channel out of range", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = [10]\n')),
    Broken("scheme: unknown axis", "E0302", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\nweight = 1\naxis = "depth"\n')),
    Broken("scheme: unknown layer", "E0301", 2, _scheme('[[update]]\nlayer = "fc7/Gemm"\nweight = "all"\n')),
    Broken("scheme: updates nothing", "E0303", 2, _scheme('[[update]]\nlayer = "fc1/Gemm"\n')),
    Broken("target: not TOML", "E0103", 2, side_file("--target", "board.toml", "name = ")),
    Broken("target: unknown key", "E0103", 2, _target("alignment_bytes", "alignement_bytes")),
    Broken("target: wrong type", "E0103", 2, _target("alignment_bytes = 8", 'alignment_bytes = "8"')),
    Broken("target: odd alignment", "E0103", 2, _target("alignment_bytes = 8", "alignment_bytes = 7")),
    Broken("target: flags that are not", "E0103", 2, _target("gcc_flags = [", 'gcc_flags = ["-o/etc/passwd", ')),
    Broken("data: missing", "E0105", 2, given("--data", "nowhere.npz")),
    Broken("data: empty file", "E0105", 2, side_file("--data", "data.npz", b"")),
    Broken("data: not an archive", "E0105", 2, side_file("--data", "data.npz", b"PK\x03\x04 no, not really")),
    Broken("data: a plain array", "E0105", 2, side_file("--data", "data.npz", b"\x93NUMPY\x01\x00v\x00{'descr'")),
    Broken("data: without y", "E0105", 2, arrays(x=_X)),
    Broken("data: x of a wrong shape", "E0105", 2, arrays(x=_X[:, :5], y=[0, 1, 2])),
    Broken("data: no samples", "E0105", 2, arrays(x=_X[:0], y=np.zeros(0, np.int64))),
    Broken("data: x of text", "E0105", 2, arrays(x=np.full((3, 12), "a"), y=[0, 1, 2])),
    Broken("data: objects", "E0105", 2, arrays(x=np.full((3, 12), None), y=[0, 1, 2])),
    Broken("data: NaN", "E0105", 2, arrays(x=_X + np.float32("nan"), y=[0, 1, 2])),
    Broken("data: float labels", "E0305", 2, arrays(x=_X, y=[0.0, 1.0, 2.0])),
    Broken("data: label out of range", "E0305", 2, arrays(x=_X, y=[0, 4, 2])),
    Broken("data: too few labels", "E0305", 2, arrays(x=_X, y=[0, 1])),
]
