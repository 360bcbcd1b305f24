"""Guard of a trained model in C: golden samples, or their features, in flash, and the limit on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.emit.tables import array_text, float_text
from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text

_UNKNOWN = "    {0}, /* features */"
"""Stands for the features until the code that computes them is complete. It takes the same flash."""


class Guard(Part):
    """`m_guard.h`."""

    name, row, files = "guard", "runtime", ("guard.h", "guard.c")
    flag, one_input = "--guard", True
    not_with = ("input_lines", "listen", "inference_only")

    def public(self, code: PlanCode) -> Mapping[str, object]:
        """Return the tables of golden samples, and the limit."""
        golden = self.golden
        x, y = (part.reshape(len(golden.samples.x), -1) for part in (golden.samples.x, golden.samples.y))
        size = code.interface.feature_bytes
        rows = {"features": bool(size), "x": _UNKNOWN if size else _rows(x), "y": array_text(y)}
        sizes = {"samples": len(x), "inputs": size or x.shape[1], "labels": y.shape[1]}
        found = {"right": golden.right, "least": golden.least}
        if golden.most is not None and golden.error is not None:
            found = {"error": f"{golden.error:.6g}", "most": float_text(golden.most)}
        drop = f"{100 * self.asked.guard_drop:g}%"
        return {"guard": {**rows, **sizes, **found, "drop": drop, "stores": "store" in self.asked.runtime.names}}

    def pieces(self, summary: Summary) -> list[str]:
        """Return the limit, and the flash of the samples."""
        found = self.json(summary)
        limit = f"at least {found['least']} right" if found["most"] is None else f"error at most {found['most']:.3g}"
        what = "golden samples' features" if found["features"] else "golden samples"
        return [f"guard ({found['samples']} {what}, {bytes_text(found['flash_bytes'])} of flash; {limit})"]

    def json(self, summary: Summary) -> dict[str, Any]:
        """Return the limit, what the file's model reaches, and the flash of the golden samples."""
        golden = self.golden
        count = len(golden.samples.x)
        size = (count * summary.feature_bytes or golden.samples.x.nbytes) + golden.samples.y.nbytes
        limits = {"right": golden.right, "least": golden.least, "error": golden.error, "most": golden.most}
        return {"samples": count, "features": summary.feature_bytes > 0, "flash_bytes": size, **limits}

    @property
    def golden(self) -> Golden:
        """Return the golden samples with the limit."""
        golden = self.asked.golden
        assert isinstance(golden, Golden), "driver/golden.py reads the samples before any code is written"
        return golden


def with_features(bundle: SourceBundle, features: Array) -> SourceBundle:
    """Fill in the features of the golden samples, (samples, bytes) in uint8, which only the code itself computes."""
    name = f"{bundle.interface.prefix}_guard.c"
    assert _UNKNOWN in bundle.files[name]
    return replace(bundle, files={**bundle.files, name: bundle.files[name].replace(_UNKNOWN, _rows(features))})


def _rows(x: Array) -> str:
    """Return samples as initialisers of an array of arrays."""
    return "\n".join(f"    {{\n{array_text(row)}\n    }}," for row in x)


PART = Guard
