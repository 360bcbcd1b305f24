"""Run a benchmark, or list them all.

    python -m benchmarks                    list: a name and a line for each, by subject
    python -m benchmarks NAME [ARGS ...]    run one; ARGS are its own (try --help)

`make bench NAME=.. ARGS=..` does the same after setting up. A benchmark is a module in a folder of benchmarks/ with a
function `main` that takes no arguments; the first line of its docstring is its line in the list. Modules without one
are shared by others.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Benchmark:
    """A module that can be run: its name here, its subject (a folder), and its first line."""

    name: str
    subject: str
    line: str

    @property
    def module(self) -> str:
        """Full name of the module."""
        return f"{HERE.name}.{self.subject}.{self.name.replace('-', '_')}"


def benchmarks() -> dict[str, Benchmark]:
    """Find all of them by name, without importing any."""
    found = dict[str, Benchmark]()
    for path in sorted(HERE.glob("*/*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        mains = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        if mains and not mains[0].args.args:
            name = path.stem.replace("_", "-")
            if name in found:
                raise ValueError(f"two benchmarks are called {name}: {found[name].subject} and {path.parent.name}")
            found[name] = Benchmark(name, path.parent.name, (ast.get_docstring(module) or "").partition("\n")[0])
    return found


def listed(known: Mapping[str, Benchmark]) -> str:
    """List names and lines by subject."""
    width = max(map(len, known))
    lines = ["python -m benchmarks NAME [ARGS ...]", ""]
    for subject in sorted({one.subject for one in known.values()}):
        own = [one for one in known.values() if one.subject == subject]
        lines += [subject, *(f"  {one.name:{width}}  {one.line}" for one in own), ""]
    return "\n".join(lines[:-1])


def main() -> None:
    """Run what the command line names."""
    known, arguments = benchmarks(), sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listed(known))
        return
    name = arguments[0].replace("_", "-")
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "without a name all are listed"
        sys.exit(f"no benchmark is called {arguments[0]}; {hint}")
    sys.argv = [f"python -m benchmarks {name}", *arguments[1:]]
    sys.exit(import_module(known[name].module).main())


if __name__ == "__main__":
    main()
