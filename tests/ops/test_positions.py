"""Operands are asked for by name (ops/names.py): nothing counts positions again."""

from __future__ import annotations

import ast

from testing.places import ROOT

PACKAGE = ROOT / "compiler" / "tinytrain_compile"
ONNX = PACKAGE / "frontend"
"""Its nodes are ONNX's, whose operands have positions; only annotate.py reads nodes of the compiler."""
ALLOWED = {
    "quantize/prepare.py": 1,  # every result behind the first, whatever they are
}
"""Literal positions that are left, by file: a number here may only fall."""
FILES = sorted(path for path in PACKAGE.rglob("*.py") if ONNX not in path.parents or path.name == "annotate.py")


def _literal(index: ast.expr | None) -> int:
    """The number that an index or a bound of a slice is written as; 0 if it is no literal."""
    sign = -1 if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) else 1
    value = index.operand if isinstance(index, ast.UnaryOp) else index
    return sign * value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else 0


def _is_operands(of: ast.expr, rules: bool) -> bool:
    """Whether an expression is a node's inputs or outputs, or (in rules of an op) what it is called with."""
    if isinstance(of, ast.Name):
        return rules and of.id in ("inputs", "outputs", "arrays")
    return isinstance(of, ast.Attribute) and of.attr in ("inputs", "outputs") and "graph" not in ast.unparse(of.value)


def positions(text: str, rules: bool = True) -> list[int]:
    """Line numbers where operands or results are asked for by a literal position; those of a graph are no operands.

    0 may stay: the first of whatever there is, in code that holds for every operator. So may unpacking: that is naming.
    """
    found: list[int] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Subscript):
            continue
        index = node.slice
        places = (index.lower, index.upper) if isinstance(index, ast.Slice) else (index,)
        if _is_operands(node.value, rules) and any(_literal(place) for place in places):
            found.append(node.lineno)
    return found


def test_no_operand_is_asked_for_by_its_position() -> None:
    wrong: list[str] = []
    for path in FILES:
        found = positions(path.read_text(encoding="utf-8"), PACKAGE / "ops" in path.parents)
        name = str(path.relative_to(PACKAGE))
        if len(found) != ALLOWED.get(name, 0):
            wrong.append(f"{name}, lines {found}")
    assert len(FILES) > 100
    assert wrong == [], "use ops/names.py"


def test_positions_are_found() -> None:
    lines = ["node.inputs[6]", "node.outputs[-1]", "node.inputs[2:4]", "arrays[: 3]", "node.inputs[0]", "inputs[i]"]
    assert positions("\n".join(lines)) == [1, 2, 3, 4]
    assert positions("x, w, *rest = node.inputs; labels = train.graph.inputs[1:]") == []
    assert positions("outputs[1]", rules=False) == []
