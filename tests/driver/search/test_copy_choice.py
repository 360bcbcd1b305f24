"""--activations auto: copies where they let more be trained, and never less than without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.training.low_rank_nets import few_patterns, kinds
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Candidate, Planner, Price
from tinytrain_compile.driver.pipeline import imported
from tinytrain_compile.driver.search import copies as copy_choice
from tinytrain_compile.driver.search.update import search_update
from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse import PRIOR, gain_of_plan, layer_ways, layers_of, scheme_plan, with_copies
from tinytrain_compile.target import load_target

EIGHT = ("--batch", "8", "--micro-batch", "8", "--remat", "off", "--stream", "off")
COPIES = ("--activations", "auto", "--data", "own.npz", "--rank-error", "0.4")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and samples of few patterns."""
    write(kinds(), tmp_path, "kinds.onnx")
    few_patterns(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(place: Path, *flags: str) -> dict[str, Any]:
    run("kinds.onnx", *flags, *EIGHT, "--force").check_success()
    return json.loads((place / "out" / "report.json").read_text())


def planner(place: Path, arena: int | None, activations: str) -> Planner:
    options = CompileOptions(
        place / "kinds.onnx",
        place / "out",
        data=place / "own.npz",
        update="auto",
        quant="fp32",
        batch=8,
        micro_batch=8,
        remat="off",
        stream="off",
        arena_bytes=arena,
        activations=activations,  # type: ignore[arg-type]
        rank_error=0.4,
    )
    return Planner(imported(options), options, load_target("cortex-m7"), Externals())


def test_never_less_than_without_and_sometimes_more(place: Path) -> None:
    """Gains of one table, errors counted as lost gain, at equal arenas; the gain is summed up again from the ranks.

    The scheme that was chosen, read back, gives the same plan.
    """
    more = 0
    for arena in (24_000, 27_000, 30_000, 50_000):
        exact = search_update(planner(place, arena, "exact"), 5)
        found = copy_choice.choose_with_copies(planner(place, arena, "auto"))
        before = gain_of_plan(planner(place, None, "exact").model.graph, exact.update, PRIOR)
        gain = worth(place, found.update)
        assert found.plan.arena_bytes <= arena and gain >= before
        errors = [how.error for how in found.update.activations.values() if how is not None]
        assert all(error is not None and error <= 0.4 for error in errors)
        assert bool(errors) == (found.train.low_rank != ()) == (gain > before)
        if gain > before:
            more += 1
            assert found.choice.update is not None
            assert found.choice.update.gain == pytest.approx(gain / 1e6, abs=1e-5)
            assert found.choice.update.gain <= found.choice.update.best_gain
            (place / "own.toml").write_text(found.choice.update.scheme)
            again = planner(place, arena, "exact").exact(str(place / "own.toml"))
            assert found.plan.arena_bytes == again.plan.arena_bytes
            assert [item.ranks for item in found.train.low_rank] == [item.ranks for item in again.train.low_rank]
        if arena == 27_000:  # no suffix: one layer with a copy, and the other one with a part of its channels
            assert list(found.update.activations) == ["fc_weight"] and found.update.updates["point_weight"] is not None
    assert more == 3


def test_copies_are_ways_of_the_search() -> None:
    """Worth less by the error's share of the weight's gain, not of the bias'; the last way is still the whole input."""
    model = chain.imported(kinds()).graph
    plain = layer_ways(model, PRIOR)
    finer = LowRank((3, 1), error=0.125)
    how = LowRank((2, 1), error=0.25, finer=(finer,))
    more = with_copies(plain, {"fc_weight": [how]}, PRIOR)
    assert [len(item.ways) for item in more[:-1]] == [len(item.ways) for item in plain[:-1]]
    *before, copy, second, every = more[-1].ways
    assert (*before, every) == plain[-1].ways and copy.entry.ranks == (2, 1) and copy.kind == "all, asi"
    size = next(value.elements for value in model.parameters if value.name == "fc_weight")
    assert every.gain - copy.gain == pytest.approx(0.25e6 * np.sqrt(size), abs=1)
    assert second.entry.ranks == (3, 1) and second.kept is finer and second.kind not in (copy.kind, every.kind)
    assert every.gain - second.gain == pytest.approx(0.125e6 * np.sqrt(size), abs=1)
    chosen = [*(item.ways[0] for item in more[:-1]), copy]
    assert scheme_plan(more, chosen, "").activations == {"fc_weight": how}
    assert not scheme_plan(more, [*chosen[:-1], every], "").activations


def worth(place: Path, update: UpdatePlan) -> float:
    """sqrt(parameters) of a layer, less the error of its gradient times sqrt(elements of its weight), in 1 / UNITS."""
    graph = planner(place, None, "exact").model.graph
    gain = float(gain_of_plan(graph, update, PRIOR))
    sizes = {value.name: value.elements for value in graph.parameters}
    for name, how in update.activations.items():
        if how is not None and how.error is not None:
            gain -= 1e6 * how.error * np.sqrt(sizes[name])
    return round(gain)


def test_a_named_update_gets_copies_where_it_does_not_fit(place: Path) -> None:
    """The C with them is that of the reference; with room for exact inputs there are none."""
    asked = ("--update", "all", "--arena", "50000")
    run("kinds.onnx", *asked, *EIGHT, "--dry-run").check_error("E0401", 3)
    made = report(place, *asked, *COPIES, "--verify", "host")
    assert made["low_rank"] and made["memory"]["arena_bytes"] <= 50_000 and made["verify"]["result"] == "pass"
    plain = copy_choice.choose_with_copies(planner(place, 70_000, "auto"))
    assert not plain.train.low_rank and len(plain.update.updates) == 6


def planned(*flags: str) -> dict[str, Any]:
    """The plan.json of a run that writes nothing; whether an order is proven to be best a lock does not say."""
    found = run("kinds.onnx", *flags, "--batch", "8", "--micro-batch", "8", "--dump-after", "plan").check_success()
    return {**json.loads(found.out), "order_proven": None}


@pytest.mark.parametrize(
    ("asked", "again"),
    [
        (("--update", "all", "--arena", "50000", *COPIES), ("--update", "all")),
        (("--update", "last:2", "--activations", "subspace", "--data", "own.npz"), ("--data", "own.npz")),
    ],
    ids=["auto", "fixed subspaces"],
)
def test_a_lock_has_the_copies_of_its_plan(place: Path, asked: tuple[str, ...], again: tuple[str, ...]) -> None:
    """The same plan, though what was chosen on samples is not asked for again; what no layer can keep is one line."""
    first = planned(*asked, "--remat", "off", "--stream", "off")
    (place / "own.lock").write_text(json.dumps(first))
    assert first["copies"] and planned(*again, "--lock", "own.lock") == {**first, "arena_limit_bytes": None}
    for damage in ({"layer": "nowhere"}, {"kind": "exact"}, {"ranks": []}, {"ranks": [0]}):
        (place / "own.lock").write_text(json.dumps({**first, "copies": [{**first["copies"][0], **damage}]}))
        run("kinds.onnx", *again, "--lock", "own.lock", *EIGHT[:4], "--dry-run").check_error("E0106", 2)


def test_copies_that_a_scheme_names_stay(place: Path) -> None:
    """auto fills in what a scheme leaves open, and nothing else."""
    asked = planner(place, None, "auto")
    names = [layer.names[0] for layer in layers_of(asked.model.graph)]
    rows = [f'[[update]]\nlayer = "{name}"\nbias = true\nweight = "all"\n' for name in names]
    rows[1] += 'activation = "asi"\nranks = [8, 2, 4, 4]\n'
    scheme = place / "own.toml"
    scheme.write_text("".join(rows))
    plain = asked.exact(str(scheme))
    assert [item.ranks for item in plain.train.low_rank] == [(8, 2, 4, 4)]
    less = asked.with_options(update=str(scheme), arena_bytes=plain.plan.arena_bytes - 1_000)
    found = copy_choice.choose_with_copies(less)
    assert len(found.train.low_rank) > 1 and (8, 2, 4, 4) in [item.ranks for item in found.train.low_rank]


def test_quick_plans_are_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few suffixes one with the smallest copies, two to decide, and MOST_BETTER: 8 plans here."""
    asked = list[str]()
    price = Planner.price

    def counted(self: Planner, spec: str) -> Price:
        asked.append(spec)
        return price(self, spec)

    def known(*_: object) -> Candidate:
        return base

    monkeypatch.setattr(copy_choice, "MOST_BETTER", 3)
    monkeypatch.setattr(Planner, "price", counted)
    one = planner(place, 50_000, "auto")
    base = search_update(one, 5)
    monkeypatch.setattr(copy_choice, "search_update", known)
    asked.clear()
    copy_choice.choose_with_copies(one)
    assert 0 < len(asked) <= 20


def test_better_copies_are_tried_exact_first_then_by_error() -> None:
    finer = tuple(LowRank((rank, 1), error=0.5 / rank) for rank in (2, 3))
    tried = copy_choice.better_copies(LowRank((1, 1), error=0.5, finer=finer))
    assert [None if how is None else how.ranks for how in tried] == [None, (3, 1), (2, 1)]
    assert not copy_choice.better_copies(None)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--activations auto --arena 40KB", "measures ranks on samples"),
        ("--activations auto --data own.npz --arena 40KB --micro-batch auto", "for as many samples as a step takes"),
        ("--activations auto --data own.npz --arena 40KB --pareto", "weighs no low-rank copies"),
    ],
)
def test_what_cannot_be_honoured_is_refused(place: Path, flags: str, says: str) -> None:
    assert says in run("kinds.onnx", *flags.split(), "--batch", "8", "--dry-run").check_error("E0101", 2).err
    assert not (place / "out").exists()
