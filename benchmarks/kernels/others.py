"""Compare 42 int8 layers that nobody here chose on five cores with a vendor's library: instructions, and their ratio.

    python -m benchmarks others [--target cortex-m55]

testing/kernels/others.py has the layers. A test keeps the floor of the ratios (tests/benchmarks/test_others.py).
"""

from __future__ import annotations

import argparse

from testing.kernels.others import TARGETS, geometric_mean, measured


def main() -> None:
    """Print a table per core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    chosen = parser.parse_args().target
    for target in (chosen,) if chosen else TARGETS:
        rows = measured(target)
        print(f"{target:13} {'library':>10} {'ours':>10} {'a MAC':>6} {'ratio':>6}")
        for layer, found, ratio in rows:
            per_mac = f"{found.instructions / found.macs:6.2f}" if found.macs else f"{'-':>6}"
            note = ("" if found.equal else "   DIFFERENT") + ("" if ratio >= 1 else "   BELOW 1")
            library = layer.library[TARGETS.index(target)]
            print(f"{'':13} {library:10,} {found.instructions:10,} {per_mac} {ratio:6.2f}  {layer.name}{note}")
        ratios = [ratio for _, _, ratio in rows]
        print(f"{target}: geometric mean {geometric_mean(ratios):.2f}, smallest {min(ratios):.2f}", flush=True)
