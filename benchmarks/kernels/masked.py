"""Count what it saves to leave out tiles of errors that a clamp stopped, and what it costs if all pass.

The ledger's layer behind a ReLU6, by the share of errors that its mask keeps: with the condition around sums, and the
same kernel without. The bar: 1 % more where all are kept.
"""

from __future__ import annotations

import contextlib
import re
from unittest import mock

from testing.cores import SCALAR
from testing.kernels.boards import measure
from testing.kernels.layers import LAYERS

TARGETS = SCALAR
"""Vectors have no such tiles."""
BAR = 1.01
ALL = "100"


def main() -> int:
    """Print the table; 1 if a core misses the bar."""
    layers = [(layer, share[1]) for layer in LAYERS if (share := re.search(r"(\d+) % kept", layer.name))]
    cases, missed = [layer.case() for layer, _ in layers], 0
    print(f"{'kept':>6} {'with':>12} {'without':>12} {'ratio':>7}  core, layer")
    for target in TARGETS:
        found = measure(cases, target)
        with contextlib.ExitStack() as patched:
            for printer in ("printer", "float_pairs"):
                patched.enter_context(mock.patch(f"tinytrain_compile.lower.printing.{printer}.kept_sums", list))
            before = measure(cases, target)
        for (layer, share), now, whole in zip(layers, found, before, strict=True):
            assert now.equal and whole.equal, layer.name
            ratio = now.instructions / whole.instructions
            bad = share == ALL and ratio > BAR
            missed += bad
            counts = f"{share:>4} % {now.instructions:>12,} {whole.instructions:>12,} {ratio:>7.3f}"
            print(f"{counts}  {target}, {layer.name}{'   MISSED' if bad else ''}", flush=True)
    return int(missed > 0)
