"""The comparison of the driver with the model file, without the stages behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tinytrain_compile import compilation
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.file_check.check import check_file
from tinytrain_compile.ir.summary import FileAgreement
from tinytrain_compile.options.compile_options import CompileOptions


class _DoneError(Exception):
    """Carries what was found out of the driver."""

    def __init__(self, found: FileAgreement | None) -> None:
        super().__init__()
        self.found = found


def _check(*arguments: Any) -> None:
    raise _DoneError(check_file(*arguments))


def agreement(path: Path, **options: Any) -> FileAgreement:
    """What a compilation with these options finds; E0605 if the file and the imported graph differ."""
    settings = {"update": "last:1", "verify": "host", **options}
    with mock.patch.object(pipeline, "check_file", _check), pytest.raises(_DoneError) as done:
        compilation.compile_model(CompileOptions(path, out=path.parent / "out", **settings))
    assert done.value.found is not None
    return done.value.found
