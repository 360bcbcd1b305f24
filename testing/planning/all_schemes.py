"""Random small networks with tight arenas, and all schemes that `--update auto` may choose in them, by the ONNX file.

An enumeration for what the search claims. It shares with the search only the planner of one given scheme.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from testing.networks.models import Network
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.search.choose import choose
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

SMALL, LARGE = (24, 100), (101, 1296)
"""Fewest and most schemes of a case."""
LARGE_FIRST = 100_000
"""Number of the first large case."""
PARTS = (8, 4, 2)
"""A share is one of so many equal parts of the channels (docs/update-schemes.md); an eighth and a quarter need two
channels at least."""
TOLERANCE = 1e-5
"""Gains in reports are rounded to a millionth for each layer."""
FLAGS: tuple[dict[str, Any], ...] = (
    *({} for _ in range(8)),
    {"stream": "off"},
    {"stream": "min"},
    {"remat": "off"},
    {"remat": "auto"},
    {"optimizer": "momentum"},
    {"remat": "off", "stream": "off"},
)
"""Options of the cases in turn."""


# ---- cases ----------------------------------------------------------------------------------------------------------


def network(source: random.Random, layers: int) -> onnx.ModelProto:
    """Convolutions, some depthwise or without a bias, with residuals and pools between them; then a dense layer."""
    channels, side = source.randrange(1, 4), source.choice((6, 8, 10))
    classes = source.randrange(2, 5)
    net = Network("net", f"float[1, {channels}, {side}, {side}] x", f"float[1, {classes}] y", source.randrange(1 << 30))
    value = "x"
    for index in range(layers):
        before = value
        value, made, side = _convolution(net, source, index, (value, channels, side))
        if made == channels and _map(value) == _map(before) and source.random() < 0.7:
            value = net.node(f"add{index}", f"s{index} = Add ({value}, {before})")
        channels = made
        if side >= 4 and source.random() < 0.3:
            pool = source.choice(("MaxPool", "AveragePool"))
            value = net.node(f"pool{index}", f"p{index} = {pool} <kernel_shape=[2, 2], strides=[2, 2]> ({value})")
            side //= 2
    pooled = source.random() < 0.5
    if pooled:
        value = net.node("mean", f"mean = GlobalAveragePool ({value})")
    flat = net.node("flat", f"flat = Flatten ({value})")
    net.node("out", f"y = Identity ({net.dense('fc', flat, channels * (1 if pooled else side * side), classes)})")
    return net.model()


def _map(value: str) -> str:
    """Mark values behind a stride or a pool: they have another size than those before."""
    return value[:1] if value[:1] in "dp" else ""


def _convolution(net: Network, source: random.Random, index: int, read: tuple[str, int, int]) -> tuple[str, int, int]:
    """One convolution: its result, channels and side."""
    value, channels, side = read
    size, stride = source.choice((1, 3, 3)), 2 if side >= 6 and source.random() < 0.25 else 1
    deep = channels > 1 and source.random() < 0.2
    made = channels if deep or source.random() < 0.4 else source.choice((2, 3, 4, 6, 8))
    weight = net.weight(f"w{index}", made, 1 if deep else channels, size, size)
    bias = f", {net.near(f'b{index}', 0.0, 0.1, made)}" if source.random() < 0.6 else ""
    pad, groups = size // 2, channels if deep else 1
    attributes = f"group={groups}, pads=[{pad}, {pad}, {pad}, {pad}], strides=[{stride}, {stride}]"
    name = f"{'d' if stride > 1 else 'v'}{index}"
    value = net.node(f"conv{index}", f"{name} = Conv <{attributes}> ({value}, {weight}{bias})")
    if source.random() < 0.7:
        value = net.relu(value)
    return value, made, -(-side // stride)


@dataclass(frozen=True, eq=False)
class Case:
    """One network with its options, and the ways to train each of its layers."""

    number: int
    options: CompileOptions
    model: ImportedModel
    ways: Sequence[Sequence[Way]]

    def planner(self, **changes: Any) -> Planner:
        """Make a planner that knows nothing of what others have planned."""
        return Planner(self.model, replace(self.options, **changes), load_target(self.options.target), Externals())

    def schemes(self, above: float) -> list[tuple[float, tuple[int, ...]]]:
        """List the schemes that gain more and whose trained parameters fit beside the input, the best first."""
        width, found = 1 if self.options.quant == "int8" else 4, list[tuple[float, tuple[int, ...]]]()
        most = (self.options.arena_bytes or 0) // width - self.model.graph.inputs[0].elements
        for scheme in itertools.product(*(range(len(ways)) for ways in self.ways)):
            trained = [ways[way].trained for ways, way in zip(self.ways, scheme, strict=True)]
            gain = sum(map(math.sqrt, trained))
            if gain > above + TOLERANCE and sum(trained) <= most:
                found.append((gain, scheme))
        return sorted(found, key=lambda one: (-one[0], one[1]))

    def text(self, scheme: Sequence[int]) -> str:
        """Write a scheme file."""
        return "\n".join(ways[way].entry for ways, way in zip(self.ways, scheme, strict=True))


def case_of(number: int, folder: Path) -> Case:
    """Draw the network and the arena of a number."""
    source = random.Random(number)
    least, most = LARGE if number >= LARGE_FIRST else SMALL
    while True:
        layers = source.randrange(1, 4) if number < LARGE_FIRST else source.randrange(3, 5)
        model = network(source, layers)
        ways = ways_of(model)
        if least <= math.prod(map(len, ways)) <= most:
            break
    path = folder / f"case{number}.onnx"
    onnx.save(model, path)
    flags: dict[str, Any] = {"quant": "fp32", **FLAGS[number % len(FLAGS)]}
    if source.random() < 0.4 and "optimizer" not in flags:
        calib, shape = (
            folder / f"case{number}.npz",
            [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim],
        )
        np.savez(calib, x=np.random.default_rng(number).standard_normal((8, *shape[1:])).astype(np.float32))
        flags |= {"quant": "int8", "calib": calib}
    options = CompileOptions(model=path, target="cortex-m7", **flags)
    read = stored(imported(options), options)
    free = Planner(read, replace(options, stream="min", remat="off"), load_target("cortex-m7"), Externals())
    ends = [free.sketch(update).plan.arena_bytes for update in ("last:1", "all")]
    arena = round(0.8 * min(ends) + source.random() * (max(ends) - 0.8 * min(ends)))
    return Case(number, replace(options, arena_bytes=arena), read, ways)


# ---- schemes, from the file ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to train a layer: its entry of a scheme file ("": frozen) and the parameters that it trains."""

    entry: str
    trained: int


def ways_of(model: onnx.ModelProto) -> list[list[Way]]:
    """List for every layer the ways that docs/update-schemes.md allows `auto`: nothing, the biases, shares, all."""
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    found = list[list[Way]]()
    for node in layers:
        weight, bias = arrays[node.input[1]], arrays[node.input[2]].size if len(node.input) > 2 else 0
        groups = next((one.i for one in node.attribute if one.name == "group"), 1)
        axes = ({} if node is layers[-1] else {"out": weight.shape[0]}) | (
            {"in": weight.shape[1]} if groups == 1 else {}
        )
        head = f'[[update]]\nlayer = "{node.name}"\n' + ("bias = true\n" if bias else "")
        ways = [Way("", 0), *([Way(head, bias)] if bias else [])]
        for axis, total in axes.items():
            for count in {total // part for part in PARTS if total >= 2 * part or part == 2} - {0, total}:
                entry = f'{head}weight = {count}\naxis = "{axis}"\n'
                ways.append(Way(entry, bias + weight.size // total * count))
        found.append([*ways, Way(f'{head}weight = "all"\n', bias + weight.size)])
    return found


# ---- answers and plans ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Kept:
    """Results by key, one JSON line each."""

    path: Path | None
    done: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            lines = self.path.read_text().splitlines()
            self.done = dict(json.loads(line) for line in lines if line.endswith("]"))

    def keep(self, key: str, result: Any) -> Any:
        """Add a result."""
        self.done[key] = result
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([key, result]) + "\n")
        return result


def answer_of(case: Case) -> dict[str, Any]:
    """Ask the search: whether it found anything that fits, gain, claim, plans.

    Where all layers fit there is no claim: nothing gains more by definition.
    """
    planner = case.planner(update="auto")
    try:
        found = choose(planner)
    except CompileError as problem:
        return {"fits": False, "gain": 0.0, "error": problem.code}
    choice = found.choice.update
    fits = planner.meets(found.plan.arena_bytes, found.choice.cost.ps)
    if choice is None:
        whole = sum(math.sqrt(ways[-1].trained) for ways in case.ways)
        return {"fits": fits, "gain": whole if fits else 0.0}
    efforts = Counter(one.effort for one in choice.rounds)
    said = {"fits": fits, "gain": choice.gain, "bound": choice.best_gain, "proven": choice.proven}
    return {**said, "quick": efforts["quick"], "full": efforts["full"]}


def arena_of(case: Case, scheme: Sequence[int], folder: Path) -> int | None:
    """Plan one scheme from its file; None for one that is no training."""
    path = folder / "scheme.toml"
    path.write_text(case.text(scheme))
    try:
        return choose(case.planner(update=str(path))).plan.arena_bytes
    except CompileError:
        return None


@dataclass(frozen=True)
class Outcome:
    """What one case came to. better: the gain of the best scheme that fits and gains more than the answer; its text."""

    kind: str
    answer: dict[str, Any]
    plans: int
    better: float | None = None
    scheme: str = ""


def compared(number: int, kept: Kept, folder: Path) -> Outcome:
    """Compare the answer of a case with all schemes of more gain."""
    case = case_of(number, folder)
    key = f"{number} answer"
    answer = kept.done[key] if key in kept.done else kept.keep(key, answer_of(case))
    plans = 0
    for gain, scheme in case.schemes(answer["gain"]):
        key = f"{number} {'.'.join(map(str, scheme))}"
        arena = kept.done[key] if key in kept.done else kept.keep(key, arena_of(case, scheme, folder))
        plans += 1
        if arena is not None and arena <= (case.options.arena_bytes or 0):
            return Outcome(_kind(answer, gain), answer, plans, gain, case.text(scheme))
    return Outcome("best", answer, plans)


def _kind(answer: dict[str, Any], better: float) -> str:
    """Name what is wrong with an answer that is not the best."""
    if not answer["fits"]:
        return "not found"
    if answer.get("proven"):
        return "FALSE"
    return "BEYOND" if better > answer.get("bound", answer["gain"]) + TOLERANCE else "better"
