"""Compare kernels with the best ones of the first study: instructions / (c MACs + r outputs), and bars per MAC.

    python -m benchmarks ratios              # layers and few pixels on six cores, few rows, float32
    python -m benchmarks ratios --short      # layers on the Cortex-M7, few pixels on six cores

c and r stand for a class of kernels. r counts what the end of an output takes: seven instructions to requantise, five
for bias, zero point, bounds and the store. c is then what the study's best kernel of the class took beside that.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.kernels.float_ratios import float_table
from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.layers import LAYERS, rows_layer
from testing.kernels.ledger import SHORT_TARGETS, TARGETS, layer_rows
from tinytrain_compile.lower.kernels.row_blocks import NoRowsError

BAR = 1.05
"""Largest ratio."""
MAIN = "cortex-m7"
PER_OUTPUT = 12
"""r of every class."""


@dataclass(frozen=True)
class KernelClass:
    """name; the study's best kernel: its instructions, MACs, outputs and what it was."""

    name: str
    instructions: int
    macs: int
    outputs: int
    source: str

    @property
    def per_mac(self) -> float:
        """c: what is left of the study's count for each MAC."""
        return (self.instructions - PER_OUTPUT * self.outputs) / self.macs

    def expected(self, macs: int, outputs: int) -> float:
        """Instructions of a kernel as good as the study's."""
        return self.per_mac * macs + PER_OUTPUT * outputs


PRODUCT = KernelClass("product", 1_886_620, 1_179_648, 24_576, "1x1 16x16x48 to 96, SMLAD 2x2 unrolled, M7")
DEPTHWISE = KernelClass("depthwise", 522_432, 110_592, 12_288, "depthwise 3x3 16x16x48, SMLABB/TT, no border, M7")
BARS = (("dW", 1.4), ("depthwise", 5.0), ("dX depthwise", 5.0))
"""Start of a layer's name, and below how many instructions per nominal MAC it has to be (Cortex-M7)."""
PIXELS, PARTS = 256, (4, 8, 16)


def kernel_class(name: str) -> KernelClass | None:
    """The class of a layer by its name; None: no convolution."""
    if "depthwise" in name:
        return DEPTHWISE
    return PRODUCT if name.startswith(("1x1", "dX", "dW", "first")) else None


def layer_table(rows: list[dict[str, Any]]) -> list[str]:
    """A line per convolution and core, and what meets the bars on the Cortex-M7."""
    outputs = {layer.name: layer.case().node().outputs[0].elements for layer in LAYERS}
    lines = [
        f"{kind.name}: c {kind.per_mac:.3f}, r {PER_OUTPUT}, from {kind.instructions:,} for {kind.macs:,} MACs and "
        f"{kind.outputs:,} outputs ({kind.source})"
        for kind in (PRODUCT, DEPTHWISE)
    ]
    lines.append(f"{'instructions':>13} {'per MAC':>8} {'code B':>7} {'ratio':>6}  {'core':13} layer")
    met: list[str] = []
    missed: list[str] = []
    for row in rows:
        kind = kernel_class(row["name"])
        if kind is None:
            continue
        each = row["instructions"] / row["macs"]
        ratio = row["instructions"] / kind.expected(row["macs"], outputs[row["name"]])
        marks = [f"ratio above {BAR}"] if ratio > BAR else []
        marks += [f"{bar} per MAC" for start, bar in BARS if row["name"].startswith(start) and each >= bar]
        note = ""
        if row["target"] == MAIN:
            (missed if marks else met).append(row["name"])
            note = "".join(f"   MISS: {mark}" for mark in marks)
        counts = f"{row['instructions']:>13,} {each:>8.2f} {row['code_bytes']:>7,} {ratio:>6.2f}"
        lines.append(f"{counts}  {row['target']:13} {row['name']}{note}")
    lines.append(f"{MAIN}: {len(met)} meet the bars; {len(missed)} miss one: {'; '.join(missed) or 'none'}")
    return lines


def parts_table() -> list[str]:
    """A 1x1 convolution of 256 pixels in calls of a few pixels, as a stream of rows makes them."""
    lines = [f"1x1 of {PIXELS} pixels, 48 to 48 channels, in calls of rows of {PARTS[0]} (their loop included):"]
    case = rows_layer(PIXELS // PARTS[0], PARTS[0]).case()
    for target in (MAIN, *(t for t in TARGETS if t != MAIN)):
        (whole,) = measure([case], target)
        lines.append(f"{whole.instructions:>13,} in one call of the whole map's kernel ({target})")
        for pixels in PARTS:
            (found,) = measure([case], target, make=partial(by_row_blocks, step=pixels // PARTS[0]))
            assert found.equal, pixels
            loss = 100 * (found.instructions / whole.instructions - 1)
            note = "" if loss <= 5 else "   above 5 %"
            lines.append(f"{found.instructions:>13,} in calls of {pixels} pixels: {loss:+.1f} %{note}")
    return lines


def rows_table() -> list[str]:
    """Layers by their kernels of a few rows, of a row and of four a call; no bar is set for them."""
    lines = [f"layers in calls of 1 and of 4 rows, against the whole map's kernel ({MAIN}):"]
    for layer in LAYERS:
        try:
            made = [
                measure([layer.case()], MAIN, make=make)[0]
                for make in (None, *(partial(by_row_blocks, step=s) for s in (1, 4)))
            ]
        except NoRowsError:
            continue
        whole, *parts = (found.instructions for found in made)
        assert all(found.equal for found in made), layer.name
        losses = " ".join(f"{100 * (part / whole - 1):+7.1f} %" for part in parts)
        lines.append(f"{whole:>13,} {losses}  {layer.name}")
    return lines


def main() -> None:
    """Print the tables; nothing fails here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    targets = (MAIN,) if short else (MAIN, *(t for t in TARGETS if t != MAIN and t in SHORT_TARGETS))
    print("\n".join([*layer_table(layer_rows(targets)), "", *parts_table()]), flush=True)
    if not short:
        print("\n".join(["", *rows_table(), "", *float_table()]))
