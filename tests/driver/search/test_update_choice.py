"""--update auto: the best of all schemes on small networks, what it writes gives the same plan, and its bounds."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from testing.networks import models
from testing.places import ROOT
from testing.planning.all_schemes import Kept, case_of, compared
from tests.driver.planning import planner
from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.driver.candidates import ladder
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search import best as update_best
from tinytrain_compile.driver.search.best import best_choice
from tinytrain_compile.driver.search.choose import search_update
from tinytrain_compile.driver.search.model import build_update_model, largest_load
from tinytrain_compile.ir.cost import UpdateChoice
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import Planned
from tinytrain_compile.plan.streams.search import streamed
from tinytrain_compile.sparse import PRIOR, UNITS, LayerWays, gain_of_plan, layer_ways, resolve_update, scheme_plan


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


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


def small_chain(source: random.Random, layers: int) -> onnx.ModelProto:
    """Convolutions of two or three channels on a small map, then a dense layer: at most six options for each."""
    channels = [source.randrange(1, 4)] + [source.randrange(2, 4) for _ in range(layers - 1)]
    side, nodes, value, weights = source.randrange(3, 6), list[str](), "x", list[str]()
    for index, (read, made) in enumerate(itertools.pairwise(channels)):
        size = source.choice((1, 3))
        count, pad = read * made * size * size, size // 2
        weights.append(f"float[{made},{read},{size},{size}] w{index} = {{{', '.join(['0.1'] * count)}}}")
        weights.append(f"float[{made}] b{index} = {{{', '.join(['0'] * made)}}}")
        nodes.append(f"v{index} = Conv<pads=[{pad},{pad},{pad},{pad}]>({value}, w{index}, b{index})")
        nodes.append(f"r{index} = Relu(v{index})")
        value = f"r{index}"
    features = channels[-1] * side * side
    weights.append(f"float[2,{features}] wd = {{{', '.join(['0.1'] * (2 * features))}}}")
    nodes += [f"flat = Flatten({value})", "y = Gemm<transB=1>(flat, wd)"]
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    net (float[1,{channels[0]},{side},{side}] x) => (float[1,2] y) <{", ".join(weights)}> {{ {" ".join(nodes)} }}"""
    model = onnx.parser.parse_model(text)
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    return model


CONVOLUTIONS = 200
"""First number of a case with convolutions."""


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
    """A network, and an arena somewhere between what its least and its largest update need; from CONVOLUTIONS on
    with up to four layers."""
    source = random.Random(number)
    dense = number < CONVOLUTIONS
    model = dense_chain(source, source.randrange(1, 4)) if dense else small_chain(source, source.randrange(2, 5))
    path = Path(write(model, folder))
    free = planner(path)
    least = min(free.plain(update).plan.arena_bytes for update in ("head", "last:1"))
    return path, round(least * 0.8 + source.random() * (free.plain("all").plan.arena_bytes - least * 0.8))


def placed(plan: MemoryPlan) -> tuple[list[str], list[tuple[int, int]]]:
    """What runs when, and what lies where."""
    return [node.name for node in plan.order], [(buffer.offset, buffer.size_bytes) for buffer in plan.buffers]


def check_case(number: int, folder: Path) -> bool:
    """Whether anything fits; the search must find as much gain as there is, and the plan that its update has by
    itself."""
    path, limit = case(number, folder)
    known = best_of_all(planner(path, arena_bytes=limit), limit)
    asked = planner(path, arena_bytes=limit)
    found = search_update(asked, asked.layer_count)
    fits = found.plan.arena_bytes <= limit
    assert fits == (known >= 0), (number, found.plan.arena_bytes, limit)
    if fits:
        assert gain_of_plan(asked.model.graph, found.update, PRIOR) == known, (number, found.update.label, limit)
        given = planner(path, arena_bytes=limit)
        alone = given.exact(given.named(found.update)).plan
        assert placed(alone) == placed(found.plan), (number, found.update.label, limit)
        choice = found.choice.update
        assert choice is None or (choice.gain == known / UNITS <= choice.best_gain), number
        assert choice is None or choice.proven or number >= CONVOLUTIONS, number  # of some of these for want of work
    return fits


@pytest.mark.parametrize("number", [0, 1, 2, 3, 94, 105, 200, 203, 211])
def test_as_good_as_the_best_of_all_schemes(number: int, tmp_path: Path) -> None:
    check_case(number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CONVOLUTIONS + 100, 20))
def test_as_good_as_the_best_of_all_schemes_in_300_cases(first: int, tmp_path: Path) -> None:
    assert sum(check_case(number, tmp_path) for number in range(first, first + 20)) > 5


@pytest.mark.parametrize("number", [4, 31])
def test_no_scheme_that_fits_gains_more_than_is_said(number: int, tmp_path: Path) -> None:
    """By an enumeration of the ONNX file's schemes. In 31 the best one fits only with the smallest arena that a command
    finds, for which the search does not look before the proof. `make bench NAME=proven` is the long form."""
    found = compared(number, Kept(None), tmp_path)
    assert found.answer["proven"] and found.kind == "best", found
    assert found.plans > 0


def test_nothing_is_proven_if_prepared_weights_may_shrink_the_plan(tmp_path: Path) -> None:
    """--flash-budget takes scratch away once weights are prepared, after the search: no bound of a graph knows that."""
    case = case_of(34, tmp_path)
    plain, prepared = case.planner(update="auto"), case.planner(update="auto", flash_budget_bytes=1 << 24)
    known, other = (best_choice(one, PRIOR, one.layer_count) for one in (plain, prepared))
    assert known is not None and other is not None
    assert known.choice.proven and not other.choice.proven
    assert other.choice.best_gain >= known.choice.gain


def test_an_answer_that_is_not_the_best_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: it names a proof, a bound and an answer that a better scheme belies."""
    for said, kind in (({"proven": True}, "FALSE"), ({"bound": 1.5}, "BEYOND"), ({"bound": 1e9}, "better")):
        kept = Kept(None)
        kept.keep("31 answer", {"fits": True, "gain": 1.0, **said})
        assert compared(31, kept, tmp_path).kind == kind


def test_no_part_of_the_networks_outputs_is_a_way(tmp_path: Path) -> None:
    """A class that is not trained among others that are loses what it knew: a new head ended below the head alone."""
    *before, last = layer_ways(planner(Path(write(models.ds_cnn(channels=16, blocks=1), tmp_path))).model.graph, PRIOR)
    assert not [way.kind for way in last.ways if way.kind.startswith("out/")]
    assert {"bias", "all"} <= {way.kind for way in last.ways}
    assert [way.kind for item in before for way in item.ways if way.kind.startswith("out/")]


def test_only_the_normalisation_of_a_convolution_is_a_way(tmp_path: Path) -> None:
    """Kept as a layer of its own, it is trained while the convolution in front of it, which has more bytes, is not."""
    model = write(models.resnet8(channels=4, size=8, classes=4), tmp_path)
    lines = [f"block{i}_{part}/Norm,norm,,*,5\nblock{i}_{part}/Conv,weight,in,*,1" for i in range(3) for part in "ab"]
    (tmp_path / "gains.csv").write_text("\n".join(["layer,part,axis,channel,gain", *lines, ""]))
    asked = ("--batch-norm", "keep", "--gains", tmp_path / "gains.csv", "--arena", "12KB", "--verify", "none")
    run(model, *asked, "-o", tmp_path / "out").check_success()
    scheme = (tmp_path / "out" / "update.toml").read_text(encoding="utf-8")
    assert '"block2_a/Norm"' in scheme and '"block2_a/Conv"' not in scheme


def test_the_only_update_that_fits_is_found(tmp_path: Path) -> None:
    """The first layer's biases are fewer than the head's, and no round of quick plans thinks that they fit."""
    zeros = {count: ", ".join(["0"] * count) for count in (8, 20, 160)}
    weights = f"float[8,20] w = {{{zeros[160]}}}, float[8] b = {{{zeros[8]}}}, float[20] c = {{{zeros[20]}}}"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    net (float[1,20] x) => (float[1,20] y) <{weights}> {{ v = Gemm<transB=1>(x, w, b)  y = Gemm(v, w, c) }}""")
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    path = Path(write(model, tmp_path))
    asked = planner(path, arena_bytes=256)
    found = search_update(asked, asked.layer_count)
    assert found.plan.arena_bytes <= 256 < planner(path).plain("last:1").plan.arena_bytes
    assert gain_of_plan(asked.model.graph, found.update, PRIOR) == best_of_all(planner(path, arena_bytes=256), 256)


def test_what_cannot_fit_is_refused(tmp_path: Path) -> None:
    path, _ = case(1, tmp_path)
    failed = run(path, "--arena", "150", "--dry-run").check_error("E0401", 3)
    assert "auto: last:1" in failed.err


# ---- what is said and written ---------------------------------------------------------------------------------------

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
SMALL = models.ds_cnn(channels=6, blocks=1, size=(11, 5))
LIMIT = ("--arena", "3300", "--verify", "none")


def test_the_scheme_that_was_written_gives_the_same_plan(tmp_path: Path) -> None:
    path = write(SMALL, tmp_path)
    run(path, *LIMIT, "-o", tmp_path / "auto").check_success()
    chosen = report(tmp_path / "auto")
    assert chosen["update_totals"]["label"] == "auto: update.toml"
    scheme = tmp_path / "auto" / "update.toml"
    assert "update.toml" in (tmp_path / "auto" / "manifest.json").read_text()
    run(path, *LIMIT, "--update", scheme, "-o", tmp_path / "again").check_success()
    again = report(tmp_path / "again")
    assert chosen["update"] == again["update"]
    plans = [json.loads((tmp_path / kind / "plan.json").read_text()) for kind in ("auto", "again")]
    assert plans[0].pop("update") != plans[1].pop("update")
    assert plans[0] == plans[1]


def test_a_scheme_has_the_plan_that_a_search_found_for_it(tmp_path: Path) -> None:
    """Searches do not look for the smallest arena. Where that would fit, but second runs row by row do as well, a
    command that is given the scheme takes what the search has taken."""
    scheme = tmp_path / "update.toml"
    rows = [("conv2", '"all"'), ("conv3", '8\naxis = "in"'), ("classifier", '"all"')]
    scheme.write_text("\n".join(f'[[update]]\nlayer = "{name}"\nbias = true\nweight = {how}' for name, how in rows))
    limit = {"arena_bytes": 24 * 1024}
    found = planner(DIGITS, **limit).fitting(str(scheme))
    assert found is not None and found.plan.streams is not None and found.plan.remat is not None
    assert placed(planner(DIGITS, **limit).exact(str(scheme)).plan) == placed(found.plan)


def test_a_lock_of_a_choice_finds_the_scheme_beside_it(tmp_path: Path) -> None:
    path = write(SMALL, tmp_path)
    run(path, *LIMIT, "-o", tmp_path / "auto").check_success()
    lock = tmp_path / "auto" / "plan.json"
    run(path, "--verify", "none", "--lock", lock, "-o", tmp_path / "again").check_success()
    assert report(tmp_path / "again")["update"] == report(tmp_path / "auto")["update"]
    alone = tmp_path / "plan.json"
    alone.write_bytes(lock.read_bytes())
    run(path, "--verify", "none", "--lock", alone, "-o", tmp_path / "no").check_error("E0106", 2)


def test_the_report_says_how_it_was_chosen(tmp_path: Path) -> None:
    path = write(SMALL, tmp_path)
    done = run(path, *LIMIT, "-o", tmp_path / "auto").check_success()
    choice = report(tmp_path / "auto")["update_choice"]
    assert choice["proven"] and choice["gain"] == choice["best_gain"] > 0
    assert choice["gains"].startswith("prior")
    assert any(one["effort"] == "full" and one["fits"] for one in choice["rounds"])
    assert f"{choice['gain']:.1f} (prior" in done.out and "PROVEN BEST" in done.out
    (more,) = re.findall(r"10,240 B more: gain \+(\S+) by the model", " ".join(choice["why"]))
    layers = report(tmp_path / "auto")["update"]
    assert len(layers) == 4, "what 10 KB more would hold is all of them, which had been planned and was too large"
    assert choice["gain"] + float(more) == pytest.approx(sum(one["total_parameters"] ** 0.5 for one in layers), abs=0.1)
    whole = run(path, "--dry-run", "--arena", "64KB").check_success()
    assert "auto: last:4" in whole.out and "\ngain " not in whole.out


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_plans_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no full plan ever fits, the search ends: here after 30 quick plans and 24 full ones, each of which may take
    as long as a compilation. If nobody counted tries, there were 50 and 43; half more than today is too much."""
    quick, full = list[str](), list[str]()
    real = Planner.sketch

    def sketch(self: Planner, spec: str) -> tuple[Planned, int]:
        quick.append(spec)
        return real(self, spec)

    def fitting(_self: Planner, spec: str) -> None:
        full.append(spec)

    monkeypatch.setattr(Planner, "sketch", sketch)
    monkeypatch.setattr(Planner, "fitting", fitting)
    monkeypatch.setattr(update_best, "LEAST_PROOF", 1 << 60)
    asked = planner(Path(write(SMALL, tmp_path)), arena_bytes=3300)
    assert best_choice(asked, PRIOR, asked.layer_count) is None
    assert 0 < len(quick) <= 45
    assert 0 < len(full) <= 36


@pytest.mark.parametrize(("name", "value"), [("PROOF_TURNS", 4), ("PROOF_WORK", 4 * 45**3)])
def test_the_proof_ends(name: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many looks, or so much work: what fits stays found, with a bound. Never begun for searches.

    A whole proof makes 15 full plans here, one that ends early 5 or 6, and a search without a proof 1.
    """
    path = Path(write(SMALL, tmp_path))

    def plans(**options: object) -> tuple[int, UpdateChoice]:
        asked = planner(path, arena_bytes=2900, **options)
        found = best_choice(asked, PRIOR, asked.layer_count)
        assert found is not None
        return sum(one.effort == "full" for one in found.choice.rounds), found.choice

    count, choice = plans()
    assert choice.proven
    monkeypatch.setattr(update_best, "LEAST_PROOF", 1)
    monkeypatch.setattr(update_best, name, value)
    if name == "PROOF_TURNS":
        assert plans() == (count, choice), "of few schemes FEW_TIMES as many"
    monkeypatch.setattr(update_best, "FEW_TIMES", 1)
    some, other = plans()
    assert 2 < some <= count - 4
    assert not other.proven and other.gain <= choice.gain <= other.best_gain
    monkeypatch.undo()
    searched, last = plans(optimise="time")
    assert searched <= count // 2 and last.gain <= last.best_gain


def test_a_model_of_fewer_layers_is_read_off_graphs_of_its_own(tmp_path: Path) -> None:
    """Not off those of the model before, whose updates have the same labels: with the front frozen less is kept."""
    asked = planner(Path(write(SMALL, tmp_path)), arena_bytes=3300)
    gains = asked.model.graph, PRIOR
    whole, last = build_update_model(asked, layer_ways(*gains)), build_update_model(asked, layer_ways(*gains, 3))
    alone = planner(asked.options.model, arena_bytes=3300)
    assert last == build_update_model(alone, layer_ways(*gains, 3))
    head = tuple(1 if index == len(whole.layers) - 1 else 0 for index in range(len(whole.layers)))
    assert largest_load(last.forward, head) < largest_load(whole.forward, head)


def test_updates_with_one_label_have_names_of_their_own(tmp_path: Path) -> None:
    asked = planner(Path(write(SMALL, tmp_path)))
    head, whole = (resolve_update(asked.model.graph, which) for which in ("head", "all"))
    names = [asked.named(replace(one, label="the same")) for one in (head, whole, head)]
    assert names[0] == names[2] != names[1]
    assert [set(asked.training(name).trained) < set(whole.updates) for name in names] == [True, False, True]


def test_nothing_lives_below_the_floor(tmp_path: Path) -> None:
    """The state of any scheme, and its whole arena, is no less than the model's floor says."""
    asked = planner(Path(write(SMALL, tmp_path)), arena_bytes=3300)
    model = build_update_model(asked, layer_ways(asked.model.graph, PRIOR))
    source, reached = random.Random(5), 0
    for _ in range(25):
        ways = tuple(source.randrange(len(item.ways)) for item in model.layers)
        if any(ways):
            spec = asked.named(model.update(ways, f"scheme {ways}"))
            arena, floor = asked.exact(spec).plan.arena_bytes, model.floor.load(ways)
            assert floor <= arena
            graph = asked.training(spec).graph
            state = sum(-(-value.size_bytes // 8) * 8 for value in (*graph.state, *graph.accumulators))
            largest = model.floor.base
            assert floor - largest <= state
            reached += floor - largest >= 0.8 * state
    assert reached > 10


def test_smaller_streams_are_tried_where_those_for_the_arena_do_not_fit_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are as large as the load allows; what is lost by packing then needs smaller ones."""
    path, real = Path(write(models.ds_cnn(channels=16, blocks=2, size=(25, 5)), tmp_path)), streamed
    least = planner(path, update="head", stream="min", remat="off").exact("head").plan.arena_bytes
    whole = planner(path, update="head", stream="off", remat="off").exact("head").plan.arena_bytes
    assert least < whole

    def too_large(graph: Graph, settings: PlanOptions, room: int, exact: bool) -> Graph:
        return real(graph, settings, room and (least + whole) // 2, exact)

    monkeypatch.setattr(ladder, "streamed", too_large)
    found = planner(path, update="head", arena_bytes=least, remat="off").exact("head")
    assert found.plan.arena_bytes == least
