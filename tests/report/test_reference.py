"""The generated reference pages."""

from __future__ import annotations

import re

from tinytrain_compile.errors import ERRORS
from tinytrain_compile.ops import OPS
from tinytrain_compile.report.reference import errors_markdown, ops_markdown, ops_text


def test_every_operator_has_one_row_of_six_cells() -> None:
    rows = [line for line in ops_markdown().splitlines() if line.startswith("| `")]
    assert [re.match(r"\| `(\w+)`", row)[1] for row in rows] == sorted(OPS)  # type: ignore[index]
    assert all(len(re.split(r"(?<!\\)\|", row)) == 8 for row in rows)


def test_rows_say_what_the_table_says() -> None:
    rows = {line.split("`")[1]: line for line in ops_markdown().splitlines() if line.startswith("| `")}
    assert "| view, free |" in rows["Reshape"]
    assert "| `w, m, v, g, rate, power, scale? -> w, m, v` |" in rows["AdamUpdate"]
    assert rows["AdamUpdate"].endswith("| overwrites w, m, v |")
    assert "none: updates are not part of the differentiated function" in rows["SgdUpdate"]
    assert "`low = -inf`, `high = inf` | yes | in place of x |" in rows["Clip"]
    assert "`axis: int`" in rows["Concat"]


def test_onnx_operators_are_listed_where_given() -> None:
    assert "`Add`, `Conv`." in ops_markdown(("Conv", "Add"))
    assert "ONNX operators" not in ops_markdown()


def test_every_error_is_explained() -> None:
    text = errors_markdown()
    assert re.findall(r"^## (E\d{4}):", text, re.M) == sorted(ERRORS)
    for kind in ERRORS.values():
        assert kind.explanation in text
    assert "## E0401: does not fit" in text
    assert "| 3 | does not fit |" in text


def test_list_of_operators_has_one_line_each() -> None:
    assert [line.split()[0] for line in ops_text()] == sorted(OPS)
