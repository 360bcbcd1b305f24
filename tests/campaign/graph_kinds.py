"""Random networks with random options that belong together: the compiler must say PASS, or say why not."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnxruntime.quantization import QuantType

from testing.cores import missing_tools
from tests.campaign.cases import Case, Kind
from tests.campaign.judge import OUT
from tests.campaign.model_kinds import NET
from tests.campaign.nets import Drawn, image_net, joined_net, random_net, unlabelled_net
from tests.campaign.option_draws import more_options
from tests.campaign.qdq_form import qdq_form
from tests.frontend.qoperator import qoperator_form
from tinytrain_compile.cli.command import command
from tinytrain_compile.target.loader import list_targets, load_target

KNOWN = {name for parameter in command.params for name in parameter.opts}
"""Flags of the command."""
SANITISED = "gcc -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
_TYPES = (QuantType.QInt8, QuantType.QUInt8)
"""Of activations in QOperator files; weights are int8."""
LEVELS = ("reference", "host")
Asked = tuple[onnx.ModelProto, list[str]]
"""A network, and what is asked for."""
Net = Callable[[Random, Path], Asked]
"""Draws one; its samples are written into the folder."""
TIMEOUT_S = 300


def _option(*words: str) -> list[str]:
    """A flag and its value, if this version has the flag."""
    return list(words) if words[0] in KNOWN else []


def _common(source: Random, integer: bool = True) -> list[str]:
    """What every network can be asked for."""
    options = ["--seed", str(source.randrange(1000)), "--verify-steps", source.choice(("1", "2", "3"))]
    options += ["--lr", source.choice(("0", "0.001", "0.01", "0.1"))]
    options += ["--update", source.choice(("auto", "all", "all", "bias", "head", "last:1", "last:2", "last:4", "*"))]
    options += ["--input-layout", "chw"] if source.randrange(3) == 0 else []
    options += ["--code", source.choice(("speed", "size"))] if source.randrange(2) else []
    options += ["--flash-budget", source.choice(("4KB", "12KB", "40KB"))] if source.randrange(6) == 0 else []
    return [*options, *_samples(source, integer), *_memory(source)]


def _samples(source: Random, integer: bool) -> list[str]:
    """How many samples an update takes."""
    batch = source.choice((1, 1, 2, 3, 4))
    if batch == 1:
        return []
    if source.randrange(4) == 0:
        return ["--batch", str(batch), "--accumulate", "inplace"]
    sizes = ("1", "auto") if integer else ("1", str(batch), "auto")  # int8 needs labels in --calib for several
    return ["--batch", str(batch), *_option("--micro-batch", source.choice(sizes))]


def _memory(source: Random) -> list[str]:
    """Arena, further memories, second runs and the objective."""
    options: list[str] = []
    if source.randrange(2):
        options += ["--arena", source.choice(("1500", "3000", "6000", "12000", "24000", "100KB"))]
        options += ["--memory", source.choice(("sram2=64KB", "sram2=1MB"))] if source.randrange(3) == 0 else []
        options += ["--max-step-time", source.choice(("1ms", "1s"))] if source.randrange(8) == 0 else []
    options += ["--remat", source.choice(("off", "auto", "min"))] if source.randrange(2) else []
    options += ["--optimise", source.choice(("memory", "time", "energy"))] if source.randrange(3) == 0 else []
    return options


def _loss(drawn: Drawn, source: Random) -> list[str]:
    loss = source.choice(drawn.losses)
    return ["--loss", loss] if loss else []


def _case(model: onnx.ModelProto, options: list[str], source: Random, folder: Path) -> Case:
    """On the host, a tenth of them in QEMU if its tools are there; some are built again with sanitizers."""
    return _on_host(model, [*options, *more_options(source, options, model, folder)], source)


def _on_host(model: onnx.ModelProto, options: list[str], source: Random) -> Case:
    Path(NET).write_bytes(model.SerializeToString())
    board = source.randrange(10) == 0
    alone = board or "--memory" in options  # what the host target has not
    target = source.choice([name for name in list_targets() if name != "host" or not alone])
    board = board and not missing_tools(load_target(target))
    verify = ["--target", target, "--verify", "qemu" if board else "host"]
    sanitised = source.randrange(8) == 0

    def check(place: Path) -> int:
        return _check(place, board, sanitised)

    return Case((NET, "-o", OUT, *options, *verify), sound=True, check=check)


def _check(place: Path, board: bool, sanitised: bool) -> int:
    """The report says what was compared; the project computes the same under AddressSanitizer and UBSan."""
    found = json.loads((place / OUT / "report.json").read_text())["verify"]
    assert found["result"] == "pass" and found["mode"] == ("qemu" if board else "host"), found
    levels = (*LEVELS, "QEMU") if board else LEVELS
    assert all(level in found["message"] for level in levels), found["message"]
    if sanitised:
        run_sanitised(place / OUT / "verify")
    return int(sanitised)


def run_sanitised(verify: Path) -> None:
    """The check program of an output, built by its own Makefile with another compiler's flags: no report."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    line = f'ulimit -S -v unlimited; exec make -s host/output.bin CC="{SANITISED}"'
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=verify,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"with sanitizers: {done.stdout}{done.stderr}"


_SETTINGS = {
    "sgd": (),
    "momentum": (("--nesterov",), ("--dampening", "0.5"), ("--momentum", "0.5")),
    "adam": (("--betas", "0.8,0.99"), ("--epsilon", "1e-6"), ("--epsilon-place", "raw")),
    "adamw": (("--betas", "0.8,0.99"), ("--epsilon", "1e-6"), ("--epsilon-place", "raw")),
    "adagrad": (("--epsilon", "1e-6"),),
    "rmsprop": (("--alpha", "0.9"), ("--centered",), ("--momentum", "0.5"), ("--epsilon", "1e-6")),
    "lion": (("--betas", "0.8,0.95"),),
}
"""Optimizers, and what may be said about each."""


def _optimizer(source: Random) -> list[str]:
    name = source.choice(tuple(_SETTINGS))
    settings = _SETTINGS[name]
    said = source.choice(settings) if settings and source.randrange(2) else ()
    return ["--optimizer", name, *said]


def float_net(source: Random, _folder: Path) -> Asked:
    """Any network and optimizer."""
    drawn = random_net(source)
    options = [*_common(source, False), *_loss(drawn, source), *_optimizer(source)]
    if any(node.op_type == "Dropout" for node in drawn.model.graph.node):
        options += ["--dropout", source.choice(("on", "on", "off"))]
    options += ["--weight-decay", "0.01"] if source.randrange(3) == 0 else []
    options += _option("--batch-norm", "keep") if source.randrange(4) == 0 else []
    return drawn.finished(drawn.model), options


def _int8_options(source: Random) -> list[str]:
    options = ["--quant", "int8", "--optimizer", source.choice(("sgd", "momentum"))]
    options += ["--head", source.choice(("fp32", "int8"))] if source.randrange(2) else []
    options += ["--weight-store", source.choice(("sr8", "q8.8", "mixed"))] if source.randrange(2) else []
    return [*options, "--rescale", "on"] if source.randrange(4) == 0 else options


def calibrated_net(source: Random, folder: Path) -> Asked:
    """int8 with ranges from samples, with labels or without."""
    drawn = image_net(source) if source.randrange(3) else random_net(source)
    loss = _loss(drawn, source)
    shape = [d.dim_value for d in drawn.model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(source.randrange(1 << 30)).standard_normal((6, *shape[1:])).astype(np.float32)
    np.savez(folder / "calib.npz", x=x * np.float32(source.choice((0.05, 1.0, 1.0, 30.0))))
    options = [*_common(source), *loss, *_int8_options(source), "--calib", "calib.npz"]
    options += ["--calib-range", "percentile"] if source.randrange(4) == 0 else []
    return drawn.finished(drawn.model), options


def quantised_net(source: Random, _folder: Path) -> Asked:
    """A QDQ or QOperator file, as int8 or (its formats dropped) as float32."""
    drawn = image_net(source) if source.randrange(3) else random_net(source)
    with tempfile.TemporaryDirectory() as name:
        if source.randrange(3) == 0:
            made = onnx.load(qoperator_form(drawn.model, Path(name), activation_type=source.choice(_TYPES)))
        else:
            made = qdq_form(drawn.model, source, Path(name))
        model = drawn.finished(made)
    options = [*_common(source), *_loss(drawn, source)]
    options += _int8_options(source) if source.randrange(4) else ["--quant", "fp32"]
    return model, options


def new_form(source: Random, folder: Path) -> Asked:
    """Several data inputs, or a loss that reads no labels; float32, or int8 with ranges from samples."""
    options = [*_common(source, False), *_optimizer(source)]
    if source.randrange(3) == 0:
        return unlabelled_net(source), options
    drawn = joined_net(source)
    options += _loss(drawn, source)
    if source.randrange(3) == 0:
        rng = np.random.default_rng(source.randrange(1 << 30))
        shapes = {one.name: [d.dim_value for d in one.type.tensor_type.shape.dim] for one in drawn.model.graph.input}
        arrays = {name: rng.standard_normal((6, *shape[1:])).astype(np.float32) for name, shape in shapes.items()}
        np.savez(folder / "calib.npz", **arrays)  # type: ignore[arg-type]  # of savez's own flags
        options = [*_common(source), *_loss(drawn, source), *_int8_options(source), "--calib", "calib.npz"]
    return drawn.finished(drawn.model), options


def _new_form(source: Random, folder: Path) -> Case:
    model, options = new_form(source, folder)
    return _on_host(model, options, source)


def _compiled(source: Random, folder: Path, net: Net) -> Case:
    model, options = net(source, folder)
    return _case(model, options, source, folder)


GRAPH_KINDS = (
    Kind("graphs: float", 1_000, partial(_compiled, net=float_net), least_passed=0.7),
    Kind("graphs: int8 calibrated", 500, partial(_compiled, net=calibrated_net), least_passed=0.7),
    Kind("graphs: int8 QDQ", 500, partial(_compiled, net=quantised_net), least_passed=0.7),
    Kind("graphs: inputs and losses", 300, _new_form, least_passed=0.6),
)
