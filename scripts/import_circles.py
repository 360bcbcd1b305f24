"""Count import circles, imports that run upward, floors and files by folder (`make check`).

Two modules are in one circle if each reaches the other by imports. Imports inside functions count; those under
TYPE_CHECKING do not. The same is asked of the rooms (modules and folders) of every folder: if one room imports another,
directly or by rooms between, the other never imports it. So every folder has floors, and no import runs upward.

usage: python scripts/import_circles.py [--folders]

--folders: print the rooms of each folder by floors. Exit code 1 if there is a circle.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "compiler" / "tinytrain_compile", ROOT / "benchmarks", ROOT / "testing")
MOST = 20
"""Files of a folder, unless it is a flat registry."""
REGISTRIES = {
    "tinytrain_compile.frontend.operators": "a family of operators a file",
    "tinytrain_compile.ops": "an operator a file",
    "tinytrain_compile.ops.int8": "an operator a file",
    "tinytrain_compile.lower.kernels.float32": "a kernel a file",
    "tinytrain_compile.lower.kernels.int8": "a kernel a file",
    "testing.ops": "an operator a file",
}
Graph = Mapping[str, frozenset[str]]


def modules_of(package: Path) -> dict[str, Path]:
    """Return the files of a package by module name; `__init__` stands for its folder."""
    found: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each imported module with the names taken from it, but for those under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, tuple(alias.name for alias in node.names)
        yield from imports_of(node)


def graph_of(modules: Mapping[str, Path]) -> Graph:
    """Return which modules each module imports. A name that is a module counts as that module."""
    graph: dict[str, frozenset[str]] = {}
    for module, path in modules.items():
        found = set[str]()
        for name, taken in imports_of(ast.parse(path.read_text())):
            parts = {f"{name}.{each}" for each in taken} & modules.keys()
            found |= parts if parts and len(parts) == len(taken) else parts | ({name} & modules.keys())
        graph[module] = frozenset(found - {module})
    return graph


def circles_of(graph: Graph) -> list[tuple[str, ...]]:
    """Return the sets of two or more nodes that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), list(graph[start])
        while left:
            node = left.pop()
            if node not in seen:
                seen.add(node)
                left.extend(graph.get(node, ()))
        reach[start] = seen
    both = {tuple(sorted({b for b in reach[a] if a in reach.get(b, ())} | {a})) for a in graph if a in reach[a]}
    return sorted(both)


def rooms_of(graph: Graph, folder: str) -> Graph:
    """Return the imports among the rooms of a folder: its modules, and its folders as a whole."""
    depth, arrows = folder.count(".") + 2, defaultdict[str, set[str]](set)
    for module, imported in graph.items():
        if not module.startswith(f"{folder}."):
            continue
        room = ".".join(module.split(".")[:depth])
        arrows[room] |= {
            other for name in imported if name.startswith(f"{folder}.") and (other := ".".join(name.split(".")[:depth]))
        } - {room}
    return {room: frozenset(others) for room, others in arrows.items()}


def floors_of(rooms: Graph) -> list[list[str]]:
    """Return rooms by floors: each stands on those below it. Empty if there is a circle."""
    sorter, floors = TopologicalSorter(rooms), list[list[str]]()
    try:
        sorter.prepare()
    except CycleError:
        return []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        floors.append(ready)
        sorter.done(*ready)
    return floors


def folders_of(modules: Mapping[str, Path]) -> list[str]:
    """Return the folders that hold modules."""
    return [name for name, path in modules.items() if path.name == "__init__.py"] or ["."]


def report(package: Path, folders: bool) -> int:
    """Print the figures of a package; return how many circles and crowded folders there are."""
    modules = modules_of(package)
    graph = graph_of(modules)
    circles = circles_of(graph)
    print(f"{package.name}: {len(modules)} files, {len(circles)} circles of modules")
    faults = len(circles)
    for circle in circles:
        print(f"  circle of {len(circle)}: {', '.join(circle)}")
    for folder in folders_of(modules):
        rooms, files = rooms_of(graph, folder), [path for path in modules.values() if _in(path, modules[folder])]
        upward = circles_of(rooms)
        faults += len(upward) + (len(files) > MOST and folder not in REGISTRIES)
        for circle in upward:
            print(f"  {folder}: rooms that import each other: {', '.join(_short(circle))}")
        if len(files) > MOST:
            print(f"  {folder}: {len(files)} files ({REGISTRIES.get(folder, f'more than {MOST}')})")
        if folders and len(rooms) > 1:
            floors, arrows = floors_of(rooms), sum(map(len, rooms.values()))
            print(f"  {folder}: {len(files)} files, {len(rooms)} rooms, {len(floors)} floors, {arrows} arrows")
            for number, floor in enumerate(floors):
                print(f"    {number}  {' '.join(_short(floor))}")
    return faults


def _in(path: Path, init: Path) -> bool:
    return path.parent == init.parent


def _short(names: Iterable[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in names]


def main() -> int:
    """Print all figures; 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", action="store_true")
    given = parser.parse_args()
    return int(sum(report(package, given.folders) for package in SOURCES) > 0)


if __name__ == "__main__":
    sys.exit(main())
