"""Networks that the derivative check is tried on: both zoos, and small ones for what these do not exercise. And what
its two tables, in float32 and in int8, share besides: rows that a file keeps, and the cost of the check.

The small ones are written to a folder of this process: powers, looked-up rows and leaky ReLUs; training information
(TrainingInfoProto) of a file; artifacts of ONNX Runtime in ../shared/training-graphs.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from testing.networks.training_info import info_model
from testing.networks.zoo import Network, networks, networks3
from testing.networks.zoo_verdicts import OTHERWISE
from testing.places import SHARED
from tinytrain_compile import compilation
from tinytrain_compile.data.samples import load_samples, random_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

DENSE = {"w1": (8, 6), "b1": (8,), "w2": (4, 8), "b2": (4,)}
_FIRST, _LAST = "h = Gemm<transB = 1>(x, w1, b1)", "y = Gemm<transB = 1>(a, w2, b2)"
_TOKENS = ("int64[1, 6] x", {"t": (5, 8), "w2": (4, 8), "b2": (4,)})
_LOOKED_UP = "r = Gather(t, x) a = ReduceMean<axes = [1], keepdims = 0>(r)"
TEXTS: dict[str, tuple[str, dict[str, tuple[int, ...]], str]] = {
    "pow_const": (
        "float[1, 6] x",
        DENSE,
        f"{_FIRST} s = Sigmoid(h) k = Constant<value = float {{1.7}}>() a = Pow(s, k)",
    ),
    "pow_root": (
        "float[1, 6] x",
        DENSE,
        f"{_FIRST} s = Softplus(h) k = Constant<value = float {{0.3}}>() a = Pow(s, k)",
    ),
    "pow_trained": ("float[1, 6] x", {**DENSE, "p": (8,)}, f"{_FIRST} s = Softplus(h) q = Softplus(p) a = Pow(s, q)"),
    "gather": (*_TOKENS, _LOOKED_UP),
    "gather_tanh": (*_TOKENS, "r = Gather(t, x) m = Tanh(r) a = ReduceMean<axes = [1], keepdims = 0>(m)"),
    "gather_places": (
        _TOKENS[0],
        {**_TOKENS[1], "q": (6, 8)},
        "r = Gather(t, x) n = Add(r, q) m = Sigmoid(n) a = ReduceMean<axes = [1], keepdims = 0>(m)",
    ),
    "leaky": ("float[1, 6] x", DENSE, f"{_FIRST} a = LeakyRelu<alpha = 0.2>(h)"),
    "leaky_negative": ("float[1, 6] x", DENSE, f"{_FIRST} a = LeakyRelu<alpha = -0.3>(h)"),
    "leaky_conv": (
        "float[1, 2, 5, 5] x",
        {"k": (4, 2, 3, 3), "w2": (4, 4), "b2": (4,)},
        "h = Conv(x, k) l = LeakyRelu<alpha = 0.1>(h) a = ReduceMean<axes = [2, 3], keepdims = 0>(l)",
    ),
}
"""Name -> input, trained tensors by shape, and the nodes before the last layer."""
INFOS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "info_sgd": ("Sgd", 0, {}),
    "info_momentum": ("Momentum", 3, {"alpha": 0.9, "beta": 0.3, "mode": "standard", "norm_coefficient": 1e-3}),
    "info_nesterov": ("Momentum", 3, {"alpha": 0.8, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.01}),
    "info_nesterov_first": ("Momentum", 0, {"alpha": 0.9, "beta": 1.0, "mode": "nesterov", "norm_coefficient": 0.0}),
    "info_nesterov_slow": ("Momentum", 1, {"alpha": 0.5, "beta": 1.0, "mode": "nesterov", "norm_coefficient": 0.0}),
    "info_adam": ("Adam", 0, {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "norm_coefficient": 0.0}),
    "info_adam_decay": ("Adam", 0, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-4, "norm_coefficient": 0.01}),
    "info_adam_first": ("Adam", 1, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-4, "norm_coefficient": 0.01}),
    "info_adam_later": ("Adam", 5, {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0}),
    "info_adagrad": ("Adagrad", 2, {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0}),
}
ARTIFACTS = ("mlp_ce_sgd", "mlp_ce_adamw", "cnn_ce_sgd", "cnn_ce_adamw")


def every() -> Iterator[Network]:
    """Return all networks."""
    yield from networks()
    yield from networks3()
    yield from small()


def named(name: str) -> Network:
    """Return a network by folder/name."""
    return next(network for network in every() if network.name == name)


def small() -> Iterator[Network]:
    """Return the small networks, and training graphs as files."""
    for path in sorted(Path(_written().name).glob("*/*.onnx")):
        yield Network(path, {})
    for path in sorted((SHARED / "training-graphs").glob("ti_*.onnx")):
        yield Network(path, {})
    for name in ARTIFACTS:
        if (folder := SHARED / "training-graphs" / "ort" / name).is_dir():
            yield Network(folder, {})


@functools.cache
def _written() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="derivative-")
    (Path(folder.name) / "small").mkdir()
    for name in TEXTS:
        onnx.save(_text_model(name), Path(folder.name) / "small" / f"{name}.onnx")
    for name, (optimizer, start, attributes) in INFOS.items():
        onnx.save(info_model(optimizer, start, **attributes), Path(folder.name) / "small" / f"{name}.onnx")
    return folder


def _text_model(name: str) -> onnx.ModelProto:
    given, shapes, nodes = TEXTS[name]
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net ({given}) => (float[1, 4] y) {{ {nodes} {_LAST} }}'
    )
    random = np.random.default_rng(7)
    for tensor, shape in shapes.items():
        model.graph.initializer.append(
            numpy_helper.from_array(random.normal(size=shape).astype(np.float32) / 2, tensor)
        )
    return model


def step_of(options: CompileOptions) -> tuple[ImportedModel, TrainGraph, Samples, CompileOptions]:
    """Return the training step of a command, without a plan, and samples for it."""
    model = pipeline.imported(options)
    options, _ = pipeline.with_file_training(options, model)
    options, _ = pipeline.with_number_format(options, model)
    model = pipeline.stored(model, options)
    planner = Planner(model, options, load_target(options.target), pipeline.load_externals(options))
    train = planner.training(options.update)
    if options.data is None:
        return model, train, random_samples(train, 2 * train.batch, 0, model), options
    return model, train, load_samples(options.data, model, train), options


def options_of(network: Network, more: Mapping[str, Any]) -> CompileOptions:
    """Return the options of a command that trains it as its framework did; more: further ones."""
    further, _ = OTHERWISE.get(network.name, ({}, ""))
    given = {*(("update",) if network.known else ()), *network.training(), *further, *more}
    data = network.data if network.data.exists() else None
    known = {"verify": "host", "target": "cortex-m7", "data": data, **further, **more}
    update = known.pop("update", "all")
    return replace(network.options(out=Path("out"), given=frozenset(given), **known), update=update)


def kept_row(keep: Path | None, name: str, made: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the row of this name that a file has; else make it, and append it there."""
    rows = keep.read_text().splitlines() if keep is not None and keep.exists() else ()
    known = next((row for row in map(json.loads, rows) if row["name"] == name), None)
    row = known or {"name": name, **made()}
    if keep is not None and known is None:
        with keep.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    return row


def costs(models: Sequence[str], **options: Any) -> Iterator[tuple[DerivativeAgreement, float, str]]:
    """Compile real models: yield what the check found, the share of CPU seconds that it adds, and a text of these."""
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            out, model, given = Path(folder) / "out", SHARED / "models" / f"{name}.onnx", frozenset(options)
            begin = time.process_time() + os.times().children_user
            asked = CompileOptions(model=model, target="cortex-m7", verify="host", out=out, given=given, **options)
            made = compilation.compile_model(asked)
            seconds = time.process_time() + os.times().children_user - begin
        found = made.summary.verify.derivative if made.summary is not None else None
        if found is None:
            raise SystemExit(f"{name}: not judged")
        share = found.seconds / (seconds - found.seconds)
        text = f"{name}: {found.seconds:.2f} of {seconds:.1f} CPU s ({share:.1%} added)"
        yield found, share, f"{text}, {found.evaluations:.1f} evaluations"
