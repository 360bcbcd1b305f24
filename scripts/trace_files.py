"""Follow one convolution through the compiler: which files run, and which see the convolution (docs/one-conv.md).

    python scripts/trace_files.py               counts for float32, int8 and a dry run: files in which a function runs
    python scripts/trace_files.py --way int8    files whose functions get the convolution, in the order they first do
    python scripts/trace_files.py --files fp32  all files in which a function runs, by folder

The model is Conv, Relu, Flatten and Gemm, compiled with --verify none. A file counts if one of its named functions
runs, but not while modules are imported.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

NODES = ("Node", "OnnxNode", "NodeProto")
WAYS = {"fp32": (), "int8": ("--quant", "int8", "--calib", "data.npz"), "dry-run": ("--dry-run",)}
NET = """<ir_version: 10, opset_import: ["": 17]> one (float[1, 1, 8, 8] x) => (float[1, 10] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
    r = Relu (a)
    f = Flatten (r)
    y = Gemm <transB = 1> (f, v, c)
}"""


@dataclass
class Trace:
    """What ran below `root`: functions, and for each file in order the first function that got the convolution."""

    root: str
    functions: set[CodeType] = field(default_factory=set[CodeType])
    way: dict[str, str] = field(default_factory=dict[str, str])
    importing: int = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take down a call (for sys.setprofile)."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.root):
            return
        if code.co_name == "<module>":
            self.importing += 1 if event == "call" else -1
        if event == "return" or self.importing or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        if code.co_name.isidentifier():
            self.functions.add(code)
        if code.co_filename not in self.way and code.co_name.isidentifier():
            values = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount])
            if any(is_convolution(value) for value in values):
                self.way[code.co_filename] = code.co_name

    def files(self) -> list[str]:
        """Files in which a function ran."""
        return sorted({code.co_filename for code in self.functions})


def is_convolution(value: object) -> bool:
    """Whether a value is a node of ONNX or of the compiler that is a convolution or one of its gradients."""
    name = type(value).__name__
    if name not in NODES:  # or what wraps one: the importer's view of a node, a layer
        value = getattr(value, "node", None)
        name = type(value).__name__
    if name not in NODES:
        return False
    op: object = getattr(value, "op_type" if name == "NodeProto" else "op", "")
    return isinstance(op, str) and "Conv" in op


def write_inputs(folder: Path) -> None:
    """Write the model and samples for it."""
    model, random = onnx.parser.parse_model(NET), np.random.default_rng(0)
    shapes = {"w": (4, 1, 3, 3), "b": (4,), "v": (10, 64), "c": (10,)}
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, str(folder / "one.onnx"))
    np.savez(folder / "data.npz", x=random.standard_normal((16, 1, 8, 8)).astype(np.float32), y=np.arange(16) % 10)


def traced(way: str) -> None:
    """Compile in this process, in the current folder, and print what ran as JSON."""
    import importlib.util

    found = importlib.util.find_spec("tinytrain_compile")
    assert found is not None and found.origin is not None
    root = Path(found.origin).parent
    trace = Trace(f"{root}/")
    arguments = ["one.onnx", *WAYS[way], "-o", "out"]
    sys.argv = ["tinytrain-compile", *arguments, *([] if way == "dry-run" else ["--verify", "none"])]
    sys.stdout = sys.stderr
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        from tinytrain_compile.cli.start import main

        main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        sys.stdout = sys.__stdout__
    short = {path: str(Path(path).relative_to(root)) for path in trace.files()}
    steps = [(short[path], name) for path, name in trace.way.items()]
    print(json.dumps({"files": sorted(short.values()), "functions": len(trace.functions), "way": steps}))


@dataclass(frozen=True)
class Found:
    """Files in which a function ran, how many functions, and (file, first function) that got the convolution."""

    files: list[str]
    functions: int
    way: list[tuple[str, str]]


def trace_of(way: str) -> Found:
    """Compile in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        write_inputs(Path(name))
        command = [sys.executable, str(Path(__file__).resolve()), "--traced", way]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return Found(**json.loads(done.stdout))


def first_line(path: str) -> str:
    """Return the first sentence of a module of the package."""
    import tinytrain_compile

    text = (Path(tinytrain_compile.__file__).parent / path).read_text(encoding="utf-8")
    doc = " ".join((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].split())
    for end in (". ", ": ", "; "):
        doc = doc.partition(end)[0] if len(doc) > 70 else doc
    return doc.rstrip(".")


def rows_of_way(way: str) -> Iterator[str]:
    """Rows of a table: file, first function that got the convolution, purpose of the file."""
    yield "| file | first function | purpose of the file |\n|---|---|---|"
    for path, name in trace_of(way).way:
        yield f"| `{path}` | `{name}` | {first_line(path).replace('|', '/')} |"


def rows_of_files(way: str) -> Iterator[str]:
    """A row for each folder."""
    folders = dict[str, list[str]]()
    for path in trace_of(way).files:
        folders.setdefault(str(Path(path).parent), []).append(Path(path).stem)
    for folder, names in folders.items():
        yield f"{folder} ({len(names)}): {' '.join(names)}"


def counts() -> Iterator[str]:
    """A row for each way to compile."""
    yield "| one Conv + Relu + Flatten + Gemm | files | functions | files that get the convolution |\n|---|---|---|---|"
    for way in WAYS:
        found = trace_of(way)
        yield f"| {way} | {len(found.files)} | {found.functions:,} | {len(found.way)} |"


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--files", choices=list(WAYS))
    parser.add_argument("--traced", choices=list(WAYS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.traced:
        traced(asked.traced)
        return
    rows = rows_of_way(asked.way) if asked.way else rows_of_files(asked.files) if asked.files else counts()
    print("\n".join(rows))


if __name__ == "__main__":
    main()
