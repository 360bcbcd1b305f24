"""Reader of update-scheme files (TOML, docs/update-schemes.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import TableKind, parse_document, read_text
from tinytrain_compile.near import hint

_KEYS = {"layer", "bias", "weight", "axis", "activation", "ranks"}
_ACTIVATIONS = ("exact", "asi", "subspace")
_KIND = TableKind("E0302", "E0302", "see docs/update-schemes.md for the format", "the path of a scheme file")
_MODES = 4
"""Most modes of an activation."""


@dataclass(frozen=True)
class SchemeEntry:
    """One [[update]] table. weight: "all", a count of leading channels (0: none), or channel indices.

    source: the file and number of the entry, for errors ("": made by the compiler).
    activation: form in which the layer keeps its input ("": that of --activations); ranks: of its modes; none:
    measured.
    """

    layer: str
    bias: bool
    weight: str | int | tuple[int, ...]
    axis: str
    activation: str = ""
    ranks: tuple[int, ...] = ()
    source: str = field(default="", compare=False)


def load_scheme(path: Path) -> tuple[SchemeEntry, ...]:
    """Parse a scheme file strictly; CompileError E0302 names the entry and the key."""
    text = read_text(path, partial(_bad, path.name), partial(_KIND.missing, path.name))
    document = parse_document(text, path.name, _KIND)
    unknown = sorted(set(document) - {"update"})
    entries: Any = document.get("update", [])
    if unknown or not isinstance(entries, list) or not entries:
        what = f"has the unknown key {unknown[0]!r}" if unknown else "has no [[update]] entries"
        what = "has [update] in single brackets" if isinstance(entries, dict) else what
        raise _bad(path.name, f"{what}: each layer is an entry [[update]]")
    return tuple(_entry(f"{path.name}, entry {i + 1}", raw) for i, raw in enumerate(cast(list[Any], entries)))


def _entry(where: str, raw: Any) -> SchemeEntry:
    if not isinstance(raw, dict):
        raise _bad(where, "is not a table")
    table = cast(dict[str, Any], raw)
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        several = "layers" in unknown and isinstance(table["layers"], list)
        way = "an entry [[update]] for each layer, or a glob" if several else hint(unknown[0], sorted(_KEYS))
        raise _bad(where, f"has the unknown key {unknown[0]!r}: {way}")
    layer, bias, axis = table.get("layer"), table.get("bias", False), table.get("axis", "out")
    if not isinstance(layer, str) or not layer:
        raise _bad(where, "needs `layer`, a node name or glob")
    if not isinstance(bias, bool):
        raise _bad(where, "`bias` is true or false")
    if axis not in ("out", "in"):
        raise _bad(where, '`axis` is "out" or "in"')
    weight = _weight(where, table.get("weight", 0))
    return SchemeEntry(layer, bias, weight, axis, *_activation(where, table), where)


def _activation(where: str, table: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return the form in which a layer keeps its input, and its ranks."""
    activation, ranks = table.get("activation", ""), table.get("ranks", [])
    if "activation" in table and activation not in _ACTIVATIONS:
        raise _bad(where, '`activation` is "exact", "asi" or "subspace"')
    listed = cast(list[Any], ranks) if isinstance(ranks, list) else [0]
    whole = all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1 for rank in listed)
    if not whole or len(listed) > _MODES or ("ranks" in table and not listed):
        raise _bad(where, "`ranks` is a list of one to four numbers from 1 on: channels, height, width, samples")
    if activation == "subspace" and len(listed) == _MODES:
        raise _bad(where, "`ranks` of a fixed subspace are of channels, height and width: samples come in any order")
    if listed and activation not in ("asi", "subspace"):
        raise _bad(where, '`ranks` are for activation = "asi" or "subspace"')
    if activation in ("asi", "subspace") and table.get("weight", 0) == 0:
        raise _bad(where, "`activation` is about the gradient of a weight, and the entry trains none")
    if activation in ("asi", "subspace") and table.get("axis") == "in" and table["weight"] != "all":
        raise _bad(where, '`activation` needs whole inputs: leave axis = "in" out')
    return activation, tuple(listed)


def _weight(where: str, weight: Any) -> str | int | tuple[int, ...]:
    if weight == "all" or (isinstance(weight, int) and not isinstance(weight, bool) and weight >= 0):
        return weight
    if isinstance(weight, list):
        channels = cast(list[Any], weight)
        if channels and all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in channels):
            return tuple(sorted(set(channels)))
    raise _bad(where, '`weight` is "all", a channel count, or a list of channel indices')


def _bad(where: str, what: str) -> CompileError:
    return _KIND.error(where, what)
