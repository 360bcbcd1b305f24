"""C as text: lines of up to 120 columns, comments, offsets, and identifiers from the user's names.

Kernels come as one line per statement, since functions are compared and shared in that form (lower/share.py). The
layout changes nothing for a C compiler except `a - -3`, which becomes `a + 3`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import ELEMENT_BYTES, Value

WIDTH = 120
"""Columns of generated C (.clang-format)."""
_INDENT = 4
"""Spaces per level of indentation (IndentWidth in .clang-format)."""
_SIGNS = re.compile(r"(?<=[\w)\]] )([-+]) -(\d+(?:\.\d+f)?)(?![\w.])")
_BREAKS = re.compile(r", |; |(?<=\w)\((?=[^)])| (?:&&|\|\||[-+*/%?:=<>&|^]|[<>=!]=|<<|>>) ")
_KINDS = (", ;", "=", "?", ":", "||", "&&", "| ^ &", "== != < > <= >=", "<< >>", "+ -", "* / %", "(")
"""Classes of places after which a line may end, the loosest first."""
_PROSE = re.compile(r" *\* (?=[^\s@])")
"""A line of a comment that continues the sentences of the previous line."""
_OPEN = re.compile(r" *(/\*\*?|\*) (?!@)(?!.*\*/)")
"""A line of sentences in a comment that continues after it."""
_LARGEST = 2**31
"""First number that is not an int: it and larger ones keep their sign."""


_RESERVED_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false
asm typeof main null alignas alignof constexpr nullptr static_assert thread_local complex imaginary

catch class concept consteval constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit
export friend mutable namespace new noexcept operator private protected public reinterpret_cast requires static_cast
template this throw try typeid typename using virtual and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq

clock cnd dev div fpos gid id ino intmax intptr jmp_buf ldiv lldiv locale max_align mbstate mode mtx nlink off once
pid ptrdiff pthread rsize sig_atomic sigset size socklen ssize suseconds thrd time timer tss uid uintmax uintptr
useconds va wchar wctrans wctype wint linux unix port tt
"""
"""Keywords of C and C++ (which reads the header too), X for each library type X_t, macros, our own prefixes."""

_RESERVED = frozenset(_RESERVED_WORDS.split())
_INTEGER_TYPE = re.compile(r"u?(int|char)(_?(least|fast))?_?[0-9]+")


def readable(source: str) -> str:
    """Lay out a kernel's text, comment and function, for a project."""
    return "".join(f"{line}\n" for text in source.splitlines() for line in _lines(text))


def fitted(text: str) -> str:
    """Lay out the output of a template: break lines that a model's name makes too long; keep one empty line at a
    time."""
    lines = (part for line in _flowing(text.split("\n")) for part in _fitted(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def prototype(declaration: str) -> str:
    """Lay out a declaration in lines."""
    return "\n".join(wrapped(declaration))


def comment(text: str) -> str:
    """Lay out a comment, or a line of one: later lines begin with a star below the first line's star."""
    begin = text.lstrip()
    pad = " " * (len(text) - len(begin))
    rest = f"{pad}* " if begin.startswith("*") else f"{pad} * "
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False))


def wrapped(line: str) -> Iterator[str]:
    """Break a statement into lines where the fewest brackets are open, as far to the right as fits.

    A continued line is one step deeper than the line that opened the bracket in which it begins. After an operand of
    several lines, a new line begins.
    """
    own = len(line) - len(line.lstrip())
    places = list(_places(line))
    start, indent = 0, own
    open_at: list[_Bracket] = []
    while True:
        end = _forced(line, start, open_at, places)
        room = start + WIDTH - (indent if start else 0)
        if end is None and len(line) <= room:
            break
        if end is None or len(line[:end].rstrip()) > room:
            fitting = [place for place in places if start < place.end and len(line[: place.end].rstrip()) <= room]
            if not fitting:
                break
            end = min(fitting, key=lambda place: (place.depth, place.kind, -place.end)).end
        yield _at(indent, line[start:end])
        for index in range(start, end):
            if line[index] in "([":
                open_at.append(_Bracket(indent if open_at else own, _is_list(line, index)))
            elif line[index] in ")]" and open_at:  # else the line closes a bracket of another one
                open_at.pop()
        for bracket in open_at:
            bracket.broken = True
        inside = open_at[-1] if open_at else _Bracket(own)
        inside.operand = inside.is_list and line[:end].rstrip()[-1] not in ",;("
        start, indent = end, inside.indent + _INDENT * (2 if inside.operand else 1)
    yield _at(indent, line[start:])


class _Place(NamedTuple):
    """Place at which a new line may begin: number of open brackets, class of the text before it (_KINDS), end of the
    old line and start of the new one."""

    depth: int
    kind: int
    start: int
    end: int


@dataclass
class _Bracket:
    """An open bracket: the depth of the line that opened it, and whether it has several operands.

    broken: a line has ended in it. operand: within one of several operands, which then continues deeper.
    """

    indent: int
    is_list: bool = False
    broken: bool = False
    operand: bool = False


def _is_list(line: str, start: int) -> bool:
    """Tell whether the bracket that opens at `start` has a comma of its own."""
    depth = 0
    for end in range(start, len(line)):
        depth += (line[end] in "([") - (line[end] in ")]")
        if depth == 0:
            return False
        if depth == 1 and line[end] == ",":
            return True
    return False


def _forced(line: str, start: int, open_at: list[_Bracket], places: list[_Place]) -> int | None:
    """Find a forced end of the line from `start`: before a choice's alternative, or after an operand of several
    lines."""
    broken = [bracket.broken for bracket in open_at]
    operand = bool(open_at) and open_at[-1].operand
    if line[start] == "?":
        others = [place for place in places if line[place.start : place.end + 1] == " :" and place.start > start]
        return next((place.end for place in others if place.depth == len(open_at)), None)
    for index in range(start, len(line)):
        if operand and line[index] == "," and len(broken) == len(open_at):
            return next(place.end for place in places if place.start == index)
        if line[index] in "([":
            broken.append(False)
        elif line[index] in ")]" and broken and broken.pop():
            behind = [place.end for place in places if place.start == index + 1]
            if behind:
                return behind[0]
    return None


def _at(indent: int, text: str) -> str:
    return " " * indent + text.strip()


def _flowing(lines: Iterable[str]) -> Iterator[str]:
    """Let a comment line that is too long continue in the next one, if that is in the same paragraph."""
    rest = ""
    for line in lines:
        if rest and _PROSE.match(line):
            line, rest = f"{rest} {_PROSE.sub('', line, count=1)}", ""
        elif rest:
            yield rest
            rest = ""
        if len(line) > WIDTH and _OPEN.match(line):
            *full, rest = comment(line).split("\n")
            yield from full
        else:
            yield line
    if rest:
        yield rest


def _fitted(line: str) -> Iterator[str]:
    """Lay out a line of a template: a comment, or code whose comment then moves to the front."""
    if len(line) <= WIDTH or line.startswith("#"):
        yield line
    elif re.match(r" *(/\*| \*)", line):
        yield comment(line)
    else:
        code, mark, said = line.partition(" /* ")
        if mark:
            yield comment(" " * (len(code) - len(code.lstrip())) + f"/* {said}")
        yield from wrapped(code)


def _lines(text: str) -> Iterator[str]:
    if text.startswith("/*"):
        yield comment(text)
    elif not text.startswith(" ") and text.endswith(") {"):
        yield from wrapped(text.removesuffix(" {"))
        yield "{"
    else:
        for statement in _declarations(_SIGNS.sub(_signed, text)):
            yield from wrapped(statement)


def _declarations(text: str) -> Iterator[str]:
    """Split a declaration of several variables that is too long for a line into one for each."""
    typed = re.match(r" +(?:const )?\w+ (?=\w+ = )", text)
    if typed is None or len(text) <= WIDTH:
        yield text
        return
    ends = [place.start for place in _places(text) if place.depth == 0 and text[place.start] == ","]
    begins = [typed.end(), *(end + len(", ") for end in ends)]
    for begin, end in zip(begins, [*ends, len(text) - 1], strict=True):
        yield f"{typed[0]}{text[begin:end]};"


def _signed(found: re.Match[str]) -> str:
    """Write `- -3` as `+ 3`, `+ -3` as `- 3`."""
    sign, number = found[1], found[2]
    if float(number.removesuffix("f")) >= _LARGEST:
        return found[0]
    return f"{'+' if sign == '-' else '-'} {number}"


def _places(line: str) -> Iterator[_Place]:
    """Yield the places after every comma, bracket of a call, and operator."""
    depths: list[int] = []
    depth = 0
    for character in line:
        depth += (character in "([") - (character in ")]")
        depths.append(depth)
    own = len(line) - len(line.lstrip())
    for found in _BREAKS.finditer(line):
        kind = next(rank for rank, signs in enumerate(_KINDS) if found[0].strip() in signs.split())
        assigned = found[0] == " = " and own + _INDENT + len(line) - found.end() > WIDTH
        if not assigned:
            choice = found[0] in (" ? ", " : ")  # it begins a line; other operators end one
            yield _Place(depths[found.start()], kind, found.start(), found.start() + 1 if choice else found.end())


def c_identifier(text: str) -> str:
    """Return a valid C identifier that resembles `text`; prefix "m" if it would begin with a digit or be reserved."""
    name = re.sub(r"_{2,}", "_", re.sub(r"[^0-9A-Za-z]+", "_", text)).strip("_")[:60].rstrip("_")
    lower = name.lower()
    if not name or name[0].isdigit() or lower in _RESERVED or _INTEGER_TYPE.fullmatch(lower) or lower.startswith("tt_"):
        name = f"m_{name}".rstrip("_")
    return name


class Names:
    """Identifiers, one per key; clashes get a number."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._known: dict[str, str] = {}
        self._used: set[str] = set()

    def of(self, key: str) -> str:
        """Return the identifier of a key: always the same for the same key."""
        if key not in self._known:
            base = self._prefix + c_identifier(key)
            name, count = base, 1
            while name in self._used:
                count += 1
                name = f"{base}_{count}"
            self._used.add(name)
            self._known[key] = name
        return self._known[key]


def comment_text(text: str) -> str:
    """Return a user's name as one printable ASCII line that cannot end a C comment."""
    return _harmless(text)[:100]


def comment_lines(text: str) -> list[str]:
    """Return a whole sentence that cannot end a C comment, in lines of up to 115 characters, broken between words."""
    return textwrap.wrap(_harmless(text), 115, subsequent_indent="  ", break_on_hyphens=False)


def _harmless(text: str) -> str:
    cleaned = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return cleaned.replace("*/", "*?").replace("/*", "?*")


# ---- offsets: each with the size and the type of its contents, and the steps that need it --------------------------

C_TYPES = {"float32": "float", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t"}
"""Element type -> type in C; "bits" are packed in uint8_t."""
ACCESS = {"float32": "F32", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bits": "U8"}
"""Element type -> macro of generated C that makes a pointer from an offset."""
PERSISTENT = "Persistent: kept between calls."
TRANSIENT = "Transient: valid inside a call, in these steps."
OF_INFERENCE = "Transient, in an inference of one sample."

Row = tuple[str, int, str]
"""Name of an offset in C, the offset in its memory, and a comment."""


@dataclass(frozen=True)
class Label:
    """One named offset in a memory.

    value: at the offset; None: scratch of a kernel. scratch: element type of that, "" if unknown.
    """

    name: str
    memory: int
    offset: int
    key: str
    value: Value | None
    scratch: str = ""


def places(train: TrainGraph, plan: MemoryPlan, labels: Iterable[Label]) -> list[tuple[str, list[Row]]]:
    """Return (heading, rows by offset) of every non-empty group of offsets: persistent ones first."""
    kept = {value.name for value in (*train.graph.state, *train.graph.accumulators)}
    step = _buffers(plan.buffers)
    one: Mapping[str, Buffer] = {} if plan.inference is None else _buffers(plan.inference.plan.buffers)
    groups: dict[str, list[Row]] = {PERSISTENT: [], TRANSIENT: [], OF_INFERENCE: []}
    for label in sorted(labels, key=lambda label: (label.memory, label.offset, label.name)):
        buffer = step.get(label.key) or one.get(label.key)
        lasting = label.key in kept or (buffer is not None and buffer.kind in ("state", "accumulator"))
        heading = PERSISTENT if lasting else TRANSIENT if label.key in step else OF_INFERENCE
        groups[heading].append((label.name, label.offset, _said(label, None if lasting else buffer)))
    return [(heading, rows) for heading, rows in groups.items() if rows]


def _buffers(buffers: Iterable[Buffer]) -> Mapping[str, Buffer]:
    """Return the buffer of every value, and that of every scratch under the key of its label."""
    found: dict[str, Buffer] = {}
    for buffer in buffers:
        if buffer.kind == "scratch":
            found[f"{buffer.name}.scratch"] = buffer
        else:
            found |= dict.fromkeys((*buffer.values, *(name for name, _ in buffer.within)), buffer)
    return found


def _said(label: Label, buffer: Buffer | None) -> str:
    """Describe the contents of an offset: "1,152 B, float[288], steps 0..1"; buffer: None if it outlives every step."""
    value, size = label.value, 0 if buffer is None else buffer.size_bytes
    what = "scratch"
    if value is not None:
        kind = C_TYPES.get(value.dtype, value.dtype)
        size, what = value.size_bytes, f"{kind}[{'x'.join(map(str, value.shape))}]" if value.shape else kind
    elif label.scratch:
        what = f"{C_TYPES[label.scratch]}[{size // ELEMENT_BYTES[label.scratch]}], scratch"
    parts = [f"{size:,} B", what]
    if buffer is not None:
        first, last = buffer.first_step, buffer.last_step
        parts.append(f"step {first}" if first == last else f"steps {first}..{last}")
    if label.memory:
        parts.append(f"in memory {label.memory}")
    return ", ".join(parts)
