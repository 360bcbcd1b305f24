"""Templates: their folders, a custom tag, and insertion of parts' fragments into slots of others (ADR 49)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from tinytrain_compile import __version__
from tinytrain_compile.emit.c_text import fitted
from tinytrain_compile.emit.part import Part
from tinytrain_compile.emit.sequence import Section
from tinytrain_compile.emit.tables import float_text

LICENCE = "LicenseRef-model-owner"
"""SPDX identifier in generated files: they belong to the owner of the model (docs/licence.md)."""


class _Put(Extension):
    """`{% put text %}`: lines of text in place of the tag's line. `{{ text }}` would keep the end of that line."""

    tags = {"put"}  # noqa: RUF012 - as Extension declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the expression that gives the text."""
        line = next(parser.stream).lineno
        return nodes.Output([parser.parse_expression()]).set_lineno(line)


def _indented(lines: Iterable[str], steps: int = 1) -> str:
    return "".join(f"{'    ' * steps}{line}\n" for line in lines)


def _calls(sections: Iterable[Section]) -> str:
    return _indented(section.call for section in sections)


@cache
def environment() -> jinja2.Environment:
    """Make the environment once, so that templates are compiled once: --flash-budget emits several times."""
    folders = (("tinytrain_compile.emit", "templates"), ("tinytrain_compile", "parts"))
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(*folder) for folder in folders]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=[_Put],
    )
    made.filters["float32"] = float_text
    known: dict[str, Any] = made.globals
    known.update(licence=LICENCE, version=__version__)
    return made


def words(model: Mapping[str, object]) -> dict[str, object]:
    """Return the names and texts of words.j2 for a plan with these values of the templates."""
    found = environment().get_template("words.j2").make_module({**model})
    return {name: text for name, text in vars(found).items() if not name.startswith("_")}


def render(template: str, model: Mapping[str, object], parts: Sequence[Part] = ()) -> str:
    """Lay out a file. Its slots are filled by the fragments of these parts, in their order."""
    # Fragments are macros of a part's own template rather than blocks: a block can be replaced only once, but several
    # parts may fill one slot. Only templates of parts that are on are loaded.
    known: dict[str, object] = {**model}
    fragments: list[object] = []

    def slot(name: str, *arguments: object) -> str:
        found: Iterable[Callable[..., str]] = (getattr(one, name) for one in fragments if hasattr(one, name))
        return "".join(macro(*arguments) for macro in found)

    def instead(name: str, *arguments: object, caller: Callable[[], str]) -> str:
        return slot(name, *arguments) or caller()

    known |= {"slot": slot, "instead": instead, "indented": _indented, "calls": _calls}
    for part in parts:
        if part.has_fragments:
            fragments.append(environment().get_template(f"{part.name}/{part.name}.j2").make_module(known))
    return fitted(environment().get_template(template).render(known))
