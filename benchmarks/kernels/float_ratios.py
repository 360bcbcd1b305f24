"""Instructions per MAC of the float32 products in four test networks, against a bar for each kind of product."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from testing.networks import models

NETWORKS = ("mlp", "ds_cnn", "resnet8", "transformer")
BARS = {"matrix product": 1.8, "matrix-vector": 3.0, "rank-1": 5.0}
"""Kind -> instructions per MAC at most. Depthwise and smaller products have none."""
TARGET = "cortex-m7"
PRODUCTS = ("Gemm", "GemmGradInput", "GemmGradWeight", "MatMul", "Conv", "ConvGradInput", "ConvGradWeight")
LEAST = 4
"""Every extent of a matrix product."""


def float_table() -> list[str]:
    """Lines for people: every product of the four networks, all parameters updated, in a step on the Cortex-M7."""
    lines = [f"float32 products of four networks ({TARGET}, bars: {BARS}):"]
    for name in NETWORKS:
        kernels = _kernels(getattr(models, name)())
        for kernel, (m, n, k) in kernels:
            kind, each = kind_of(kernel["op"], m, n, k), kernel["instructions"] / kernel["macs"]
            miss = "   MISS" if each > BARS.get(kind, math.inf) else ""
            size = f"{m}x{n}x{k}"
            lines.append(f"{kernel['instructions']:>11,} {each:>6.2f}  {name:12} {kind:15} {kernel['op']} {size}{miss}")
    misses = sum("MISS" in line for line in lines)
    return [*lines, f"{misses} products miss their bar"]


def kind_of(op: str, m: int, n: int, k: int) -> str:
    """Which bar a product has: by its extents (rows, columns, terms of a sum)."""
    if min(m, n, k) >= LEAST:
        return "matrix product"
    if k == 1 and op.endswith("GradWeight"):
        return "rank-1"
    return "matrix-vector" if min(m, n) == 1 and max(m, n) >= LEAST and k >= LEAST else "other"


def _kernels(model: onnx.ModelProto) -> list[tuple[dict[str, Any], tuple[int, int, int]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model, folder / "net.onnx")
        flags = ["--update", "all", "--arena", "2MB", "--target", TARGET, "--count"]
        command = [sys.executable, "-m", "tinytrain_compile", str(folder / "net.onnx"), *flags]
        finished = subprocess.run([*command, "-o", str(folder / "out")], capture_output=True, text=True)
        if finished.returncode != 0:
            raise RuntimeError(finished.stderr.strip())
        report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
        sources = "".join(path.read_text(encoding="utf-8") for path in sorted((folder / "out").glob("*_kernels*.c")))
    found: list[tuple[dict[str, Any], tuple[int, int, int]]] = []
    for kernel in report["work"]["kernels"]:
        if kernel["op"] in PRODUCTS and kernel["macs"]:
            shapes = _shapes(sources, kernel["name"])
            if not _depthwise(kernel["op"], shapes):
                found.append((kernel, _extents(kernel["op"], shapes[-1], kernel["macs"] // len(kernel["nodes"]))))
    return found


def _shapes(sources: str, kernel: str) -> list[tuple[int, ...]]:
    """Operands and results of a kernel, as the comment above it says."""
    match = re.search(r"/\* \w+: ([^.]*)\. [^\n]*\*/\nvoid " + re.escape(kernel) + r"\(", sources)
    assert match is not None, kernel
    texts = re.split(r", | -> ", match.group(1))
    return [tuple(int(d) for d in text.split("x")) if text != "scalar" else () for text in texts]


def _depthwise(op: str, shapes: list[tuple[int, ...]]) -> bool:
    if not op.startswith("Conv"):
        return False
    weight = shapes[-1] if op == "ConvGradWeight" else shapes[1]
    image = shapes[-1] if op == "ConvGradInput" else shapes[0]
    return weight[3] == 1 and image[3] > 1


def _extents(op: str, out: tuple[int, ...], macs: int) -> tuple[int, int, int]:
    """(rows, columns, terms): a batch of matrices counts as one with all their rows; a weight has a row per output."""
    first = 1 if op == "ConvGradWeight" else len(out) - 1
    rows, columns = math.prod(out[:first]), math.prod(out[first:])
    return rows, columns, max(1, macs // (rows * columns))
