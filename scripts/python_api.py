"""Print signatures and docstrings of the public Python names, for docs/python-api.md (`make docs`).

python scripts/python_api.py compile from_torch     # functions
python scripts/python_api.py Twin                   # a class: what it is, then its methods and properties
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tinytrain_compile as tt

WIDTH = 116
OBJECTS = {"Compiled": "compiled", "Twin": "twin", "Deltas": "deltas", "CompileError": "problem"}
"""How the page calls an object of each class."""


def signature(called: str, call: Any, *, own: bool) -> str:
    """Return a call with its arguments without types, and the type of its result. own: leave out `self`."""
    found = inspect.signature(call)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()][own:]
    arguments = str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty)).replace("'", '"')
    result = str(found.return_annotation).strip("'")
    line = f"{called}{arguments}" + ("" if result == "None" else f"  ->  {result}")
    return "\n".join(textwrap.wrap(line, WIDTH, subsequent_indent=" " * (len(called) + 1), break_on_hyphens=False))


def described(head: str, value: Any) -> str:
    """Return a line and the docstring below it. The list of options that `compile` ends with is docs/options.md."""
    text = (inspect.getdoc(value) or "").partition("\n\nMain options:")[0]
    text = re.sub(r"\n\nExample:\n\n(?:    .*\n|\n)*", "\n\n", text)
    return f"{head}\n{textwrap.indent(text, '    ')}"


def entries(name: str) -> Iterator[str]:
    """Yield what a function, or each member of a class, is and does."""
    value = getattr(tt, name)
    if not inspect.isclass(value):
        yield described(signature(f"tt.{name}", value, own=False), value)
        return
    for member, what in vars(value).items():
        if member.startswith("_"):
            continue
        if isinstance(what, classmethod):
            yield described(signature(f"tt.{name}.{member}", getattr(value, member), own=False), what)
        elif inspect.isfunction(what):
            yield described(signature(f"{OBJECTS[name]}.{member}", what, own=True), what)
        elif isinstance(what, property):
            yield described(f"{OBJECTS[name]}.{member}", what)


def main() -> None:
    """Print the names that are given, each in a block."""
    print("\n".join("```text\n" + "\n\n".join(entries(name)) + "\n```\n" for name in sys.argv[1:]).rstrip("\n"))


if __name__ == "__main__":
    main()
