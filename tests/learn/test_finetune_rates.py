"""`finetune`: which rates and lengths are tried, and which of them is taken; what trainings bring is made up."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.learn.finetuning import found_by, write_own
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.learning import Curve, Finding, Learned, Score, Tried
from tinytrain_compile.learn import rate_search as search
from tinytrain_compile.learn.rate_search import most_runs
from tinytrain_compile.learn.training import LearningRun
from tinytrain_compile.options.effort import FinetuneEffort
from tinytrain_compile.report.learning import finding_lines, finding_toml


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_own(tmp_path)


def test_longer_trainings_are_taken_only_where_they_are_better(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rates that fall to 0 no epoch on the way is a result, so trainings of other lengths are compared."""

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        found = [Curve(tuple(Score(1.0, value) for value in worth(run)), (), 9) for run in runs]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    def worth(run: LearningRun) -> list[float]:
        """Better in the middle of every training; at its end by its length."""
        return [0.1, *([0.9] * (run.epochs - 1)), best[run.epochs]]

    monkeypatch.setattr(search, "learn_all", learned)
    for best, epochs in (({1: 0.2, 2: 0.5, 6: 0.6}, 6), ({1: 0.2, 2: 0.5, 6: 0.5}, 6), ({1: 0.2, 2: 0.7, 6: 0.6}, 2)):
        found = found_by(own)
        assert found.taken.epochs == epochs and found.chosen.best.accuracy == best[epochs]
        assert found.worth_it and sum("<- taken" in line for line in finding_lines(found)) == 1
    best = {1: 0.1, 2: 0.1, 6: 0.1}
    with pytest.raises(CompileError, match="nothing was learned"):
        found_by(own)


def test_rates_outside_of_the_first_are_tried_while_they_are_better(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0.000316 to 0.316 the best is at an end; and what is recommended is the top between three, not one of them."""

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        found = [Curve((Score(9.0, 0.1), Score(1.0, worth(run.rate) + 0.001 * run.epochs)), (), 9) for run in runs]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    def worth(rate: float) -> float:
        return 0.9 - 0.01 * math.log10(rate / best) ** 2

    monkeypatch.setattr(search, "learn_all", learned)
    for best in (4.0, 0.03, 2e-5):
        found = found_by(own, FinetuneEffort(6, 3, clips=(0.0,), jobs=1))
        rates = [one.rate for one in found.rounds[0]]
        assert rates == sorted(rates) and min(rates) < best < max(rates) and len(rates) == (7 if best == 0.03 else 10)
        assert found.rate == pytest.approx(best, rel=1e-3)
        assert tomllib.loads(finding_toml(found, {}))["lr"] == found.rate
    best = 1e6
    tried = len(found_by(own, FinetuneEffort(6, 3, clips=(0.0,), jobs=1)).rounds[0])
    assert 10 < tried <= 14, "7 rates and 4 more, however far away the best is"


@pytest.mark.parametrize("steps", [-4, -3, -2, 2, 3, 4])
def test_rounds_go_on_while_their_best_rate_is_at_an_end(
    steps: int, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer a training, the further its best rate is from that of short ones, up or down; work is bounded."""
    trained = list[LearningRun]()

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        trained.extend(runs)
        found = [Curve((Score(9.0, 0.1), *([Score(1.0, worth(run))] * run.epochs)), (), 9) for run in runs]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    def worth(run: LearningRun) -> float:
        """A pure function of rate and length: 24 epochs want a rate that is `steps` quarters of a decade away."""
        best = -2 + steps / 4 * math.log(run.epochs / 3) / math.log(8)
        return 0.9 - 0.05 * (math.log10(run.rate) - best) ** 2 + 0.001 * run.epochs

    monkeypatch.setattr(search, "learn_all", learned)
    effort = FinetuneEffort(24, 3, clips=(0.0,), jobs=1)
    found = found_by(own, effort)
    last = [one.rate for one in found.rounds[2]]
    assert last == sorted(last) and all(pytest.approx(b / a, rel=1e-2) == 3.16**0.5 for a, b in pairwise(last))
    wanted = 10 ** (-2 + steps / 4)
    assert min(last) < wanted < max(last) and found.rate == pytest.approx(wanted, rel=0.01)
    assert not any("the best rate is the" in note for note in found.notes)
    assert found.chosen.seeds == 3
    base = 7 * 3 + 3 * 2 * 8 + 3 * 3 * 24 + 3 * 24
    worked = sum(run.epochs for run in trained)
    assert base <= worked <= base * 1.2, "docs/finetune.md: further rates add a fifth at most"
    assert found.trainings == len(trained) <= most_runs(effort, 1, 1)


@pytest.mark.parametrize(("slope", "taken"), [(0.1, -2), (2.0, -1)])
def test_a_rate_at_the_end_of_what_the_work_allows_is_reported(
    slope: float, taken: int, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer trainings want ever larger rates: the search ends, and says that it had to.

    Nothing is known of rates beyond, where trainings may fail: so the largest is taken only if it is clearly better.
    """

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        rates = [(run, math.log10(run.rate) if run.epochs > 3 else -((math.log10(run.rate) + 2) ** 2)) for run in runs]
        found = [
            Curve((Score(9.0, 0.1), *([Score(1.0, 0.5 + 0.5 * math.tanh(slope * (worth - 0.5)))] * run.epochs)), (), 9)
            for run, worth in rates
        ]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    monkeypatch.setattr(search, "learn_all", learned)
    found = found_by(own, FinetuneEffort(24, 3, clips=(0.0,), jobs=1))
    assert found.chosen.rate == sorted(one.rate for one in found.rounds[2])[taken]
    assert (
        f"the best rate is the largest that full trainings tried: --lr {found.rate:.4g} tries larger ones"
        in found.notes
    )


def test_losses_of_whole_trainings_compare_calibrated(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger rates make a network too sure of itself: accuracies are alike, and the plain loss prefers smaller ones."""

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        found = [Curve((Score(9.0, 0.1), *([score(run)] * run.epochs)), (), 9) for run in runs]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    def score(run: LearningRun) -> Score:
        """The plain loss is best at 0.01, the calibrated one of whole trainings at 0.025, that of others at 1."""
        best = 0.025 if run.epochs == 24 else 1.0
        away = math.log10(run.rate / 0.01), math.log10(run.rate / best)
        return Score(1 + away[0] ** 2, 0.8, calibrated=0.5 + away[1] ** 2)

    monkeypatch.setattr(search, "learn_all", learned)
    found = found_by(own, FinetuneEffort(24, 3, clips=(0.0,), jobs=1))
    assert found.rate == pytest.approx(0.025, rel=1e-3)
    low, middle, high = (one.rate for one in found.rounds[1])
    assert low < middle == pytest.approx(0.01) and low * high == pytest.approx(middle**2)


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ((0.80, 0.89, 0.9, 0.895, 0.8), "rates 0.0178 to 0.0562 lose at most 1 point against the one taken"),
        ((0.80, 0.889, 0.9, 0.889, 0.9), "only 0.0316 loses at most 1 point against the one taken"),
        ((0.895, 0.9, 0.9, 0.8, 0.8), "rates 0.01 to 0.0316 lose at most 1 point against the one taken"),
        ((0.9, 0.9, 0.9, 0.9, 0.9), "; none smaller or larger had as long a training"),
        ((0.895, 0.9, 0.9, 0.8, 0.8), "; none smaller had as long a training"),
        ((0.7, 0.9, 0.9, 0.8, 0.8), "(accuracy, standard error 1.7 points)"),
    ],
)
def test_how_flat_the_optimum_is_is_said(accuracies: tuple[float, ...], said: str) -> None:
    """Of trainings like the chosen one alone: not of a clipped one, nor of fewer seeds, nor of another round."""

    def tried(rate: float, accuracy: float, **more: Any) -> Tried:
        given: dict[str, Any] = {"batch": 1, "clip": 0.0, "seeds": 3, "failed": 0, **more}
        return Tried(**given, rate=rate, curve=(Score(1.0, accuracy),))

    last = [tried(0.01 * 10 ** (step / 4), accuracy) for step, accuracy in enumerate(accuracies)]
    others = tried(0.001, 0.9, clip=1.0), tried(1.0, 0.9, seeds=1)
    learned = Learned(0, (Score(1.0, 0.1), Score(1.0, 0.9)), (), 0.0, 9)
    first = (tried(0.005, 0.9), tried(0.1001, 0.9))
    found = Finding((first, (*last, *others)), last[2], 0.03, (learned,), 0, 9, held=100)
    text = " ".join(" ".join(finding_lines(found)).split())
    assert said in text


def test_how_flat_a_loss_is_is_said() -> None:
    losses = (1.2, 1.05, 1.0, 1.049, 1.06)
    last = [Tried(1, 0.0, 0.01 * 2**step, 1, (Score(loss),), 0) for step, loss in enumerate(losses)]
    found = Finding((tuple(last),), last[2], 0.04, (Learned(0, (Score(2.0), Score(1.0)), (), 0.0, 9),), 0, 9, held=100)
    text = " ".join(" ".join(finding_lines(found)).split())
    assert "rates 0.02 to 0.08 lose at most 5% against the one taken (loss) learned" in text


@pytest.mark.parametrize(("gain", "clip"), [(0.3, 1.0), (0.02, 0.0), (-0.3, 0.0)])
def test_clipping_has_to_be_better_than_chance_makes_it(
    gain: float, clip: float, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is best without it is always compared, though the first round has many rates that are better with it."""

    def learned(_builds: Any, runs: Sequence[LearningRun], _jobs: int, told: Any) -> list[Curve]:
        found = [Curve((Score(9.0, 0.1), Score(1.0, 0.5 + gain * (run.build == 1))), (), 9) for run in runs]
        for index, curve in enumerate(found):
            told(index, curve)
        return found

    monkeypatch.setattr(search, "learn_all", learned)
    found = found_by(own, FinetuneEffort(6, 3, jobs=1))
    assert {one.clip for one in found.rounds[1]} >= {0.0, clip}
    assert found.chosen.clip == clip and found.rate == pytest.approx(found.chosen.rate, rel=1e-3)


@pytest.mark.parametrize(
    ("accuracies", "steps"),
    [
        ((0.8, 0.9, 0.8), 0.0),
        ((0.8, 0.9, 0.86), 0.2143),
        ((0.9, 0.89, 0.8), -0.625),
        ((0.9, 0.8, 0.65), -1.0),  # the top is outside
        ((0.8, 0.86, 0.9), 1.0),
        ((0.9, 0.85, 0.9), -1.0),  # there is none
        ((0.9, 0.9, 0.9), -1.0),
    ],
)
def test_the_top_of_a_parabola(accuracies: tuple[float, ...], steps: float) -> None:
    rates = (0.01, 0.03, 0.09)
    tried = [Tried(1, 0.0, r, 1, (Score(1.0, a),), 0) for r, a in zip(rates, accuracies, strict=True)]
    best = max(tried, key=lambda one: one.best.worth)
    assert math.log(search.top_of(tried, best) / 0.03, 3) == pytest.approx(steps, abs=2e-4)
