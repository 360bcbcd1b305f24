"""C identifiers from the user's names: stable, readable, unique, never a keyword."""

from __future__ import annotations

import re
import textwrap

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
"""Keywords of C and C++ (which reads the header too), X where libraries have a type X_t, macros, our own prefixes."""

_RESERVED = frozenset(_RESERVED_WORDS.split())
_INTEGER_TYPE = re.compile(r"u?(int|char)(_?(least|fast))?_?[0-9]+")


def c_identifier(text: str) -> str:
    """A valid C identifier that resembles `text`; "m" in front where it would start with a digit or be reserved."""
    name = re.sub(r"_{2,}", "_", re.sub(r"[^0-9A-Za-z]+", "_", text)).strip("_")[:60].rstrip("_")
    lower = name.lower()
    if not name or name[0].isdigit() or lower in _RESERVED or _INTEGER_TYPE.fullmatch(lower) or lower.startswith("tt_"):
        name = f"m_{name}".rstrip("_")
    return name


class Names:
    """Hands out one identifier per key; clashes get a number."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._known: dict[str, str] = {}
        self._used: set[str] = set()

    def of(self, key: str) -> str:
        """The identifier of a key: always the same for the same key."""
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
    """A user's name as it may stand inside a C comment: one printable ASCII line that cannot end the comment."""
    return _harmless(text)[:100]


def comment_lines(text: str) -> list[str]:
    """The same of a whole sentence, which is not cut: in lines of up to 115 characters, broken between words."""
    return textwrap.wrap(_harmless(text), 115, subsequent_indent="  ", break_on_hyphens=False)


def _harmless(text: str) -> str:
    cleaned = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return cleaned.replace("*/", "*?").replace("/*", "?*")
