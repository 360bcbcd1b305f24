"""Guard of a trained model in C: golden samples in flash, and the limit on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.emit.tables import array_text, float_text
from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.part import Part
from tinytrain_compile.report.layout import bytes_text


class Guard(Part):
    """`m_guard.h`."""

    name, row, files = "guard", "runtime", ("guard.h", "guard.c")
    flag, one_input = "--guard", True
    not_with = ("input_lines", "listen", "inference_only")

    def public(self, code: PlanCode) -> Mapping[str, object]:
        """Return the tables of golden samples, and the limit."""
        golden = self.golden
        x, y = (part.reshape(len(golden.samples.x), -1) for part in (golden.samples.x, golden.samples.y))
        rows = {"x": [array_text(row) for row in x], "y": array_text(y)}
        sizes = {"samples": len(x), "inputs": x.shape[1], "labels": y.shape[1]}
        found = {"right": golden.right, "least": golden.least}
        if golden.most is not None and golden.error is not None:
            found = {"error": f"{golden.error:.6g}", "most": float_text(golden.most)}
        drop = f"{100 * self.asked.guard_drop:g}%"
        return {"guard": {**rows, **sizes, **found, "drop": drop, "stores": "store" in self.asked.runtime.names}}

    def pieces(self, summary: Summary) -> list[str]:
        """Return the limit, and the flash of the samples."""
        found = self.json(summary)
        limit = f"at least {found['least']} right" if found["most"] is None else f"error at most {found['most']:.3g}"
        return [f"guard ({found['samples']} golden samples, {bytes_text(found['flash_bytes'])} of flash; {limit})"]

    def json(self, summary: Summary) -> dict[str, Any]:
        """Return the limit, what the file's model reaches, and the flash of the golden samples."""
        golden = self.golden
        size = golden.samples.x.nbytes + golden.samples.y.nbytes
        limits = {"right": golden.right, "least": golden.least, "error": golden.error, "most": golden.most}
        return {"samples": len(golden.samples.x), "flash_bytes": size, **limits}

    @property
    def golden(self) -> Golden:
        """Return the golden samples with the limit."""
        golden = self.asked.golden
        assert isinstance(golden, Golden), "driver/golden.py reads the samples before any code is written"
        return golden


PART = Guard
