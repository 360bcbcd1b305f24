"""Formulas of kernel files: what they mean, and that nothing else gets through."""

from __future__ import annotations

import pytest

from tinytrain_compile.files.formula import LIMIT, LONGEST, parse_formula

NUMBERS = {"a": 7, "b": 3, "zero": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("4 * a + b", 31), ("a // b", 2), ("-a // b", -3), ("a % b", 1), ("a - b - 1", 3), ("(a - b) * 2", 8)),
        *(("a == 7", 1), ("a != 7", 0), ("1 < b <= 3", 1), ("1 < b < 3", 0), ("a > b and b > 3", 0), ("not a", 0)),
        *(("a < b or b == 3", 1), ("min(a, b, 5)", 3), ("max(a, b)", 7), ("max(a)", 7), ("zero and a // zero", 0)),
        *(("zero == 0 or a // zero", 1), ("  0x10  ", 16)),
    ],
)
def test_values(text: str, value: int) -> None:
    assert parse_formula(text, NUMBERS).value(NUMBERS) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "a +", "a b", "c", "1.5", "'a'", "True", "a ** b", "a / b", "a << b", "a & b", "~a", "+a", "a; b"),
        *("a.real", "a[0]", "[a]", "(a, b)", "lambda: a", "f(a)", "min()", "min(*a)", "max(a, key=b)", "a := b"),
        *("a is b", "a in b", "open(a)", "min.__self__", "(" * 200 + "a", "a\0", "a if b else 1"),
        "1" + "+1" * LONGEST,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|may|knows)"):
        parse_formula(text, NUMBERS)


@pytest.mark.parametrize(("text", "why"), [("a // zero", "divides by 0"), ("a % zero", "divides by 0")])
def test_no_value(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_formula(text, NUMBERS).value(NUMBERS)


@pytest.mark.parametrize("text", [f"{LIMIT} * 2", f"{LIMIT + 1}", f"-{LIMIT} - 1"])
def test_no_result_grows_without_limit(text: str) -> None:
    with pytest.raises(ValueError, match="beyond"):
        parse_formula(text, NUMBERS).value(NUMBERS)
