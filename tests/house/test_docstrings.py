"""Docstrings of functions and methods begin with a verb; those of classes, modules and properties may be nouns."""

from __future__ import annotations

import ast

import pytest

from testing.docstrings import begins_with_a_verb, documented_functions
from testing.places import ROOT

PACKAGE = ROOT / "compiler" / "tinytrain_compile"


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found, seen = list[str](), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, name, text in documented_functions(ast.parse(path.read_text(encoding="utf-8"))):
            seen += 1
            if not begins_with_a_verb(text):
                found.append(f"{path.relative_to(ROOT)}:{line}: {name}: {text.splitlines()[0]}")
    assert seen > 1000
    assert found == [], "see testing/docstrings.py"


@pytest.mark.parametrize("text", ["Return it.", "Read, check and keep it.", "Name-check it.", "Sum rows."])
def test_a_verb_is_seen(text: str) -> None:
    assert begins_with_a_verb(text)


@pytest.mark.parametrize(
    "text", ["The sum.", "Returns it.", "Sum of rows.", "Whether it is.", "E0101 for it.", "x: it"]
)
def test_a_noun_is_seen(text: str) -> None:
    assert not begins_with_a_verb(text)
