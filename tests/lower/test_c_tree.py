"""Clean-ups of printed statements."""

from __future__ import annotations

from tinytrain_compile.lower.printing.c_text import ZERO_LANES, Declaration, If, Line, Statement, render, tidy
from tinytrain_compile.lower.printing.c_text import Test as Condition

TAIL = (Condition("row < 1", "row < 1", frozenset({"row"}), True, {}),)


def text(body: list[Statement]) -> list[str]:
    return [line.strip() for line in render(tidy(body))]


def test_what_only_a_condition_sets_begins_with_0() -> None:
    """Compilers warn of it where they cannot see that it is read under the same condition (-Wmaybe-uninitialized)."""
    body: list[Statement] = [
        Declaration("int32_t", ["out_0", "out_1"]),
        Declaration("int32_t", ["acc_0"]),
        Line("acc_0 = 0;"),
        Line("out_0 = acc_0;"),
        If(TAIL, [Line("out_1 = acc_0;")], []),
        Line("y[0] = out_0;"),
        If(TAIL, [Line("y[1] = out_1;")], []),
    ]
    assert text(body)[:2] == ["int32_t acc_0 = 0;", "int32_t out_0 = acc_0, out_1 = 0;"]
    assert text([body[0], body[4], body[6]])[0] == "int32_t out_0, out_1 = 0;"


def test_of_a_vector_all_lanes_do() -> None:
    body: list[Statement] = [
        Declaration("tt_f32x4", ["sums", "others"], ZERO_LANES),
        If(TAIL, [Line("sums = tt_all_f32x4(0.0f);")], []),
        Line("others = tt_all_f32x4(1.0f);"),
    ]
    assert text(body)[0] == "tt_f32x4 sums = {0}, others;"


def test_what_is_always_set_does_not() -> None:
    either = If(TAIL, [Line("a = 1;")], [Line("a = 2;")])
    assert text([Declaration("int32_t", ["a"]), either])[0] == "int32_t a;"
    first: list[Statement] = [
        Declaration("int32_t", ["a"]),
        Line("f();"),
        Line("a = g();"),
        If(TAIL, [Line("a = 1;")], []),
    ]
    assert text(first)[:2] == ["f();", "int32_t a = g();"], "declared where its value is known"
