"""Hints for operators that are not imported."""

from __future__ import annotations

import re

import onnx

from tinytrain_compile.frontend import supported_operators
from tinytrain_compile.frontend.unsupported import NEAREST


def test_hints_are_for_operators_that_are_not_imported_and_name_some_that_are() -> None:
    known, standard = set(supported_operators()), {schema.name for schema in onnx.defs.get_all_schemas()}
    assert not known & NEAREST.keys()
    named = {word for hint in NEAREST.values() for word in re.findall(r"\w+", hint)} & standard
    assert named <= known and len(named) > 5
