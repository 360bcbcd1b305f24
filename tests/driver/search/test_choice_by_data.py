"""--update auto with --data: rules propose, held-back samples decide."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.places import ROOT
from tests.e2e.command import run
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.search import best as update_best
from tinytrain_compile.driver.search.choose import search_update
from tinytrain_compile.ir.learning import Score
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn import choice_by_data
from tinytrain_compile.learn.short_runs import Desk, make_desk
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import layers_of
from tinytrain_compile.sparse.gains import Key, axes_of
from tinytrain_compile.sparse.rules import (
    BIAS,
    BIAS_ALONE,
    FISHER,
    FRONT,
    GRADIENTS,
    LAST,
    tables_of_gradients,
    tables_without_data,
)
from tinytrain_compile.target.loader import load_target

DIGITS = ROOT / "examples" / "digits"
OPTIONS = options_from(DIGITS / "digits.onnx", {"verify": "none", "quant": "fp32"})


@pytest.fixture(autouse=True)
def _no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes most of the time has tests of its own."""
    monkeypatch.setattr(update_best, "PROOF_TURNS", 1)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    with np.load(DIGITS / "data.npz") as data:
        np.savez(tmp_path / "own.npz", x=data["x"][:200], y=data["y"][:200])
    return tmp_path / "own.npz"


@pytest.fixture
def desk(own: Path) -> Desk:
    return make_desk(options_from(DIGITS / "digits.onnx", {"data": own}), 1, lambda _what, _share: None)


def test_what_does_best_on_held_back_samples_is_taken(own: Path, tmp_path: Path) -> None:
    """And told, and the same in every run."""
    arguments = (DIGITS / "digits.onnx", "--arena", "16KB", "--data", own, "--verify", "none")
    first, again = (run(*arguments, "-o", tmp_path / name).check_success() for name in ("one", "two"))
    report = json.loads((tmp_path / "one" / "report.json").read_text())["update_choice"]
    assert report == json.loads((tmp_path / "two" / "report.json").read_text())["update_choice"]
    assert first.out.replace("/one/", "/two/") == again.out
    untrained, *rules = report["rules"]
    assert untrained["learning_rate"] is None and report["held_samples"] == 200
    assert len(rules) >= 3 and len({one["rule"] for one in rules}) == len(rules)
    finalists = [one for one in rules if one["finalist"]]
    assert 1 <= len(finalists) <= 6 and rules[0] in finalists
    best = max(finalists, key=lambda one: (one["accuracy"], -one["loss"]))
    memory = json.loads((tmp_path / "one" / "report.json").read_text())["memory"]
    assert memory["arena_bytes"] == best["arena_bytes"]
    assert best["loss"] < untrained["loss"] and best["accuracy"] > untrained["accuracy"]
    assert all(0 < one["arena_bytes"] <= 16384 and one["parameters"] > 0 for one in rules)
    assert f"{best['accuracy']:.1%} right" in first.out
    scheme = tmp_path / "one" / "update.toml"
    followed = run(DIGITS / "digits.onnx", "--update", scheme, "--arena", "16KB", "--dry-run").check_success()
    assert f"{best['arena_bytes']:,} B" in followed.out


@pytest.mark.parametrize("more", [("--gains", "gains.csv"), ("--arena", "64KB"), ("--update", "head")])
def test_without_a_choice_nothing_is_tried(more: tuple[str, str], own: Path, tmp_path: Path) -> None:
    (tmp_path / "gains.csv").write_text("layer,part,axis,channel,gain\nclassifier,bias,,*,1\n")
    given = [str(tmp_path / text) if text.endswith(".csv") else text for text in more]
    arena = () if "--arena" in more else ("--arena", "16KB")
    out = run(DIGITS / "digits.onnx", *arena, *given, "--data", own, "--dry-run").check_success().out
    assert "nothing trained" not in out


def test_few_samples_decide_nothing(own: Path, tmp_path: Path) -> None:
    with np.load(own) as data:
        for count in (2, 20):
            np.savez(tmp_path / "few.npz", x=data["x"][:count], y=data["y"][:count])
            out = run(DIGITS / "digits.onnx", "--arena", "16KB", "--data", tmp_path / "few.npz", "--dry-run")
            assert "prior" in out.check_success().out and "nothing trained" not in out.out
            assert f"{count} samples are too few" in out.out


def test_without_a_compiler_the_prior_decides(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    told = run(DIGITS / "digits.onnx", "--arena", "16KB", "--data", own, "--dry-run").check_success().out
    assert "prior" in told and "nothing trained" not in told and "no C compiler" in told


def test_gradients_are_those_of_the_reference(desk: Desk, tmp_path: Path) -> None:
    found = next(iter(choice_by_data.gradients_of(desk, desk.library(tmp_path))))
    trainer = Trainer(desk.train)
    trainer.set_rate(1.0)
    before = {name: trainer.state[name].copy() for name in found}
    trainer.step(desk.x[:1], desk.y[:1])
    assert set(found) == {value.name for layer in desk.layers for value in layer.parameters}
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, before[name] - trainer.state[name], atol=1e-5)
    assert any(np.abs(gradient).max() > 0.01 for gradient in found.values())


def test_channels_of_large_gradients_are_worth_most(desk: Desk) -> None:
    layers = layers_of(desk.model.graph)
    weights = {value.name: np.ones(value.shape, np.float32) for layer in layers for value in layer.parameters}
    gradient: dict[str, Array] = {name: np.zeros_like(array) for name, array in weights.items()}
    gradient["conv2_w"][..., 5] = 2.0
    gradient["conv3_b"][:] = 1.0
    weights["conv3_b"][:] = 3.0
    squares, fisher = tables_of_gradients(layers, [gradient, gradient], weights)
    assert (squares.source, fisher.source) == (GRADIENTS, FISHER)
    conv2 = next(layer for layer in layers if layer.name == "conv2")
    assert squares.best(conv2, "in", 1) == (5,)
    assert squares.weight(conv2, "in", (5,)) > squares.whole[Key("conv3", "bias", "")] > 0
    biases, taps = gradient["conv3_b"].size, gradient["conv2_w"][..., 5].size
    share = fisher.whole[Key("conv3", "bias", "")] / fisher.weight(conv2, "in", (5,))
    assert share == pytest.approx(biases * 3.0**2 / (2.0 * taps) ** 2, rel=1e-5)
    assert squares.weight(conv2, "in", (0, 1)) == 0


def test_fisher_information_is_of_whole_channels(desk: Desk) -> None:
    """Samples whose products cancel within a channel say nothing of it."""
    layers = layers_of(desk.model.graph)
    weights = {value.name: np.ones(value.shape, np.float32) for layer in layers for value in layer.parameters}
    gradient: dict[str, Array] = {name: np.zeros_like(array) for name, array in weights.items()}
    gradient["conv2_w"][0, ..., 0], gradient["conv2_w"][1, ..., 0] = 1.0, -1.0
    gradient["conv2_w"][2, ..., 1] = 0.5
    _, fisher = tables_of_gradients(layers, [gradient, {name: -array for name, array in gradient.items()}], weights)
    conv2 = next(layer for layer in layers if layer.name == "conv2")
    assert fisher.best(conv2, "in", 1) == (1,)
    assert fisher.weight(conv2, "in", (0,)) == 0
    share = fisher.weight(conv2, "out", (2,)) / fisher.weight(conv2, "out", (0,))
    assert share == pytest.approx(0.5**2, rel=1e-6)


def test_biases_alone_leave_other_weights_alone(desk: Desk) -> None:
    layers = layers_of(desk.model.graph)
    known = {table.source: table for table in tables_without_data(layers)}
    alone, first = known[BIAS_ALONE], known[BIAS]
    assert {key.layer for key in alone.whole if key.part == "weight"} == {layers[-1].name}
    assert {key.layer for key in alone.whole if key.part == "bias"} == {one.name for one in layers if one.biases}
    assert {key.layer for key in first.whole if key.part == "weight"} == {layer.name for layer in layers}


def test_rules_differ_by_the_place_of_a_layer(desk: Desk) -> None:
    layers = layers_of(desk.model.graph)
    known = {table.source: table for table in tables_without_data(layers)}
    first, last = layers[0], layers[-1]
    for name, wins, loses in ((LAST, last, layers[1]), (FRONT, first, layers[-2])):
        table = known[name]
        assert all(
            table.whole[Key(wins.name, "weight", axis)] / np.sqrt(wins.weights[0].elements)
            > table.whole[Key(loses.name, "weight", axis)] / np.sqrt(loses.weights[0].elements)
            for axis in axes_of(wins)
            if axis in axes_of(loses)
        )


def test_work_of_the_runs_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, passes = choice_by_data.updates_within, 12
    assert updates(desk, 10, passes) == passes * len(desk.x)
    assert updates(replace(desk, train=replace(desk.train, batch=4)), 10, 3) == 3 * len(desk.x) // 4
    monkeypatch.setattr(choice_by_data, "WORK_MACS", 2 * 10**9)
    few = updates(desk, 10, passes)
    monkeypatch.setattr(choice_by_data, "WORK_MACS", 10**6)
    least = updates(desk, 10, passes)
    assert 0 < least < few < passes * len(desk.x)
    monkeypatch.setattr(choice_by_data, "WORK_MACS", 0)
    assert updates(desk, 10, passes) == least <= 100, "what a run makes however long it takes"


def test_every_sample_judges_once(desk: Desk) -> None:
    count = len(desk.x) + len(desk.held.x)
    parts = [desk.judged_by(part, 3) for part in range(3)]
    judged = np.concatenate([part.held.x for part in parts])
    assert len(judged) == count and len({one.tobytes() for one in judged}) == len({o.tobytes() for o in judged})
    for part in parts:
        seen = {one.tobytes() for one in part.held.x}
        assert len(part.x) + len(part.held.x) == count and not any(one.tobytes() in seen for one in part.x)


def _told(*accuracies: float) -> Any:
    """Outcomes of a run for each part, one after the other."""
    return [Score(1.0 - accuracy, accuracy) for accuracy in accuracies]


@pytest.mark.parametrize(
    ("other", "taken"),
    [((0.9, 0.9, 0.9), 1), ((0.8, 0.6, 0.6), 0), ((0.6, 0.7, 0.9), 1), ((0.7, 0.7, 0.7), 0)],
)
def test_the_mean_over_parts_decides(
    other: tuple[float, float, float], taken: int, desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Outcomes are given here: of two schemes, at all rates alike, by each of three parts."""
    planner = Planner(desk.model, replace(OPTIONS, arena_bytes=16384), load_target("cortex-m7"), Externals())
    found = [
        search_update(planner, planner.layer_count, table, proof=False)
        for table in tables_without_data(desk.layers)[:2]
    ]
    by_part = {0: (0.7, *other[:1]), 1: (0.7, *other[1:2]), 2: (0.7, *other[2:])}
    asked = list[int]()

    def outcomes(self: Desk, runs: Any, _library: Path, _jobs: int, _done: Any) -> Any:
        asked.append(len(runs))
        part = by_part[max(0, len(asked) - 2) % 3]
        updates = found[0].update.updates
        return _told(*(part[0 if run.updates == updates else 1] for run in runs))

    monkeypatch.setattr(Desk, "run_all", outcomes)
    best = choice_by_data.best_of(planner, desk, found, tmp_path, lambda _what, _share: None)
    assert best.update.updates == found[taken].update.updates
    first, *parts, untrained = asked  # both schemes at all rates, then at the best ones by each part
    assert len(parts) == 3 and len(set(parts)) == 1 and 2 <= parts[0] < first and untrained == 1
    assert sum(asked) <= 40, "21 trainings; each takes seconds"
