"""Pages that need nothing else: their templates, style and script, and the hashes that their security policy names."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

import jinja2

from tinytrain_compile.report.pages.picture import about_text, name_of, text_of
from tinytrain_compile.report.text import layer_text
from tinytrain_compile.report.words import bytes_text, grouped, macs_text


@cache
def page_template(name: str) -> jinja2.Template:
    """A page's template, compiled once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tinytrain_compile.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        n=grouped,
        size=bytes_text,
        macs=macs_text,
        name=name_of,
        layer=layer_text,
        about=about_text,
        short=name_of,
        whole=text_of,
    )
    return environment.get_template(name)


def page_asset(name: str) -> str:
    """Text of a style or a script."""
    return files("tinytrain_compile.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def page_hash(text: str) -> str:
    """As a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
