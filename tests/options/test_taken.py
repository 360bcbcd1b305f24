"""What stages are told: fields that are called like options have their values, and mean the same."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tinytrain_compile.frontend import FrontendOptions
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions, taken
from tinytrain_compile.training import TrainingOptions

OTHERWISE = {TrainingOptions: {"dropout", "micro_batch"}, FrontendOptions: {"dropout"}}
"""Fields of a stage that mean something else than the option of that name, so that the driver gives their values."""


@pytest.mark.parametrize("kind", OTHERWISE)
def test_fields_that_are_called_like_options_have_their_types(kind: Any) -> None:
    hints, options = get_type_hints(kind), get_type_hints(CompileOptions)
    shared = {item.name for item in fields(kind)} & OPTIONS.keys()
    assert len(shared) >= 7
    differ = {name for name in shared if hints[name] != options[name]}
    assert differ - {"loss", "optimizer"} == OTHERWISE[kind]  # these two are texts where files are read


def test_a_stage_is_told_what_the_user_asked_for() -> None:
    options = CompileOptions(Path("m.onnx"), learning_rate=0.5, nesterov=True, seed=3, classes=4, untie=True)
    training = taken(TrainingOptions, options, dropout=None)
    assert (training.learning_rate, training.nesterov, training.seed, training.dropout) == (0.5, True, 3, None)
    frontend = taken(FrontendOptions, options, dropout=False, seed=7)
    assert (frontend.classes, frontend.untie, frontend.seed, frontend.dropout) == (4, True, 7, False)
