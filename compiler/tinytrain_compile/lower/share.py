"""Merging of kernels that differ only in their numbers into one function, which reads its numbers from a table.

Two layers of one kind have the same loops with other extents, strides and zero points: as C text, the same words with
other integers. So this needs no knowledge of operators, and a shared kernel computes the same as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.ir.kernels import Kernel, KernelSet

_NUMBER = re.compile(r"(?:(?<=[-+*<>=?:,] )-|(?<=\()-|(?<![\w.]))(?<!/ )(?<!% )(?<!>> )(?<!<< )\d+(?![\w.])")
"""An integer constant with its sign; not one that divides or shifts, which is slow if it is not a constant."""
_FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
"""Factors by which a number may be a multiple of another one, plus a constant."""

Column = tuple[int, ...]
"""One number of a function: its value for every kernel that shares the function."""


@dataclass(frozen=True)
class _Parsed:
    """A kernel as text without its comment, name and numbers, and these numbers in order."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]


def share_kernels(kernels: KernelSet, prefix: str) -> KernelSet:
    """Return the calls with fewer functions: small kernels of the same words share one, with tables of numbers."""
    families: dict[object, list[Kernel]] = {}
    for kernel in kernels.kernels:
        key = _parsed(kernel).words if kernel.small else kernel.name
        families.setdefault(key, []).append(kernel)
    functions: list[Kernel] = []
    names: dict[str, tuple[str, str]] = {}  # kernel -> (function, table or "")
    tables: dict[str, Column] = dict(kernels.tables)
    taken = {kernel.name for kernel in kernels.kernels}
    for family in families.values():
        if len(family) == 1:
            functions.append(family[0])
            continue
        name = _shared_name(family[0].name, prefix, taken)
        function, rows = _shared(family, name)
        functions.append(function)
        for kernel, row in zip(family, rows, strict=True):
            table = f"{prefix}_n_{kernel.name.removeprefix(f'{prefix}_')}" if row else ""
            names[kernel.name] = name, table
            if row:
                tables[table] = row
    shared = {node: names[kernel] for node, kernel in kernels.calls.items() if kernel in names}
    calls = {node: shared[node][0] if node in shared else kernel for node, kernel in kernels.calls.items()}
    numbers = {**kernels.numbers, **{node: table for node, (_, table) in shared.items() if table}}
    return KernelSet(tuple(functions), calls, numbers, tables, kernels.transposed, kernels.turns)


def _parsed(kernel: Kernel) -> _Parsed:
    text = kernel.source.partition("*/\n")[2].replace(f"{kernel.name}(", "(", 1)
    return _Parsed(tuple(_NUMBER.split(text)), tuple(int(number) for number in _NUMBER.findall(text)))


def _shared_name(first: str, prefix: str, taken: set[str]) -> str:
    """Return a name by operator; if that has several such functions, by the first kernel of each."""
    kernel = first.removeprefix(f"{prefix}_").removesuffix("_small")
    operator, *size = re.split(r"_(?=\d)", kernel, maxsplit=1)
    name = f"{prefix}_{operator}_shared"
    if name in taken:
        name = "_".join((prefix, operator, "like", *size))
    taken.add(name)
    return name


def _shared(family: Sequence[Kernel], name: str) -> tuple[Kernel, list[Column]]:
    """Return the function of kernels with the same words, and the numbers of each."""
    first = family[0]
    words = _parsed(first).words
    columns: list[Column] = list(zip(*(_parsed(kernel).numbers for kernel in family), strict=True))
    letter = "n" if not re.search(r"\bn\d+\b|\bnumbers\b", first.source) else "n_"
    basis = _basis(columns)
    texts = [_text(column, basis, letter) for column in columns]
    body = "".join(part for pair in zip(words, [*texts, ""], strict=True) for part in pair)
    head, _, rest = body.partition(") {\n")
    loads = "".join(f"    const int32_t {letter}{i} = numbers[{i}];\n" for i in range(len(basis)))
    signature = head.replace("(", f"{name}(", 1) + (", const int32_t *restrict numbers)" if basis else ")")
    comment = first.source.partition("*/\n")[0]
    shared = f"{len(family)} kernels share it and differ in `numbers`: this is the first. "
    source = f"{comment}{shared}*/\n{signature} {{\n{loads}{rest}"
    rows = [tuple(column[i] for column in basis) for i in range(len(family))]
    return replace(first, name=name, source=source, declaration=f"{signature};"), rows


def _basis(columns: Iterable[Column]) -> list[Column]:
    """Return columns from which all others follow, the small ones first."""
    basis: list[Column] = []
    for column in sorted(set(columns), key=lambda c: (sum(map(abs, c)), c)):
        if len(set(column)) > 1 and _derived(column, basis) is None:
            basis.append(column)
    return basis


def _derived(column: Column, basis: Sequence[Column]) -> tuple[int, int, int] | None:
    """Return (index, factor, constant) with column = basis[index] * factor + constant and the least constant."""
    found: list[tuple[int, int, int]] = []
    for factor in _FACTORS:
        for index, base in enumerate(basis):
            rest = {value - factor * part for value, part in zip(column, base, strict=True)}
            if len(rest) == 1:
                found.append((index, factor, rest.pop()))
    return min(found, key=lambda way: (abs(way[2]), way[1], way[0]), default=None)


def _text(column: Column, basis: Sequence[Column], letter: str) -> str:
    """Return a number as C: a constant if all kernels agree."""
    if len(set(column)) == 1:
        return str(column[0])
    way = _derived(column, basis)
    assert way is not None
    index, factor, constant = way
    text = f"{letter}{index}" if factor == 1 else f"{letter}{index} * {factor}"
    if constant:
        text += f" {'+' if constant > 0 else '-'} {abs(constant)}"
    return text if text.isidentifier() else f"({text})"
