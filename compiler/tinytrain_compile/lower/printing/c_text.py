"""C as text: expressions with their precedence, statements, and places of internal buffers in scratch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from tvm import ir, tirx
from tvm.tirx import Buffer

from tinytrain_compile.lower.tir_walk import elements

# ---- expressions -----------------------------------------------------------------------------------------------------
# C expressions: text with its precedence, operators of TIR, literals.

C_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float32": "float",
    "bool": "bool",
}
BINARY = {
    "Mul": ("*", 12),
    "Div": ("/", 12),
    "Mod": ("%", 12),
    "FloorDiv": ("/", 12),  # operands are never negative if these survive simplification: kernels' tests assert it
    "FloorMod": ("%", 12),
    "Add": ("+", 11),
    "Sub": ("-", 11),
    "LT": ("<", 9),
    "LE": ("<=", 9),
    "GT": (">", 9),
    "GE": (">=", 9),
    "EQ": ("==", 8),
    "NE": ("!=", 8),
    "And": ("&&", 4),
    "Or": ("||", 3),
    "LShift": ("<<", 10),
    "RShift": (">>", 10),
    "BitwiseAnd": ("&", 7),
    "BitwiseXor": ("^", 6),
    "BitwiseOr": ("|", 5),
}
BITWISE = {
    "shift_left": ("<<", 10),
    "shift_right": (">>", 10),
    "bitwise_and": ("&", 7),
    "bitwise_xor": ("^", 6),
    "bitwise_or": ("|", 5),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
SHORT = ("int8", "uint8", "int16", "uint16")
EXACT_TYPE = (ir.TensorLoad, tirx.Cast, tirx.IntImm)
ATOM, UNARY, TERNARY = 15, 14, 2
"""Precedence of operators in C, on the same scale as those above (C11 6.5)."""


class Expr(NamedTuple):
    """C text, its precedence, the loop variables it reads, and whether it reads memory."""

    text: str
    level: int = ATOM
    variables: frozenset[str] = frozenset()
    loads: bool = False

    def at(self, level: int) -> str:
        """Return the text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def join(text: str, level: int, parts: Sequence[Expr], loads: bool = False) -> Expr:
    """Return an expression of these parts."""
    variables = frozenset[str]().union(*(p.variables for p in parts))
    return Expr(text, level, variables, loads or any(p.loads for p in parts))


def dtype_of(node: ir.Expr) -> str:
    """Return the element type of an expression."""
    return str(node.ty.dtype)


def float_literal(value: float) -> str:
    """Return a float32 constant that reads back to the same bits."""
    text = str(np.float32(value))
    if not np.isfinite(value):
        raise ValueError(f"no C literal for {value}")
    return text + ("f" if any(c in text for c in ".e") else ".0f")


# ---- statements ------------------------------------------------------------------------------------------------------
# A small tree of C statements, and the clean-ups that make generated loops short: merged and hoisted conditions.

ZERO_LANES = "{0}"
"""Initializer of all lanes of a vector."""


@dataclass
class Line:
    """One C statement (or declaration) without indentation."""

    text: str


@dataclass
class Declaration:
    """Register variables of one type. zero: their initial value if only a condition sets them."""

    ctype: str
    names: list[str]
    zero: str = "0"


@dataclass
class Loop:
    """`for (int32_t var = low; var < high; ++var)`; moves: it only moves data into scratch."""

    var: str
    low: str
    high: str
    body: list[Statement]
    moves: bool = False


@dataclass(frozen=True)
class Limit:
    """Bound of the loop variables for which a condition holds: the first one (low), or the end."""

    low: bool
    text: str


@dataclass(frozen=True)
class Test:
    """A condition, alone and as a part of several; `stable`: it reads only loop variables, so it may be merged and
    hoisted.

    limits: loop variable -> its range, if that is all numbers below or all above one.
    """

    text: str
    part: str
    variables: frozenset[str]
    stable: bool
    limits: Mapping[str, Limit]


@dataclass
class If:
    """Statements that run if all tests hold, and those that run otherwise."""

    tests: tuple[Test, ...]
    body: list[Statement]
    otherwise: list[Statement]

    @property
    def condition(self) -> str:
        """C text."""
        return self.tests[0].text if len(self.tests) == 1 else " && ".join(test.part for test in self.tests)

    @property
    def stable(self) -> bool:
        """True if the condition reads only loop variables."""
        return all(test.stable for test in self.tests)


Statement = Line | Declaration | Loop | If

_WORD = re.compile(r"\w+")


def initialised(body: list[Statement]) -> list[Statement]:
    """Declare register variables before their first use, with the values assigned there, six to a line."""
    result: list[Statement] = []
    position = 0
    body = _late(body)
    while position < len(body):
        statement = body[position]
        position += 1
        if not isinstance(statement, Declaration):
            result.append(statement)
            continue
        values: dict[str, str] = {}
        while position < len(body) and (start := _start(body[position], statement, values)) is not None:
            values[start[0]] = start[1]
            position += 1
        open_ = (name for name in statement.names if name not in values)
        values |= {name: statement.zero for name in open_ if _conditional(name, body[position:])}
        names = [f"{name} = {values[name]}" if name in values else name for name in statement.names]
        lines = [names[i : i + 6] for i in range(0, len(names), 6)]
        result += [Line(f"{statement.ctype} {', '.join(line)};") for line in lines]
    return result


def _late(body: list[Statement]) -> list[Statement]:
    """Move each declaration down to the first statement that names one of its variables."""
    result: list[Statement] = []
    waiting: list[Declaration] = []
    for statement in body:
        if isinstance(statement, Declaration):
            waiting.append(statement)
            continue
        if waiting:
            words = frozenset(_WORD.findall("\n".join(render([statement]))))
            used = [declaration for declaration in waiting if not words.isdisjoint(declaration.names)]
            waiting = [declaration for declaration in waiting if declaration not in used]
            result += used
        result.append(statement)
    return [*result, *waiting]


def _conditional(name: str, body: list[Statement]) -> bool:
    """Tell whether the first statement that sets a variable is in an If without an else.

    A compiler cannot always see that the same condition holds where the variable is read.
    """
    first = next((statement for statement in body if _sets(name, statement)), None)
    return isinstance(first, If) and not first.otherwise


def _sets(name: str, statement: Statement) -> bool:
    if isinstance(statement, Line):
        return statement.text.startswith(f"{name} = ")
    if isinstance(statement, Declaration):
        return False
    inner = [*statement.body, *(statement.otherwise if isinstance(statement, If) else [])]
    return any(_sets(name, one) for one in inner)


def _start(statement: Statement, declaration: Declaration, known: dict[str, str]) -> tuple[str, str] | None:
    if not isinstance(statement, Line):
        return None
    name, _, value = statement.text.removesuffix(";").partition(" = ")
    if name not in declaration.names or name in known or any(other in value for other in declaration.names):
        return None
    return name, value


def tidy(body: list[Statement]) -> list[Statement]:
    """Join neighbouring ifs with one condition; move conditions out of the loops that they do not depend on."""
    result: list[Statement] = []
    for statement in initialised(body):
        statement = _tidy_one(statement)
        last = result[-1] if result else None
        if isinstance(statement, If) and isinstance(last, If) and _joinable(last, statement):
            last.body = tidy(last.body + statement.body)
        else:
            result.append(statement)
    return result


def _joinable(first: If, second: If) -> bool:
    return first.stable and first.condition == second.condition and not first.otherwise and not second.otherwise


def _tidy_one(statement: Statement) -> Statement:
    if isinstance(statement, Line | Declaration):
        return statement
    statement.body = tidy(statement.body)
    if isinstance(statement, If):
        statement.otherwise = tidy(statement.otherwise)
        return statement
    inner = statement.body[0] if len(statement.body) == 1 else None
    if not isinstance(inner, If) or not inner.stable:
        return statement
    if not inner.otherwise:
        return _narrowed(statement, inner)
    if any(statement.var in test.variables for test in inner.tests):
        return statement
    inner.body, inner.otherwise = ([_tidy_one(replace(statement, body=b))] for b in (inner.body, inner.otherwise))
    return inner


def _narrowed(loop: Loop, inner: If) -> Statement:
    """Return a loop without the tests of its body: they become its bounds, or conditions outside it."""
    outer = tuple(test for test in inner.tests if loop.var not in test.variables)
    own = [test for test in inner.tests if loop.var in test.variables]
    for limit in dict.fromkeys(test.limits[loop.var] for test in own if loop.var in test.limits):
        if limit.low:
            loop.low = _one_of(limit.text, ">", loop.low)
        else:
            loop.high = _one_of(limit.text, "<", loop.high)
    inner.tests = tuple(test for test in own if loop.var not in test.limits)
    loop.body = [inner] if inner.tests else inner.body
    return If(outer, [loop], []) if outer else loop


def _one_of(a: str, sign: str, b: str) -> str:
    """Return the larger (">") or smaller of two, as a number if both are numbers."""
    if a.isdecimal() and b.isdecimal():
        return str(max(int(a), int(b)) if sign == ">" else min(int(a), int(b)))
    return f"({a} {sign} {b} ? {a} : {b})"


def render(body: list[Statement], depth: int = 1) -> Iterator[str]:
    """Yield indented lines of C."""
    pad = "    " * depth
    for statement in body:
        if isinstance(statement, Line):
            yield pad + statement.text
        elif isinstance(statement, Declaration):
            yield f"{pad}{statement.ctype} {', '.join(statement.names)};"
        elif isinstance(statement, Loop):
            var = statement.var
            if statement.moves:
                yield f"{pad}TT_UNROLL"
            yield f"{pad}for (int32_t {var} = {statement.low}; {var} < {statement.high}; ++{var}) {{"
            yield from render(statement.body, depth + 1)
            yield pad + "}"
        else:
            yield f"{pad}if ({statement.condition}) {{"
            yield from render(statement.body, depth + 1)
            if statement.otherwise:
                yield pad + "} else {"
                yield from render(statement.otherwise, depth + 1)
            yield pad + "}"


# ---- scratch ---------------------------------------------------------------------------------------------------------
# Places in scratch of a kernel's internal buffers that do not become registers: one after the other.

_ALIGNMENT = 8
"""Alignment of each buffer in bytes, for any type in scratch: that of int64, the largest."""


class Scratch:
    """Places of buffers by name; the peeled end of a loop has a copy of a buffer in the same place.

    size_bytes: of all; dtype: element type of the first buffer and of the parameter, "" if there are none.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        sizes: dict[str, int] = {}
        self._dtypes: dict[str, str] = {}
        self.size_bytes = 0
        for buffer in buffers:
            name = str(buffer.name)
            self._dtypes[name] = str(buffer.dtype)
            sizes[name] = max(sizes.get(name, 0), elements(buffer) * np.dtype(self._dtypes[name]).itemsize)
        self.dtype = next(iter(self._dtypes.values()), "")
        self._places: dict[str, int] = {}  # in bytes
        for name, count in sizes.items():
            self._places[name] = -(-self.size_bytes // _ALIGNMENT) * _ALIGNMENT
            self.size_bytes = self._places[name] + count

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the buffers."""
        return tuple(self._places)

    def named(self, name: str) -> str:
        """Return the C name of a buffer: the only one is called scratch."""
        return name if len(self._places) > 1 else "scratch"

    def parameter(self) -> list[str]:
        """Return the declaration of scratch, if there is any."""
        return [f"{C_TYPES[self.dtype]} *restrict scratch"] if self.dtype else []

    def pointers(self, used: Container[str] | None) -> list[str]:
        """Return C declarations of pointers to several buffers; used: by a part of the function (None: by all)."""
        if len(self._places) < 2:
            return []
        return [self._pointer(name, at) for name, at in self._places.items() if used is None or name in used]

    def _pointer(self, name: str, at: int) -> str:
        """Return the declaration of a pointer to a buffer, with a cast if its type is not the parameter's."""
        kind, elements_before = C_TYPES[self._dtypes[name]], at // np.dtype(self.dtype).itemsize
        place = f"scratch + {elements_before}" if at else "scratch"
        cast = "" if self._dtypes[name] == self.dtype else f"({kind} *)(void *)"
        return f"{kind} *const {name} = {f'{cast}({place})' if cast else place};"
