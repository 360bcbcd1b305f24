"""Losses of outputs that are too sure of themselves, or not sure enough."""

from __future__ import annotations

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.learn.finetuning import DIGITS, some
from tinytrain_compile.twin.scores import calibrated_loss, scores


def test_a_calibrated_loss_does_not_see_how_sure_a_network_is() -> None:
    """Outputs times 4 or 1/2 are other probabilities of the same classes: their plain losses differ."""
    x, y = some(60)
    project = tt.compile(DIGITS / "digits.onnx", update="head", verify="none")
    with project.twin() as twin:
        model, train, outputs = twin._model, twin._train, twin.instance.infer(x)
    found = [scores(model, train, factor * outputs, y) for factor in (1.0, 4.0, 0.5)]
    assert len({one["accuracy"] for one in found}) == 1 and len({round(one["loss"], 3) for one in found}) == 3
    calibrated = [calibrated_loss(model, train, factor * outputs, y) for factor in (1.0, 4.0, 0.5)]
    assert calibrated == pytest.approx([calibrated[0]] * 3, rel=1e-6)
    assert all(isinstance(one, float) for one in calibrated) and np.isfinite(calibrated).all()
    assert min(one["loss"] for one in found) >= min(one for one in calibrated if one is not None)
