"""Result of lower/ for emit/: C functions, and the one that each node calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """One C function. Parameters, in order: inputs, outputs that do not alias an input, scratch if it needs any.

    parts: functions that it calls (those of a stream's layers), with which its source begins. Their names, and those of
    other definitions, begin with its own. turns: of its longest loop, if a call may compute some of them: then the
    first turn and the end precede its scratch; 0: one call computes all.
    """

    name: str
    source: str
    declaration: str
    scratch_dtype: str = ""
    """Element type of its scratch parameter; "" if it has none."""
    small: bool = False
    """True if made for small code: compiled with -Os, and may take a table of numbers as its last parameter."""
    parts: tuple[Kernel, ...] = ()
    turns: int = 0
    numbers: tuple[str, ...] = ()
    """Attributes of its node that it reads from a table, its last parameter."""

    @property
    def body(self) -> str:
        """Its text without the leading comment and without its name."""
        return self.source.partition("*/\n")[2].replace(f"{self.name}(", "(", 1)

    def named(self, name: str) -> Kernel:
        """Return the function under another name."""

        def renamed(text: str) -> str:
            if self.parts:
                return re.sub(rf"\b{self.name}(?=[_(])", name, text)
            return text.replace(f"void {self.name}(", f"void {name}(", 1)

        parts = tuple(part.named(renamed(f"{part.name}(")[:-1]) for part in self.parts)
        return replace(self, name=name, source=renamed(self.source), declaration=renamed(self.declaration), parts=parts)


@dataclass(frozen=True)
class KernelSet:
    """All distinct kernels, and the calls of nodes: node name -> kernel name ("" for a view).

    numbers: node -> the table that its call passes to a kernel that takes one; tables: by C name.
    transposed: nodes that read a copy of their frozen 1x1 weight, with its channel axes swapped.
    turns: node -> number of its kernel's turns, if a call may compute some of them; the number depends on the node.
    """

    kernels: tuple[Kernel, ...]
    calls: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    transposed: frozenset[str] = frozenset()
    turns: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def functions(self) -> tuple[Kernel, ...]:
        """All C functions, called ones before their callers: each once, whatever its names."""
        names: dict[str, str] = {}  # by text without comment and name
        parts: dict[str, Kernel] = {}
        kernels: list[Kernel] = []
        for kernel in self.kernels:
            source = kernel.source.removeprefix("".join(part.source for part in kernel.parts))
            for part in kernel.parts:
                name = names.setdefault(part.body, part.name)
                parts.setdefault(name, part)
                source = source.replace(f"{part.name}(", f"{name}(")
            kernels.append(replace(kernel, source=source))
        return (*parts.values(), *kernels)

    def only(self, nodes: Container[str]) -> KernelSet:
        """Return the calls of these nodes, and all kernels."""
        of_nodes: list[dict[str, Any]] = [
            {node: of for node, of in known.items() if node in nodes}
            for known in (self.calls, self.turns, self.numbers)
        ]
        calls, turns, numbers = of_nodes
        return replace(self, calls=calls, turns=turns, numbers=numbers, tables=_read(self.tables, numbers))

    def updated(self, other: KernelSet) -> KernelSet:
        """Return these calls, or those of `other` for nodes that it has; kernels that are not called are left out."""
        calls = {**self.calls, **{node: kernel for node, kernel in other.calls.items() if node in self.calls}}
        used = set(calls.values())
        kernels = {kernel.name: kernel for kernel in (*self.kernels, *other.kernels) if kernel.name in used}
        turns = {node: count for node, count in self.turns.items() if node not in other.calls}
        turns |= {node: count for node, count in other.turns.items() if node in calls}
        numbers = {node: table for node, table in self.numbers.items() if node not in other.calls}
        numbers |= {node: table for node, table in other.numbers.items() if node in calls}
        tables, transposed = _read({**self.tables, **other.tables}, numbers), self.transposed | other.transposed
        return KernelSet(tuple(kernels.values()), calls, numbers, tables, transposed, turns)

    def joined(self, other: KernelSet) -> KernelSet:
        """Return the calls and kernels of both."""
        calls, transposed = {**self.calls, **other.calls}, self.transposed | other.transposed
        numbers, tables = {**self.numbers, **other.numbers}, {**self.tables, **other.tables}
        turns = {**self.turns, **other.turns}
        return KernelSet((*self.kernels, *other.kernels), calls, numbers, tables, transposed, turns)


def _read(tables: Mapping[str, tuple[int, ...]], numbers: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the tables that calls read."""
    read = set(numbers.values())
    return {name: row for name, row in tables.items() if name in read}


class KernelCache:
    """Cache of kernels, by the data that determine their code. It lives as long as the caller of lower/ that owns it.

    limit: most kernels; the least recently used one makes room for the next.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._kernels: dict[object, Kernel] = {}

    def get(self, key: object, make: Callable[[], Kernel]) -> Kernel:
        """Return the kernel kept for this key, or else keep and return that of `make`."""
        kernel = self._kernels.pop(key, None) or make()
        self._kernels[key] = kernel  # it is the most recent now
        if len(self._kernels) > self._limit:
            del self._kernels[next(iter(self._kernels))]
        return kernel


@dataclass(frozen=True)
class Copied:
    """A second copy of a frozen weight in flash, in the layout that its data gradient reads."""

    layer: str
    size_bytes: int


@dataclass(frozen=True)
class CodeChoice:
    """Choice of code for the nodes of a step, and its limit on flash.

    variant: "speed", "size" or "mixed". small_nodes: nodes with small kernels. budget_bytes: limit for code and
    constants. other_bytes: of code and constants of the other variant, if both were compared.
    """

    variant: str = "speed"
    small_nodes: tuple[str, ...] = ()
    budget_bytes: int | None = None
    copies: tuple[Copied, ...] = ()
    other_bytes: int | None = None
