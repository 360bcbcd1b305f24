"""Static stack bound: GCC's call graph of the generated objects plus a checked-in table for library functions.

The bound covers all that an API call may push, except the frames of exceptions and of callbacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinytrain_compile.errors import CompileError
from tinytrain_compile.verify.symbols import defined_functions

_NODE = re.compile(r'node: \{ title: "(?P<title>[^"]*)" label: "(?P<label>[^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "(?P<source>[^"]*)" targetname: "(?P<target>[^"]*)"')
_FRAME = re.compile(r"(\d+) bytes \(([a-z,]+)\)")
_INDIRECT = "__indirect_call"
CALLBACKS = (
    *("save", "load", "infer_rows", "train_step_rows", "accumulate_rows"),
    *("replay_add", "replay_draw", "stop_keep", "stop_restore", "store_open", "store_load", "store_save"),
    *("average_add", "average_take", "guard_check", "guard_settle"),
)
"""Functions of the API and of parts of the loop that take callbacks."""
_OF_STORE = {"store_load": ("no_piece", "load_piece"), "store_save": ("take_nothing", "save_piece")}
OWN_CALLBACKS = {**_OF_STORE, **dict.fromkeys(("guard_check", "guard_settle"), sum(_OF_STORE.values(), ()))}
"""Function of a part -> static functions that it passes to m_load and m_save as callbacks; those call the user's."""
_HINT = "please report this with the model"


@dataclass(frozen=True)
class StackBound:
    """The deepest path of calls: size and the functions on it, from the API down."""

    size_bytes: int
    path: tuple[str, ...]


@dataclass
class CallGraph:
    """Frames and callees by function; a function that is static in its file is named `file:function`."""

    frames: dict[str, int] = field(default_factory=dict[str, int])
    callees: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    dynamic: set[str] = field(default_factory=set[str])


def read_call_graph(objects: Iterable[Path]) -> CallGraph:
    """Return the union of the .ci files that GCC (-fcallgraph-info=su) wrote beside the objects."""
    graph = CallGraph()
    for path in objects:
        text = path.with_suffix(".ci").read_text(encoding="utf-8")
        for match in _NODE.finditer(text):
            frame = _FRAME.search(match["label"])
            if frame is None:
                continue  # defined elsewhere
            graph.frames[match["title"]] = int(frame[1])
            if frame[2] == "dynamic":
                graph.dynamic.add(match["title"])
        called = dict[str, None]()
        for match in _EDGE.finditer(text):
            graph.callees.setdefault(match["source"], set()).add(match["target"])
            called[match["target"]] = None
        missing = [name for name in called if ":" in name and name not in graph.frames]
        twins = _same_code(path) if missing else {}
        for name in missing:
            unit, _, own = name.rpartition(":")
            others = (title for twin in twins.get(own, ()) for title in (f"{unit}:{twin}", twin))
            known = next((title for title in others if title in graph.frames), None)
            if known is not None:
                graph.frames[name], graph.callees[name] = 0, {known}
    return graph


def _same_code(path: Path) -> dict[str, list[str]]:
    """Return function -> others at its address: GCC keeps one of several equal functions, and records only that."""
    at = dict[tuple[int, int], list[str]]()
    for function in defined_functions(path):
        at.setdefault((function.section, function.address), []).append(function.name)
    return {name: [other for other in names if other != name] for names in at.values() for name in names}


def stack_bound(graph: CallGraph, prefix: str, library: Mapping[str, int], extra: Iterable[str] = ()) -> StackBound:
    """Return the deepest path from any external function of the model.

    extra: library helpers that the assembler text calls but the call graph does not show (switch tables); any
    function may call them. Errors (E0601): recursion, a frame of variable size, an unknown callee, a call through
    a pointer outside of functions that take callbacks.
    """
    search = _StackSearch(graph, library, max((_known(library, name) for name in extra), default=0))
    roots = sorted(name for name in graph.frames if ":" not in name)
    calling = re.compile(rf"{prefix}_(plan_\d+_)?({'|'.join(CALLBACKS)})")
    bounds = [search.bound(name, calling.fullmatch(name) is not None) for name in roots]
    own = {f"{prefix}_{root}": names for root, names in OWN_CALLBACKS.items()}
    bounds = [_under(bound, search, own.get(name, ())) for name, bound in zip(roots, bounds, strict=True)]
    return max(bounds, key=lambda bound: bound.size_bytes, default=StackBound(0, ()))


def _under(bound: StackBound, search: _StackSearch, callbacks: Iterable[str]) -> StackBound:
    """Return the bound of a function with the deepest of the callbacks that it passes on, wherever they are called."""
    below = [search.bound(name, True) for callback in callbacks for name in search.static(callback)]
    deepest = max(below, key=lambda one: one.size_bytes, default=StackBound(0, ()))
    return StackBound(bound.size_bytes + deepest.size_bytes, (*bound.path, *deepest.path))


def _known(library: Mapping[str, int], name: str) -> int:
    if name not in library:
        raise _error(f"{name} has no entry in the table of library stacks")
    return library[name]


def _error(what: str) -> CompileError:
    return CompileError("E0601", "stack", what, _HINT)


class _StackSearch:
    """Depth-first search with results kept per function."""

    def __init__(self, graph: CallGraph, library: Mapping[str, int], extra_bytes: int) -> None:
        self._graph, self._library, self._extra_bytes = graph, library, extra_bytes
        self._done: dict[tuple[str, bool], StackBound] = {}

    def static(self, function: str) -> list[str]:
        """Return the names that static functions of this name have in the graph, one for each file."""
        return sorted(name for name in self._graph.frames if name.endswith(f":{function}"))

    def bound(self, name: str, callbacks: bool, path: tuple[str, ...] = ()) -> StackBound:
        if name in path:
            raise _error(f"recursion: {' > '.join((*path, name))}")
        if (name, callbacks) not in self._done:
            self._done[name, callbacks] = self._compute(name, callbacks, (*path, name))
        return self._done[name, callbacks]

    def _compute(self, name: str, callbacks: bool, path: tuple[str, ...]) -> StackBound:
        if name == _INDIRECT and callbacks:
            return StackBound(0, ("callback",))
        if name == _INDIRECT:
            raise _error(f"call through a pointer: {' > '.join(path[:-1])}")
        if name in self._graph.dynamic:
            raise _error(f"{name} has a stack frame of variable size")
        if name not in self._graph.frames:
            return StackBound(_known(self._library, name), (name,))
        below = [self.bound(callee, callbacks, path) for callee in sorted(self._graph.callees.get(name, ()))]
        deepest = max(below, key=lambda bound: bound.size_bytes, default=StackBound(0, ()))
        size = self._graph.frames[name] + max(deepest.size_bytes, self._extra_bytes)
        return StackBound(size, (name, *deepest.path))
