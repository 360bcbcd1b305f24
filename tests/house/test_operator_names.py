"""No lists of operator names outside of ops/: what an operator is, its OpDef declares, and other rooms ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from testing.places import ROOT
from tinytrain_compile.ops import OPS

PACKAGE = ROOT / "compiler" / "tinytrain_compile"
OWN = ("ops/", "lower/kernels/")
"""Operators, and a kernel for each."""
OTHER_LANGUAGES = ("frontend/", "driver/derivative/", "lower/printing/c_text.py")
"""Names of ONNX (the first two) and of TVM's expressions, some of which are spelled like an operator."""


def names_in(items: list[ast.expr]) -> set[str]:
    """Names of registered operators among expressions: strings, and `CONV_GRAD_WEIGHT.name` of a definition."""
    strings = {str(item.value) for item in items if isinstance(item, ast.Constant) and item.value in OPS}
    names = {ast.unparse(item) for item in items if isinstance(item, ast.Attribute) and item.attr == "name"}
    return strings | {name for name in names if name.removesuffix(".name").isupper()}


def compared(node: ast.AST) -> set[str]:
    """Names that a comparison, or each part of a condition, compares something with."""
    found = [part for part in ast.walk(node) if isinstance(part, ast.Compare)]
    return set().union(*(names_in([part.left, *part.comparators]) for part in found))


def lists_of_names(module: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, names) of each place that lists two or more operators.

    A place is the elements of a list, tuple or set, the keys or the values of a dict, a condition, the cases of a
    match, or the comparisons of a chain of ifs.
    """
    for node in ast.walk(module):
        groups: list[set[str]] = []
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            groups = [names_in(node.elts)]
        elif isinstance(node, ast.Dict):
            groups = [names_in([key for key in node.keys if key is not None]), names_in(node.values)]
        elif isinstance(node, ast.BoolOp):
            groups = [compared(node)]
        elif isinstance(node, ast.Match):
            patterns = [part.value for part in ast.walk(node) if isinstance(part, ast.MatchValue)]
            groups = [names_in(patterns)]
        elif isinstance(node, ast.FunctionDef):
            groups = [set().union(*(compared(part.test) for part in ast.walk(node) if isinstance(part, ast.If)))]
        yield from ((node.lineno, sorted(names)) for names in groups if len(names) > 1)


def test_operators_are_not_listed_by_name() -> None:
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith((*OWN, *OTHER_LANGUAGES)):
            places = lists_of_names(ast.parse(path.read_text(encoding="utf-8")))
            found += [f"{name}:{line}: {', '.join(names)}" for line, names in places]
    assert found == [], "let the OpDef of each declare a trait (ops/base.py) and ask for that"


@pytest.mark.parametrize(
    "planted",
    [
        'RULES = {"Conv": 1, "Gemm": 2}',
        'FORMS = {1: "Conv", 2: "Gemm"}',
        'KNOWN = ("Softmax", "LogSoftmax")',
        'KNOWN = frozenset(["Softmax", "LogSoftmax"])',
        "KNOWN = (CONV_GRAD_WEIGHT.name, GEMM_GRAD_WEIGHT.name)",
        'def known(node):\n    return node.op in {"Add", "Sub"}',
        'def known(node):\n    return node.op == "Add" or node.op == "Sub"',
        'def known(node):\n    match node.op:\n        case "Add" | "Sub":\n            return True',
        'def known(node):\n    if node.op == "Add":\n        return 1\n    if node.op == "Sub":\n        return 2',
    ],
)
def test_a_list_is_found(planted: str) -> None:
    assert len(OPS) > 100
    assert len(list(lists_of_names(ast.parse(planted)))) >= 1


@pytest.mark.parametrize(
    "allowed",
    [
        'KNOWN = ("Softmax", "cross-entropy")',
        'def known(node):\n    return node.op == "Add" and node.inputs == []',
        'def known(node):\n    return emit("Add", emit("Sub", node.inputs))',
    ],
)
def test_one_name_is_no_list(allowed: str) -> None:
    assert list(lists_of_names(ast.parse(allowed))) == []
