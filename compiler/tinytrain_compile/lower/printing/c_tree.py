"""A small tree of C statements, and the clean-ups that make generated loops short: merged and hoisted conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

ZERO_LANES = "{0}"
"""An initializer of a vector, all lanes."""


@dataclass
class Line:
    """One C statement (or declaration) without indentation."""

    text: str


@dataclass
class Declaration:
    """Register variables of one type. zero: what they begin with where only a condition sets them."""

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
    """Where a condition begins to hold for a loop's variable (low), or ends to."""

    low: bool
    text: str


@dataclass(frozen=True)
class Test:
    """A condition, alone and as a part of several; `stable`: it reads nothing but loop variables, so that it may be
    merged and hoisted.

    limits: loop variable -> the numbers that it stands for, if they are all below or all above one.
    """

    text: str
    part: str
    variables: frozenset[str]
    stable: bool
    limits: Mapping[str, Limit]


@dataclass
class If:
    """What all tests have to let pass."""

    tests: tuple[Test, ...]
    body: list[Statement]
    otherwise: list[Statement]

    @property
    def condition(self) -> str:
        """C text."""
        return self.tests[0].text if len(self.tests) == 1 else " && ".join(test.part for test in self.tests)

    @property
    def stable(self) -> bool:
        """Whether the condition reads nothing but loop variables."""
        return all(test.stable for test in self.tests)


Statement = Line | Declaration | Loop | If


def initialised(body: list[Statement]) -> list[Statement]:
    """Fold the assignments that follow a declaration of register variables into it, six to a line."""
    result: list[Statement] = []
    position = 0
    body = list(body)
    while position < len(body):
        if position + 1 < len(body) and isinstance(body[position + 1], Declaration) and _is_declaration(body[position]):
            body[position : position + 2] = body[position + 1], body[position]  # the first is initialised next
            result.append(_guarded(body[position], body[position + 1 :]))
            position += 1
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


def _guarded(statement: Statement, behind: list[Statement]) -> Statement:
    """A declaration with 0 for what only a condition sets."""
    if not isinstance(statement, Declaration):
        return statement
    zero = statement.zero
    return replace(
        statement, names=[f"{name} = {zero}" if _conditional(name, behind) else name for name in statement.names]
    )


def _conditional(name: str, body: list[Statement]) -> bool:
    """Whether the first statement that sets a variable is one of an If without another way.

    A compiler cannot always tell that the same condition holds where it is read.
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


def _is_declaration(statement: Statement) -> bool:
    return isinstance(statement, Declaration)


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
    """A loop that does nothing where tests fail, without those: they bound it, or do not depend on it."""
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
    """The larger or the smaller of two, known if they are numbers."""
    if a.isdecimal() and b.isdecimal():
        return str(max(int(a), int(b)) if sign == ">" else min(int(a), int(b)))
    return f"({a} {sign} {b} ? {a} : {b})"


def render(body: list[Statement], depth: int = 1) -> Iterator[str]:
    """Indented lines of C."""
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
