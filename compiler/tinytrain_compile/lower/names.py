"""C names of kernels and their loops' variables. Names have no effect: C compilers generate the same code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import combinations
from typing import cast

from tvm import s_tir, tirx
from tvm.ir import Expr, Var

from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.tir_walk import Tir, children
from tinytrain_compile.ops.names import operands

# ---- names of kernels ------------------------------------------------------------------------------------------------
# C names of kernels: operator and size of the result; kernels that share these also get their differences.

_ORDINAL = re.compile(r"_v\d+(?=(_[a-z]+)*$)")
_ENDINGS = re.compile(r"(_turned)?(_external)?(_small)?$")
_FIRST = ("kernel", "strides", "groups", "operand1")
"""Facets that a reader would name first: those of them that tell kernels apart are used before any others."""
_LONGEST = 4
"""Most numbers of an attribute that a name lists."""

Facet = tuple[str, str]
"""Property that may tell a kernel from others: a key, and its value as a part of a C name."""


def name_kernels(kernels: KernelSet, nodes: Mapping[str, Node]) -> KernelSet:
    """Return the kernels; those whose names differ only in a number are renamed by their differences.

    nodes: by kernel, a node that calls it.
    """
    families: dict[str, list[str]] = {}
    for kernel in kernels.kernels:
        families.setdefault(_ORDINAL.sub("", kernel.name), []).append(kernel.name)
    names: dict[str, str] = {}
    for stem, family in families.items():
        endings = _differences([dict(_facets(nodes[name])) for name in family])
        for name, ending in zip(family, endings, strict=True):
            names[name] = _ENDINGS.sub(lambda found, text=ending: f"{text}{found[0]}", stem, count=1)
    return replace(
        kernels,
        kernels=tuple(kernel.named(names[kernel.name]) for kernel in kernels.kernels),
        calls={node: names[kernel] for node, kernel in kernels.calls.items()},
    )


def _differences(family: Sequence[dict[str, str]]) -> list[str]:
    """Return a suffix for every member: the fewest facets that tell all apart, or a number if none do."""
    if len(family) == 1:
        return [""]
    keys = [key for key in family[0] if len({member.get(key) for member in family}) > 1]
    plain = [key for key in keys if key in _FIRST]
    choices = (chosen for few in (plain, keys) for count in (1, 2, 3, 4) for chosen in combinations(few, count))
    for chosen in choices:
        endings = ["".join(f"_{member[key]}" for key in chosen if member.get(key)) for member in family]
        if len(set(endings)) == len(family):
            return endings
    return [f"_{number}" for number in range(1, len(family) + 1)]


def _facets(node: Node) -> Iterator[Facet]:
    """Yield the facets of a node."""
    attributes = dict(_attributes(node.attrs))
    yield from ((key, attributes.pop(key)) for key in _FIRST if key in attributes)
    for number, (name, value) in enumerate(operands(node).items(), 1):
        word = "from" if number == 1 else f"with_{name}"
        yield f"operand{number}", f"{word}_{'x'.join(map(str, value.shape)) or 'scalar'}"
    yield from attributes.items()
    for index, value in enumerate((*node.inputs, *node.outputs)):
        yield f"type{index}", value.dtype
    same = [str(node.inputs.index(value)) for value in node.inputs]
    yield "same", f"same{''.join(same)}"


def _attributes(attrs: object) -> Iterator[Facet]:
    """Yield every attribute that is short, those of nested ones included."""
    if not is_dataclass(attrs):
        return
    for field in fields(attrs):
        value: object = getattr(attrs, field.name)
        if is_dataclass(value):
            yield from _attributes(value)
            continue
        if isinstance(value, bool):
            yield field.name, field.name if value else ""
        elif text := _text(value):
            yield field.name, f"{field.name}_{text}"


def _text(value: object) -> str:
    """Return an attribute's value as letters and digits; "" if that would be long or meaningless."""
    if isinstance(value, tuple | list):
        parts = [_text(item) for item in cast("Sequence[object]", value)]
        return "x".join(parts) if 0 < len(parts) <= _LONGEST and all(parts) else ""
    if isinstance(value, str):
        return value.lower() if value.isalnum() else ""
    if isinstance(value, int | float):
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return text.replace("-", "m").replace("+", "").replace(".", "p")
    return "none" if value is None else ""


# ---- words for loops -------------------------------------------------------------------------------------------------
# Words for loops of a kernel, for the printer: from the axes of the stages that its schedule computes. Kernels have
# short names for axes (`o`, `k0`), and TVM renames loops that a schedule moves (`ax6`). But every stage still tells
# which loop runs over which of its axes. Names have no effect: the C compiler generates the same code.

FALLBACK = "i"
_WORDS = {
    "b": "sample",
    "y": "row",
    "x": "column",
    "q": "column",
    "p": "phase_row",
    "o": "channel",
    "c": "channel",
    "j": "column",
    "step": "step",
    "odd": "odd",
    "half": "half",
    "phase": "phase",
    "position": "position",
    "run": "tap_column",
    "row": "row",
    "column": "column",
    "out": "out_channel",
}
"""Axis -> word for it, in stages other than those below."""
_TAPS = ("tap_row", "tap_column", "in_channel")
_PIXEL = ("sample", "row", "column")
_STAGES: dict[tuple[str, ...], tuple[str, ...]] = {
    # convolutions that read their window in place or from gathered patches
    ("b", "y", "p", "q", "x", "o", "k0", "k1", "k2"): (
        *("sample", "row", "phase_row", "phase_column", "column", "channel"),
        *_TAPS,
    ),
    ("b", "y", "p", "x", "q", "o"): ("sample", "row", "phase_row", "column", "phase_column", "channel"),
    ("b", "y", "p", "x", "q", "o", "i", "j", "k0", "k1"): (
        *("sample", "row", "phase_row", "column", "phase_column", "channel", "row", "column"),
        *("tap_row", "tap_column"),
    ),
    ("b", "y", "p", "x", "q", "c"): ("sample", "row", "phase_row", "column", "phase_column", "channel"),
    ("b", "y", "p", "tile", "q", "c", "i", "k0", "k1"): (
        *("sample", "row", "phase_row", "column", "phase_column", "channel", "column"),
        *("tap_row", "tap_column"),
    ),
    ("b", "c", "y", "x"): ("sample", "channel", "row", "column"),
    ("c", "_p", "_q", "r", "s"): ("channel", "phase_row", "phase_column", "tap_row", "tap_column"),
    ("c", "p", "q", "r", "s"): ("channel", "phase_row", "phase_column", "tap_row", "tap_column"),
    ("b", "y", "x", "o", "k0", "k1", "k2"): (*_PIXEL, "channel", *_TAPS),
    ("b", "y", "x", "i", "k0", "k1", "k2"): (*_PIXEL, "in_channel", "tap_row", "tap_column", "out_channel"),
    ("b", "y", "x", "k"): (*_PIXEL, "term"),
    ("b", "y", "x", "i", "j", "k"): ("sample", "row", "column", "tap_row", "position", "in_channel"),
    ("out", "r", "s", "i", "k0", "k1", "k2"): ("out_channel", *_TAPS, "sample", "row", "column"),
    ("p", "q", "o", "first", "second", "f"): ("phase_row", "phase_column", "channel", "outer", "inner", "tap"),
    # windows of pooling
    ("b", "y", "q", "c", "k0", "k1"): ("sample", "row", "column", "channel", "tap_row", "tap_column"),
    # products, and gradients of weights as products
    ("i", "j"): ("row", "column"),
    ("i", "j", "k0"): ("row", "column", "term"),
    ("g", "i", "j", "k0"): ("matrix", "row", "column", "term"),
    ("i", "j", "p", "q", "k0", "k1", "k2"): ("row", "column", "row_in_tile", "column_in_tile", "step", "odd", "half"),
    ("i", "step", "row_in_tile", "odd", "half"): ("row", "step", "row_in_tile", "odd", "half"),
    ("i", "b", "step", "row_in_tile", "odd", "half"): ("row", "sample", "step", "row_in_tile", "odd", "half"),
    ("j", "b", "phase", "step", "column_in_tile", "odd", "half"): (
        "column",
        "sample",
        "phase",
        "step",
        "column_in_tile",
        "odd",
        "half",
    ),
    ("i", "r", "run", "j", "p", "q", "k0", "k1", "k2", "k3"): (
        *("row", "tap_row", "tap_column", "column", "row_in_tile", "column_in_tile"),
        *("sample", "step", "odd", "half"),
    ),
    ("o", "r", "j"): ("out_channel", "tap_row", "column"),
    ("o", "r", "run", "c"): ("out_channel", "tap_row", "tap_column", "column"),
    # by channel, by row
    ("i", "c"): ("pixel", "channel"),
    ("c", "k0"): ("channel", "pixel"),
    ("o", "c", "i"): ("outer", "class_index", "inner"),
    ("o", "i", "k0"): ("outer", "inner", "class_index"),
    ("o", "i", "j0"): ("outer", "inner", "class_index"),
    ("o", "i"): ("channel", FALLBACK),
    ("row", "s0"): ("row", "term"),
    ("b",): (FALLBACK,),  # a byte of a mask
    ("o",): (FALLBACK,),  # one number, not a channel
}
"""Axes of a stage, in order -> a word for each."""
_BY_RANK = {
    1: ("row",),
    2: ("row", "column"),
    3: ("outer", "row", "column"),
    4: ("sample", "row", "column", "channel"),
}
_WEIGHT = ("out_channel", "tap_row", "tap_column", "in_channel")
"""Words for a weight in stages whose axes are only numbered: i0, i1 ..."""


def loop_names(function: tirx.PrimFunc) -> LoopNames:
    """Return the names of loops of a scheduled function, before it is lowered."""
    found: dict[Var, tuple[int, str]] = {}
    stages = [
        ([str(axis.var.name) for axis in b.iter_vars], b, values) for b, values in _scheduled_stages(function.body)
    ]
    weight = any(axes[:1] == ["v_out"] for axes, _, _ in stages)  # the result is a weight's gradient, not an image
    for axes, block, values in stages:
        result = str(block.name_hint).startswith("out")
        words = _WEIGHT if weight and result and len(axes) == len(_WEIGHT) else _words_of(axes, str(block.name_hint))
        for var, word in _loops_of(words, values):
            rank = 0 if result else 1
            if var not in found or rank < found[var][0]:
                found[var] = rank, word
    return LoopNames({var: word for var, (_, word) in found.items()})


class LoopNames:
    """Loop variable -> word for it; looked up in the order of printing.

    If TVM cuts a loop in pieces, the new variables have the first piece's name: they get the same word. A loop that a
    kernel writes itself, not as a stage with axes, has the word as its name.
    """

    def __init__(self, words: dict[Var, str] | None = None) -> None:
        self._words = words or {}
        self._latest: dict[str, str] = {}

    def of(self, var: Var) -> str:
        """Return the word, or FALLBACK if there is none."""
        name = str(var.name)
        word = self._words.get(var) or self._latest.get(name) or (name if name in _PIXEL else FALLBACK)
        self._latest[name] = word
        return word


def _scheduled_stages(node: Tir) -> Iterator[tuple[s_tir.SBlock, Sequence[Expr]]]:
    """Yield every stage of a scheduled body, with its axes as expressions of loops."""
    if isinstance(node, s_tir.SBlockRealize):
        yield node.block, list(node.iter_values)
        yield from _scheduled_stages(node.block.body)
    else:
        for child in children(node):
            yield from _scheduled_stages(child)


def _words_of(axes: Sequence[str], stage: str) -> tuple[str, ...]:
    """Return words for the axes of a stage."""
    names = tuple(name.removeprefix("v_").removesuffix("_o") if name != "v_o" else "o" for name in axes)
    if names in _STAGES:
        return _STAGES[names]
    numbered = [name for name in names if name[:1] in ("i", "v") and name[1:].isdigit()]
    if not numbered or numbered != list(names[: len(numbered)]):
        return tuple(_WORDS.get(name, FALLBACK) for name in names)
    if stage == "rows" and len(names) == 3:
        return "sample", "row", "position"
    known = len(names) > 1 if stage.startswith("out") else len(numbered) < 3
    summed = {1: "column", 2: "term"}.get(len(numbered), FALLBACK)
    words = _BY_RANK.get(len(numbered), ()) if known else ()
    return (*words, *(FALLBACK,) * (len(numbered) - len(words)), *(summed,) * (len(names) - len(numbered)))


def _loops_of(words: Sequence[str], values: Sequence[Expr]) -> Iterator[tuple[Var, str]]:
    """Yield (loop variable, word) of a stage: a tile if it is multiplied, several axes if divided."""
    divided: dict[Var, list[str]] = {}
    for word, value in zip(words, values, strict=True):
        for var, scaled, parted in _terms(value):
            if parted:
                divided.setdefault(var, []).append(word)
            else:
                yield var, f"{word}_tile" if scaled and word != FALLBACK else word
    for var, several in divided.items():
        of = set(several) - {"outer", "inner"}
        yield var, "tap" if of == {"tap_row", "tap_column"} else of.pop() if len(of) == 1 else FALLBACK


def _terms(value: Tir, scaled: bool = False, parted: bool = False) -> Iterator[tuple[Var, bool, bool]]:
    """Yield (variable, whether it is multiplied by more than 1, whether it is divided) of an index."""
    if isinstance(value, Var):
        yield value, scaled, parted
    elif isinstance(value, tirx.Mul):
        yield from _terms(value.a, True, parted)
    else:
        for child in children(value):
            yield from _terms(child, scaled, parted or isinstance(value, tirx.FloorDiv | tirx.FloorMod))
