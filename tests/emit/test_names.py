"""Identifiers and comments from untrusted names; tables that read back to the same bits."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytrain_compile.emit.c_text import Names, c_identifier, comment_lines, comment_text
from tinytrain_compile.emit.sequence import wrap_call
from tinytrain_compile.emit.tables import array_text, declaration, table

RESERVED = [
    "while",
    "WHILE",
    "NULL",
    "null",
    "class",
    "int8",
    "uint32",
    "int_least16",
    "size",
    "ptrdiff",
    "time",
    "linux",
]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("dense.1/Gemm", "dense_1_Gemm"), ("9lives", "m_9lives"), ("", "m"), ("*/", "m"), ("a__b", "a_b")),
        *(("_x_", "x"), ("tt_x", "m_tt_x"), ("TT_x", "m_TT_x"), ("\N{SNOWMAN}", "m"), ("a" * 300, "a" * 60)),
        *((word, f"m_{word}") for word in RESERVED),
    ],
)
def test_identifiers(text: str, name: str) -> None:
    assert c_identifier(text) == name


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_any_text_becomes_an_identifier(text: str) -> None:
    name = c_identifier(text)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,61}", name)
    assert "__" not in name
    assert not name.endswith("_")
    assert c_identifier(name) == name or name.startswith("m_")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=120))
def test_any_text_is_a_harmless_comment(text: str) -> None:
    safe = comment_text(text)
    assert len(safe) <= 100
    assert safe.isascii()
    assert safe.isprintable()
    assert "*/" not in f"{safe} */"[:-2]
    assert "/*" not in safe


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_sentence_is_a_harmless_comment(text: str) -> None:
    for line in comment_lines(text):
        assert len(line) <= 115 and line.isascii() and line.isprintable()
        assert "*/" not in line and "/*" not in line


def test_sentences_are_not_cut() -> None:
    words = " ".join(f"word{i}" for i in range(50))
    assert " ".join(" ".join(comment_lines(words)).split()) == words


def test_names_are_unique_and_stable() -> None:
    names = Names("p_")
    keys = ["a.b", "a/b", "a b", "A.b", "a_b_2", "", "*"]
    first = [names.of(key) for key in keys]
    assert len(set(first)) == len(keys)
    assert [names.of(key) for key in keys] == first
    assert first[:3] == ["p_a_b", "p_a_b_2", "p_a_b_3"]


def test_floats_read_back_to_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 5000, dtype=np.uint32)
    data = np.concatenate([bits.view(np.float32), np.float32([0, -0.0, 1e-45, 3.4028235e38, 1, 1 / 3, 16777216])])
    data = data[np.isfinite(data)]
    texts = [part.strip() for part in array_text(data).replace("\n", " ").split(",") if part.strip()]
    assert all(re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?f", text) for text in texts)
    again = np.array([np.float32(text[:-1]) for text in texts])
    np.testing.assert_array_equal(again.view(np.uint32), data.view(np.uint32))


def test_infinity_has_a_text() -> None:
    assert array_text(np.float32([np.inf, -np.inf])).split() == ["__builtin_inff(),", "-__builtin_inff(),"]


def test_tables() -> None:
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert table("p_w_x", data) == "const int32_t p_w_x[6] = {\n    0, 1, 2, 3, 4, 5,\n};\n"
    assert declaration("p_w_x", data) == "extern const int32_t p_w_x[6];"
    assert (
        max(map(len, array_text(np.random.default_rng(0).standard_normal(500).astype(np.float32)).splitlines())) <= 120
    )


def test_long_calls_are_broken() -> None:
    lines = wrap_call("p_function", [f"F32(AT_argument_{i})" for i in range(12)])
    assert max(map(len, lines)) <= 116
    assert "".join(line.strip() + " " for line in lines).count("F32(") == 12
    assert lines[-1].endswith(");")
    assert wrap_call("f", ["a", "b"]) == ["f(a, b);"]
