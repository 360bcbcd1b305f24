"""`finetune`: which rates and lengths are tried, and which of them is taken; what trainings bring is made up."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.finetuning import found_by, write_own
from tinytrain_compile.driver import finetune as search
from tinytrain_compile.driver.finetune import Effort
from tinytrain_compile.driver.learning import LearningRun
from tinytrain_compile.ir.learning import Curve, Score, Tried
from tinytrain_compile.report import finding_lines, finding_toml


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
    assert not found_by(own).worth_it


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
        found = found_by(own, Effort(6, 3, clips=(0.0,), jobs=1))
        rates = [one.rate for one in found.rounds[0]]
        assert rates == sorted(rates) and min(rates) < best < max(rates) and len(rates) == (7 if best == 0.03 else 10)
        assert found.rate == pytest.approx(best, rel=1e-3)
        assert tomllib.loads(finding_toml(found, {}))["lr"] == found.rate
    best = 1e6
    assert len(found_by(own, Effort(6, 3, clips=(0.0,), jobs=1)).rounds[0]) == 7 + search.MORE_RATES


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
    found = found_by(own, Effort(6, 3, jobs=1))
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
    assert math.log(search.top_of(tried) / 0.03, 3) == pytest.approx(steps, abs=2e-4)
