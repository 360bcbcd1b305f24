"""Faults of gradients and updates that the derivative check has to refuse (derivative_faults.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from testing.places import ROOT


def faults() -> list[dict[str, Any]]:
    """Read the table, in its order."""
    path = ROOT / "benchmarks" / "robustness" / "derivative_faults.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["fault"]


def with_fault(fault: Mapping[str, Any], text: str) -> str:
    """Return the text of a file with a fault; ValueError unless each text that it replaces is there once."""
    for old, new in ((fault["old"], fault["new"]), *fault.get("more", ())):
        if text.count(old) != 1:
            raise ValueError(f"{fault['name']}: {text.count(old)} places in {fault['file']}: {old!r}")
        text = text.replace(old, new)
    return text
