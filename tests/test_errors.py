"""Errors as values."""

from __future__ import annotations

import pickle

from tinytrain_compile.errors import CompileError


def test_an_error_reaches_another_process() -> None:
    error = CompileError("E0401", "--arena", "too small", "give more", ("a line",))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.details) == (str(error), "E0401", ("a line",))
