"""--update auto: the best of all schemes on small networks, what it writes gives the same plan, and its bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest


from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.compile import update_rounds
from tinytrain_compile.compile.candidates import Planner
from tinytrain_compile.compile.external_kernels import Externals
from tinytrain_compile.compile.options import CompileOptions
from tinytrain_compile.compile.update_search import search_update
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.sparse import PRIOR, UNITS, LayerWays, gain_of_plan, layer_ways, scheme_plan
from tinytrain_compile.target import load_target


def planner(path: Path, **options: object) -> Planner:
    asked = CompileOptions(model=path, **options)  # type: ignore[arg-type]
    return Planner(load_model(path, FrontendOptions()), asked, load_target("cortex-m7"), Externals())


# ---- the best of all schemes ----------------------------------------------------------------------------------------


def dense_chain(source: random.Random, layers: int) -> onnx.ModelProto:
    """Dense layers with and without Relu between them; some without a bias."""
    sizes = [source.randrange(2, 9) for _ in range(layers + 1)]
    nodes, weights, value = list[str](), list[str](), "x"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        biased = source.random() < 0.7
        weights.append(f"float[{columns},{rows}] w{index} = {{{', '.join(['0.1'] * (rows * columns))}}}")
        if biased:
            weights.append(f"float[{columns}] b{index} = {{{', '.join(['0'] * columns)}}}")
        last = index == layers - 1
        out = "y" if last else f"v{index}"
        read = f"{value}, w{index}" + (f", b{index}" if biased else "")
        nodes.append(f"{out} = Gemm<transB=1>({read})")
        value = out
        if not last and source.random() < 0.7:
            nodes.append(f"r{index} = Relu({value})")
            value = f"r{index}"
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    net (float[1,{sizes[0]}] x) => (float[1,{sizes[-1]}] y) <{", ".join(weights)}> {{ {" ".join(nodes)} }}"""
    model = onnx.parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    return model


def all_schemes(layers: tuple[LayerWays, ...]) -> Iterator[tuple[int, ...]]:
    return (ways for ways in itertools.product(*(range(len(item.ways)) for item in layers)) if any(ways))


def best_of_all(free: Planner, limit: int) -> int:
    """Gain of the best scheme that fits, by planning all of them, the best first; -1 if none does."""
    layers = layer_ways(free.model.graph, PRIOR)

    def gain(ways: tuple[int, ...]) -> int:
        return sum(item.ways[way].gain for item, way in zip(layers, ways, strict=True))

    for ways in sorted(all_schemes(layers), key=gain, reverse=True):
        chosen = [item.ways[way] for item, way in zip(layers, ways, strict=True)]
        label = "scheme " + ".".join(map(str, ways))
        if free.fitting(free.named(scheme_plan(layers, chosen, label))) is not None:
            assert free.options.arena_bytes == limit
            return gain(ways)
    return -1


def case(number: int, folder: Path) -> tuple[Path, int]:
    """A network, and an arena somewhere between what its least and its largest update need."""
    source = random.Random(number)
    model = dense_chain(source, source.randrange(1, 4))
    path = Path(write(model, folder))
    free = planner(path)
    least = min(free.plain("head"), free.plain("last:1"))
    return path, round(least * 0.9 + source.random() * (free.plain("all") - least * 0.9))


def check_case(number: int, folder: Path) -> bool:
    """Whether anything fits; the search must find as much gain as there is."""
    path, limit = case(number, folder)
    known = best_of_all(planner(path, arena_bytes=limit), limit)
    asked = planner(path, arena_bytes=limit)
    found = search_update(asked, asked.layer_count)
    fits = found.plan.arena_bytes <= limit
    assert fits == (known >= 0), (number, found.plan.arena_bytes, limit)
    if fits:
        assert gain_of_plan(asked.model.graph, found.update, PRIOR) == known, (number, found.update.label, limit)
        choice = found.choice.update
        assert choice is None or (choice.proven and choice.gain == known / UNITS), number
    return fits


@pytest.mark.parametrize("number", range(6))
def test_as_good_as_the_best_of_all_schemes(number: int, tmp_path: Path) -> None:
    check_case(number, tmp_path)


@pytest.mark.slow
def test_as_good_as_the_best_of_all_schemes_in_200_cases(tmp_path: Path) -> None:
    assert sum(check_case(number, tmp_path) for number in range(200)) > 100
