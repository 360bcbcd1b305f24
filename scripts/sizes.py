"""List modules and functions that are large: a signal for reviewers, never an error (`make check` prints it).

    python scripts/sizes.py            # what is above the usual sizes
    python scripts/sizes.py --most 20  # the largest, whatever their sizes

A table or a text is not counted: a limit would make people shorten what users read.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "compiler" / "tinytrain_compile"
MODULE_LINES, FUNCTION_LINES, C_FUNCTION_LINES = 400, 50, 60

_DATA = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.keyword),
    *(ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context, ast.BinOp, ast.Call),
)
"""What a table consists of: values, names and calls that put them together, but no condition, loop or function."""


def is_table(statement: ast.stmt) -> bool:
    """Whether a statement of a module is a table or a text: data that is read from top to bottom, however long."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) else None
    return value is not None and all(isinstance(node, _DATA) for node in ast.walk(value))


def lines_of_code(module: ast.Module, lines: int) -> int:
    """Count the lines of a module without its tables and texts."""
    return lines - sum((s.end_lineno or s.lineno) - s.lineno + 1 for s in module.body if is_table(s))


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of the functions of a C text in our style: a body's braces stand in the first column."""
    lines, start = text.splitlines(), -1
    for index, line in enumerate(lines):
        if line == "{":
            start = index
        elif line == "}" and start >= 0:
            heads = (lines[i] for i in range(start - 1, -1, -1) if "(" in lines[i] and not lines[i].startswith(" "))
            yield next(heads, "?").split("(")[0].split()[-1].lstrip("*"), index - start + 2
            start = -1


def sizes() -> Iterator[tuple[int, int, str]]:
    """Yield lines, usual limit and name of every module and function."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        module = ast.parse(text)
        yield lines_of_code(module, len(text.splitlines())), MODULE_LINES, name
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, FUNCTION_LINES, f"{name}: {node.name}"
    for path in sorted((*(ROOT / "runtime_c").rglob("*"), *PACKAGE.rglob("*"))):
        if path.name.endswith((".c", ".h", ".c.j2", ".h.j2")):
            for function, lines in c_functions(path.read_text(encoding="utf-8")):
                yield lines, C_FUNCTION_LINES, f"{path.relative_to(ROOT)}: {function}"


def main() -> None:
    """Print a line per module or function, the largest beside its limit first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=0, help="list so many, whatever their sizes")
    flags = parser.parse_args()
    found = sorted(sizes(), key=lambda item: (-item[0] / item[1], item[2]))
    large = found[: flags.most] if flags.most else [item for item in found if item[0] > item[1]]
    for lines, limit, name in large:
        print(f"{lines:5} lines (usual: at most {limit})  {name}")
    if not flags.most:
        print(f"sizes: {len(large)} of {len(found)} modules and functions are larger than usual")


if __name__ == "__main__":
    main()
