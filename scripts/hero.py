"""Draw the picture at the top of the README: RAM over one training step, and accuracy before and after.

    python scripts/hero.py          # compiles MCUNet (../shared) and writes docs/img/hero.svg

Left: bytes in use at every step of the plan of MCUNet in int8, with streams (row "MCUNet int8, streams" of
scripts/figures.py). Right: accuracy after each epoch of examples/digits, from the output in its README, which the tests
compare with a run in QEMU. The colours follow the reader's choice of a light or dark page.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import LARGE, ROOT, SHARED

PICTURE = ROOT / "docs" / "img" / "hero.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 260, 500, 300, 48, 224
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .small { font-size: 11px; fill: #57606a }
  .axis { stroke: #8c959f } .state { fill: #0969da } .rest { fill: #54aeff } .line { stroke: #1a7f37; fill: none }
  .dot { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b3 } .axis { stroke: #6e7681 }
    .state { fill: #388bfd } .rest { fill: #1f4e8c } .line { stroke: #3fb950 } .dot { fill: #3fb950 }
  }"""


def compiled() -> dict[str, Any]:
    """Return plan.json of MCUNet."""
    model, flags = LARGE["MCUNet int8, streams"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tinytrain_compile", str(SHARED / "models" / f"{model}.onnx"), *flags]
        subprocess.run([*command, "--verify", "none", "-o", f"{folder}/out"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(folder, "out", "plan.json").read_text(encoding="utf-8"))


def accuracies() -> list[float]:
    """Return the accuracies in per cent that the README of examples/digits shows, before training and by epoch."""
    text = (ROOT / "examples" / "digits" / "README.md").read_text(encoding="utf-8").partition("\naccuracy ")[0]
    return [float(number) for number in re.findall(r"held-back accuracy (\d+\.\d) %", text)]


def memory(plan: dict[str, Any]) -> str:
    """Draw the bytes in use at every step, the lasting ones below the others."""
    load, total = plan["load_bytes"], plan["arena_bytes"]
    lasting = sum(b["size_bytes"] for b in plan["buffers"] if b["kind"] in ("header", "state"))
    scale, wide = (BOTTOM - TOP - 20) / total, (LEFT - 70) / len(load)
    shapes = [f'<text class="title" x="10" y="20">MCUNet, int8: one training step in {total:,} bytes</text>']
    shapes.append(f'<text class="small" x="10" y="36">RAM in use at each of {len(load)} steps</text>')
    floor = BOTTOM - lasting * scale
    for index, amount in enumerate(load):
        box = f'x="{10 + index * wide:.1f}" y="{BOTTOM - amount * scale:.1f}" width="{wide:.2f}"'
        shapes.append(f'<rect class="rest" {box} height="{(amount - lasting) * scale:.1f}"/>')
    box = f'x="10" y="{floor:.1f}" width="{LEFT - 70}" height="{BOTTOM - floor:.1f}"'
    shapes.append(f'<rect class="state" {box}/>')
    shapes.append(f'<line class="axis" x1="10" y1="{BOTTOM}" x2="{LEFT - 60}" y2="{BOTTOM}"/>')
    key = (("state", "weights and state that stay"), ("rest", "activations, gradients, scratch"))
    for index, (kind, words) in enumerate(key):
        x = 10 + index * 210
        shapes.append(f'<rect class="{kind}" x="{x}" y="{BOTTOM + 14}" width="10" height="10"/>')
        shapes.append(f'<text class="small" x="{x + 16}" y="{BOTTOM + 23}">{words}</text>')
    return "\n".join(shapes)


def learning(percent: Sequence[float]) -> str:
    """Draw accuracy by epoch."""
    left, wide, high = LEFT + 40, RIGHT - 40, BOTTOM - TOP - 20
    points = [(left + i * wide / (len(percent) - 1), BOTTOM - p / 100 * high) for i, p in enumerate(percent)]
    title = f"digits: {percent[0]:.1f} % to {percent[-1]:.1f} % on the device"
    shapes = [f'<text class="title" x="{LEFT}" y="20">{title}</text>']
    shapes.append(f'<text class="small" x="{LEFT}" y="36">accuracy on images it never trained on, by epoch</text>')
    for value in (0, 50, 100):
        y = BOTTOM - value / 100 * high
        shapes.append(f'<line class="axis" x1="{left}" y1="{y}" x2="{left + wide}" y2="{y}" stroke-opacity="0.4"/>')
        shapes.append(f'<text class="small" x="{left - 8}" y="{y + 4}" text-anchor="end">{value} %</text>')
    shapes.append(
        f'<polyline class="line" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    )
    shapes += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    return "\n".join(shapes)


def main() -> None:
    """Write the picture."""
    label = "Left: RAM over one training step of MCUNet. Right: accuracy of the digits example by epoch."
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    body = f"{memory(compiled())}\n{learning(accuracies())}"
    PICTURE.write_text(f"{head}\n<style>{_STYLE}\n</style>\n{body}\n</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
