"""Graphs from their text form (`tinytrain_compile/ir/text.py` prints it), for tests of rewrites."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, cast

from tinytrain_compile.ir.types import Array, Attrs, Graph, Node, Phase, Quant, Value

_WORD = re.compile(r"\w+")
_NAMED = re.compile(r"(?:\w+=)?(?=\()")
"""What may stand in front of a value, see NamesOf."""
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"]""")
"""A whole string, or one character outside of strings."""


def parse_graph(
    text: str, attrs_of: Mapping[str, type[Attrs]], constants: Mapping[str, Array], nested: Mapping[str, type]
) -> Graph:
    """Return the inverse of `print_graph`.

    `attrs_of`: op name -> attribute type; `nested`: dataclasses inside attributes.
    """
    lines = text.splitlines()
    sections: dict[str, list[Value]] = {k: [] for k in ("inputs", "outputs", "parameters", "state", "accumulators")}
    updates: list[tuple[Value, Value]] = []
    notes: list[str] = []
    names = {"guard": "", "label": ""}
    nodes: list[Node] = []
    for line in lines[1:]:
        scanner = _Scanner(line)
        if scanner.skip("  "):
            nodes.append(_node(scanner, attrs_of, nested))
            continue
        scanner.skip(" ")
        key = scanner.word()
        scanner.skip(" ")
        if key == "update":
            old = scanner.value()
            scanner.skip(" <- ")
            updates.append((old, scanner.value()))
        elif key == "note":
            notes.append(str(scanner.literal()))
        elif key in names:
            names[key] = str(scanner.literal())
        else:
            sections[key].append(scanner.value())
    name: str = ast.literal_eval(lines[0].removeprefix("graph "))
    parts = {key: tuple(values) for key, values in sections.items()}
    whole = (name, tuple(nodes))
    said = {"updates": tuple(updates), "notes": tuple(notes)}
    return Graph(*whole, constants=constants, known_as={}, **names, **said, **parts)  # type: ignore[arg-type]


def _node(scanner: _Scanner, attrs_of: Mapping[str, type[Attrs]], nested: Mapping[str, type]) -> Node:
    outs = scanner.values()
    scanner.skip(" = ")
    name = str(scanner.literal())
    scanner.skip(" ")
    op = scanner.word()
    scanner.skip("(")
    ins = scanner.values()
    scanner.skip(") ")
    fields = cast("dict[str, object]", scanner.literal())
    scanner.skip(" ")
    origin, phase = cast("tuple[str, Phase]", scanner.literal())
    attrs = attrs_of[op](**{key: _restore(item, nested) for key, item in fields.items()})
    return Node(name, op, ins, outs, attrs, origin, phase)


class _Scanner:
    """Reads a line from left to right. Names may hold any mark of the format: only their closing quote ends them."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0

    def skip(self, mark: str) -> bool:
        """Tell whether the mark comes next; if so, it is passed."""
        found = self._line.startswith(mark, self._at)
        self._at += len(mark) if found else 0
        return found

    def word(self) -> str:
        """Return letters, digits and underscores."""
        match = _WORD.match(self._line, self._at)
        if match is None:
            raise ValueError(f"column {self._at}: no word in {self._line!r}")
        self._at = match.end()
        return match[0]

    def literal(self) -> object:
        """Return one Python literal: a string, tuple, or dictionary."""
        start, depth = self._at, 0
        for token in _TOKEN.finditer(self._line, start):
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token[0], 0)
            if depth == 0:
                self._at = token.end()
                return ast.literal_eval(self._line[start : self._at])
        raise ValueError(f"column {start}: no literal in {self._line!r}")

    def value(self) -> Value:
        """Return one value."""
        fields = cast("tuple[Any, ...]", self.literal())
        return Value(*fields[:5], quant=Quant(*fields[5]) if len(fields) > 5 else None)

    def values(self) -> tuple[Value, ...]:
        """Return values between semicolons, with or without names; none if there is no opening parenthesis."""
        found: list[Value] = []
        while (named := _NAMED.match(self._line, self._at)) is not None:
            self._at = named.end()
            found.append(self.value())
            self.skip("; ")
        return tuple(found)


def _restore(item: object, nested: Mapping[str, type]) -> object:
    if isinstance(item, dict):
        fields: dict[str, object] = {str(k): v for k, v in item.items()}  # type: ignore[misc]
        kind = str(fields.pop(""))
        if kind == "float":
            return float(str(fields["value"]))
        return nested[kind](**{key: _restore(value, nested) for key, value in fields.items()})
    return item
