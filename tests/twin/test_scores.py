"""Losses of outputs that are too sure of themselves, or not sure enough."""

from __future__ import annotations

import numpy as np
import pytest

from tests.learn.finetuning import DIGITS, some
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver.pipeline import Project, make_project
from tinytrain_compile.ir.types import Array
from tinytrain_compile.twin.scores import calibrated_loss, scores


def test_a_calibrated_loss_does_not_see_how_sure_a_network_is() -> None:
    """Outputs times 4 or 1/2 are other probabilities of the same classes: their plain losses differ."""
    project = make_project(options_from(DIGITS / "digits.onnx", {"update": "head", "verify": "none"}))
    assert isinstance(project, Project)
    rng, (_, y) = np.random.default_rng(5), some(60)
    right = np.eye(10)[y] * 3
    outputs: Array = (right + rng.normal(0, 2, right.shape)).astype(np.float32)

    def both(factor: float) -> tuple[dict[str, float], float]:
        calibrated = calibrated_loss(project.model, project.summary.train, factor * outputs, y)
        assert calibrated is not None
        return scores(project.model, project.summary.train, factor * outputs, y), calibrated

    found = [both(factor) for factor in (1.0, 4.0, 0.5)]
    assert len({one["accuracy"] for one, _ in found}) == 1
    assert len({round(one["loss"], 3) for one, _ in found}) == 3
    assert [calibrated for _, calibrated in found] == pytest.approx([found[0][1]] * 3, rel=1e-6)
    assert all(one["loss"] >= calibrated for one, calibrated in found)
