"""A twin of a build without features refuses to make them, and to train on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from tests.e2e.broken import write
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile.errors import CompileError

pytestmark = needs_gcc


@pytest.mark.parametrize("options", [{}, {"features": "on", "update": "all"}])
def test_without_features_it_says_how_to_have_them(options: dict[str, str], tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    with tt.compile(path, loss="cross-entropy", verify="none", **options).twin() as twin:
        before = twin.instance.save()
        with pytest.raises(CompileError, match="features='on', and freeze the first layer") as problem:
            twin.features(np.zeros((1, 12), np.float32))
        assert problem.value.code == "E0113"
        with pytest.raises(CompileError, match="features='on'"):
            twin.train_features(np.zeros((1, 4), np.uint8), np.array([1]))
        assert twin.instance.save() == before
