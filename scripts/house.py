"""Measure the house: figures that a change of the compiler's inner order is judged by (`make house`).

    python scripts/house.py           # all figures; files per convolution take half a minute
    python scripts/house.py --rooms   # code lines and files of each folder, docstrings that do not begin with a verb
    python scripts/house.py --words plan ir   # these docstrings, one a line

The figures are signals for reviewers, not limits. Run it before and after a change that moves code.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "compiler" / "tinytrain_compile"
sys.path[:0] = [str(ROOT), str(ROOT / "compiler")]

LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the package. comments: lines that hold one; constants: numbers with a name; bare: of these, the
    names without a comment or docstring that could say where they are from."""

    path: Path
    tree: ast.Module
    code_lines: int
    comments: int
    constants: tuple[str, ...]
    bare: tuple[str, ...]

    @property
    def room(self) -> str:
        """The folder, at most two deep; empty for the top."""
        return "/".join(self.path.relative_to(PACKAGE).parts[:-1][:2])


def read_module(path: Path) -> Module:
    """Parse and measure a module."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    code = {
        line
        for token in tokens
        if token.type not in (tokenize.COMMENT, *LAYOUT)
        for line in range(token.start[0], token.end[0] + 1)
    }
    constants = dict(numeric_constants(tree))
    bare = [
        name
        for name, (first, last, said) in constants.items()
        if not said and not comments & {first - 1, *range(first, last + 1)}
    ]
    return Module(path, tree, len(code - docstring_lines(tree)), len(comments), tuple(constants), tuple(bare))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of all docstrings of modules, classes and functions."""
    found = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and is_text(node.body):
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def is_text(body: list[ast.stmt]) -> bool:
    """Tell whether statements begin with a text."""
    first = body[0].value if body and isinstance(body[0], ast.Expr) else None
    return isinstance(first, ast.Constant) and isinstance(first.value, str)


def numeric_constants(tree: ast.Module) -> Iterator[tuple[str, tuple[int, int, bool]]]:
    """Yield names in capitals that a module gives to numbers: first line, last line, whether a docstring follows."""
    for at, statement in enumerate(tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            elements = [e for one in targets for e in (one.elts if isinstance(one, ast.Tuple) else [one])]
            if is_number(statement.value):
                for element in elements:
                    if isinstance(element, ast.Name) and element.id.lstrip("_").isupper():
                        last = statement.end_lineno or statement.lineno
                        yield element.id, (statement.lineno, last, is_text(tree.body[at + 1 : at + 2]))


def is_number(value: ast.expr) -> bool:
    """Tell whether an expression is a number, arithmetic of numbers, or a tuple of these."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    return isinstance(value, ast.UnaryOp) and is_number(value.operand)


def refusals() -> tuple[int, int]:
    """Count the pairs of options that cannot be together (driver/checks/combinations.py, parts/), and their rules."""
    from tinytrain_compile.driver.checks import combinations as rules
    from tinytrain_compile.parts.part import Part

    folders = (path.parent.name for path in sorted((PACKAGE / "parts").glob("*/part.py")))
    parts: list[type[Part]] = [import_module(f"tinytrain_compile.parts.{name}.part").PART for name in folders]
    beside, named = [part.not_with for part in parts if part.not_with], sum(bool(part.named_update) for part in parts)
    # One rule is for all of UNDER_LOCK; dampening, activations, memories and counting have one each.
    apart = len(rules.NEEDS) + named + 4
    return sum(map(len, beside)) + len(rules.UNDER_LOCK.split()) + apart, len(beside) + 1 + apart


def templates() -> Iterator[tuple[int, int, str]]:
    """Yield lines, control tags and name of every template."""
    for path in sorted(PACKAGE.rglob("*.j2")):
        text = path.read_text(encoding="utf-8")
        yield len(text.splitlines()), len(re.findall(r"\{%-?\s*\w+", text)), path.name


def figures() -> Iterator[tuple[str, str]]:
    """Yield every figure with its name, the slow ones last."""
    from trace_files import WAYS, trace_of

    from testing.docstrings import begins_with_a_verb, documented_functions
    from tinytrain_compile.ir.stages import Interface, TrainGraph
    from tinytrain_compile.ir.summary import Summary
    from tinytrain_compile.ops import OPS
    from tinytrain_compile.ops.base import OpDef

    modules = [read_module(path) for path in sorted(PACKAGE.rglob("*.py"))]
    yield "code lines without docstrings, comments and blanks", f"{sum(m.code_lines for m in modules):,}"
    yield "Python files", f"{len(modules)}"
    yield "operators registered", f"{len(OPS)}"
    lines, tags, name = max(templates())
    yield "longest template", f"{lines} lines, {tags} control tags ({name})"
    for kind in (Summary, TrainGraph, OpDef, Interface):
        yield f"fields of {kind.__name__}", f"{len(dataclasses.fields(kind))}"
    pairs, rules = refusals()
    yield "pairs of options that are refused", f"{pairs} in {rules} rules"
    texts = [text for m in modules for _, _, text in documented_functions(m.tree)]
    verbs = sum(map(begins_with_a_verb, texts))
    yield "docstrings of functions that begin with a verb", f"{verbs:,} of {len(texts):,} ({verbs / len(texts):.0%})"
    yield "lines with a comment", f"{sum(m.comments for m in modules):,}"
    bare = sum(len(m.bare) for m in modules)
    yield "numeric constants of modules without a comment", f"{bare} of {sum(len(m.constants) for m in modules)}"
    for way in WAYS:
        found = trace_of(way)
        yield f"files of one convolution, {way}", f"{len(found.files)} ({found.functions:,} functions)"


def rooms() -> Iterator[str]:
    """Yield a line for each folder."""
    from testing.docstrings import begins_with_a_verb, documented_functions

    found = dict[str, list[Module]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = read_module(path)
        found.setdefault(module.room, []).append(module)
    yield "  code  files  no verb  bare constants  folder"
    for room, modules in sorted(found.items()):
        texts = [text for m in modules for _, _, text in documented_functions(m.tree)]
        nouns = sum(not begins_with_a_verb(text) for text in texts)
        lines, bare = sum(m.code_lines for m in modules), sum(len(m.bare) for m in modules)
        yield f"{lines:6}  {len(modules):5}  {nouns:7}  {bare:14}  {room or '(top)'}"


def words(folders: list[str]) -> Iterator[str]:
    """Yield the docstrings and constants below these folders or files that have no verb, or no comment."""
    from testing.docstrings import begins_with_a_verb, documented_functions

    for folder in folders:
        place = PACKAGE / folder
        for path in [place] if place.suffix else sorted(place.rglob("*.py")):
            module, name = read_module(path), path.relative_to(ROOT)
            for line, function, text in documented_functions(module.tree):
                if not begins_with_a_verb(text):
                    yield f"{name}:{line}: {function}: {text.splitlines()[0]}"
            yield from (f"{name}: {constant}: no comment" for constant in module.bare)


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", action="store_true", help="a line for each folder")
    parser.add_argument("--words", nargs="+", metavar="FOLDER", help="docstrings without a verb, bare constants")
    flags = parser.parse_args()
    if flags.rooms or flags.words:
        print("\n".join(words(flags.words) if flags.words else rooms()))
        return
    for name, value in figures():
        print(f"{name:52} {value}", flush=True)


if __name__ == "__main__":
    main()
