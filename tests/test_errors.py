"""Errors as values."""

from __future__ import annotations

import ast
import functools
import pickle
import re

import pytest

from testing.places import ROOT
from tinytrain_compile.errors import ERRORS, CompileError

PACKAGE = ROOT / "compiler" / "tinytrain_compile"
SENTENCE = re.compile(r"[.!?](?= |$)")
WORD = re.compile(r"[a-z][a-z0-9-]+")


def messages_of(text: str) -> list[tuple[str, str]]:
    """(id, all texts of the function that raises it) for every CompileError of a module."""
    found: list[tuple[str, str]] = []
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            texts = [n.value for n in ast.walk(function) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found += [(one, " ".join(texts)) for one in texts if one in ERRORS]
    return found


@functools.cache
def all_messages() -> dict[str, list[str]]:
    """Texts by id, of all modules."""
    messages: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for code, text in messages_of(path.read_text(encoding="utf-8")):
            messages.setdefault(code, []).append(text)
    return messages


def test_an_error_reaches_another_process() -> None:
    error = CompileError("E0401", "--arena", "too small", "give more", ("a line",))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.details) == (str(error), "E0401", ("a line",))


@pytest.mark.parametrize("code", ERRORS)
def test_an_explanation_says_more_than_the_message(code: str) -> None:
    """Of some errors --explain printed the one line again, such as "A bug in the compiler; please report it"."""
    told, messages = ERRORS[code].explanation, all_messages().get(code, [])
    assert len(SENTENCE.findall(told)) >= 2 and len(told.split()) >= 25, told
    known = set(WORD.findall(" ".join((ERRORS[code].title, *messages)).lower()))
    new = [word for word in WORD.findall(told.lower()) if word not in known]
    assert len(new) >= 12, f"little that the title and the messages do not say: {new}"


def test_messages_were_found() -> None:
    """E0503 and E0601, and those of other exceptions, are put together elsewhere."""
    assert len(all_messages()) > 60
