"""Mutants of text files: TOML, JSON and lines of tokens; and of JSON as a tree."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS = (
    *("0", "-0", "-1", "1", "2", "3", "7", "255", "65536", "2147483647", "2147483648", "4294967296", "-2147483649"),
    *("1099511627776", "9223372036854775808", "1" + "0" * 400, "1.5", "1e308", "-1e-320", "inf", "nan", "0x10", "1_0"),
)
WORDS = (
    *('""', '"\\u0000"', '"x"', '"*"', '"../x"', '"/etc/passwd"', '"-o/tmp/x"', '"%s"', '"' + "n" * 5000 + '"'),
    *("true", "false", "null", "[]", "{}", "[1, 2]", '["a", 1]', "1979-05-27", "'", '"', "[" * 5000, "{" * 2000),
)
_TOKEN = re.compile(r'"[^"\n]*"|[\w.+-]+|[^\s\w]')


def text_mutant(text: str, source: Random, words: Sequence[str] = ()) -> bytes:
    """One to three tokens or lines changed, lost, repeated or exchanged. words: what may stand there besides."""
    for _ in range(source.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        place, kind = source.randrange(len(lines)), source.randrange(8)
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(source.randrange(len(lines) + 1), lines[place])
        elif kind == 2:
            other = source.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        text = "\n".join(lines)
        if kind > 2:
            text = _with_token(text, source, words)
    return text.encode(errors="surrogatepass")


def _with_token(text: str, source: Random, words: Sequence[str]) -> str:
    """A number for a number and a word for a word, mostly."""
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return source.choice(WORDS)
    token = source.choice(tokens)
    number = re.fullmatch(r"[\d.+-]+", token[0]) is not None
    kind = source.randrange(6)
    known = (*words, *(other[0] for other in tokens)) if kind == 0 else ()
    new = source.choice(known or (NUMBERS if number == (kind > 1) else WORDS))
    return text[: token.start()] + ("" if kind == 5 else new) + text[token.end() :]


def json_mutant(content: Any, source: Random) -> bytes:
    """One to three places of a JSON tree: another value, a value of elsewhere, a key or an element lost or repeated."""
    content = json.loads(json.dumps(content))
    for _ in range(source.choice((1, 1, 2, 3))):
        places = list(_places(content))
        holder, key = source.choice(places)
        kind = source.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(source.randrange(len(holder) + 1), holder[key])
        elif kind == 2:
            other, name = source.choice(places)
            holder[key] = _copy(other[name])
        elif kind == 3 and isinstance(holder, dict):
            holder[source.choice(("", "name", "x", "\0"))] = holder.pop(key)
        elif kind < 6 and isinstance(holder[key], int):
            holder[key] += source.choice((-16, -8, -4, -1, 1, 4, 8, 16, 1 << 31, 1 << 39, 1 << 70, -(1 << 31)))
        else:
            values = (None, True, -1, 0, 1.5, 1 << 31, 1 << 39, 10**400, float("nan"), "", "x", "\0", [], {}, [[]])
            holder[key] = source.choice(values)
        if not content:
            break
    return json.dumps(content).encode()


def _places(content: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys = content.keys() if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    found = [(content, key) for key in keys]
    return found + [place for key in keys for place in _places(content[key])]


def _copy(content: Any) -> Any:
    return json.loads(json.dumps(content))
