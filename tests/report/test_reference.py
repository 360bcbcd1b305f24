"""The generated reference pages."""

from __future__ import annotations

import re

from tinytrain_compile.errors import ERRORS
from tinytrain_compile.ops import OPS
from tinytrain_compile.report.reference import errors_markdown, ops_markdown, ops_text


def test_every_operator_has_one_row_of_as_many_cells_as_its_table() -> None:
    names: list[str] = []
    for table in ops_markdown().split("\n### ")[1:]:
        (head,) = [line for line in table.splitlines() if line.startswith("| operator")]
        rows = [line for line in table.splitlines() if line.startswith("| `")]
        found = [row.split("`")[1] for row in rows]
        assert found == sorted(found) != []
        assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {len(head.split("|"))}
        names += found
    assert sorted(names) == sorted(OPS)


def test_operators_are_in_the_table_of_their_kind() -> None:
    tables = {part.partition("\n")[0]: part for part in ops_markdown().split("\n### ")[1:]}
    kinds = {
        "Conv": "Forward pass",
        "Equal": "Forward pass",
        "ConvGradWeight": "Backward pass",
        "ClipMask": "Backward pass",
        "AdamUpdate": "Updates and clipping",
        "QConv": "int8",
        "Orthonormalize": "Low-rank copies",
        "Stream": "Made by the planner",
    }
    for name, kind in kinds.items():
        assert f"| `{name}` |" in tables[kind], name
    reasons = {cell for cell in re.findall(r"\| (none: .*?) \|", tables["Forward pass"]) if "piecewise" not in cell}
    assert reasons == set(), "an operator of another kind is in the first table"


def test_rows_say_what_the_table_says() -> None:
    rows = {line.split("`")[1]: line for line in ops_markdown().splitlines() if line.startswith("| `")}
    assert "| view, free |" in rows["Reshape"]
    assert "| `w, m, v, g, rate, power, scale? -> w, m, v` |" in rows["AdamUpdate"]
    assert rows["AdamUpdate"].endswith("| overwrites w, m, v |")
    assert "none: a truth value is piecewise constant" in rows["Equal"]
    assert "`low = -inf`, `high = inf` | yes | in place of x |" in rows["Clip"]
    assert "`axis: int`" in rows["Concat"]


def test_onnx_operators_are_listed_where_given() -> None:
    assert "| layers | `Add`, `Conv` |" in ops_markdown({"layers": ("Conv", "Add")})
    assert "ONNX operators" not in ops_markdown()


def test_every_error_is_explained() -> None:
    text = errors_markdown()
    assert re.findall(r"^## (E\d{4}):", text, re.M) == sorted(ERRORS)
    plain = re.sub(r"\[([\w-]+\.md)\]\(\1\)", r"docs/\1", text)
    for kind in ERRORS.values():
        assert kind.explanation in plain
    assert "## E0401: does not fit" in text
    assert "| 3 | does not fit |" in text
    assert "| [E0401](#e0401-does-not-fit) | does not fit | 3 |" in text
    assert "See [fitting.md](fitting.md) for each option" in text


def test_list_of_operators_has_one_line_each() -> None:
    assert [line.split()[0] for line in ops_text()] == sorted(OPS)
