"""LiteRT as a listener, and the file that it reads: what `export` writes of what a twin or a device has learned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from recipe import MODEL
from speech import CALL, Array

from tinytrain_compile.twin import Twin


def by_litert(model: Path, rows: Array) -> Array:
    """Probability (N) of each call, by LiteRT's reference kernels."""
    one = Interpreter(str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1)
    one.allocate_tensors()
    source, sink = one.get_input_details()[0]["index"], one.get_output_details()[0]["index"]
    found = list[int]()
    for call in rows.reshape(-1, 1, CALL, rows.shape[1]):
        one.set_tensor(source, call)
        one.invoke()
        found.append(int(one.get_tensor(sink).item()))
    return np.array(found, np.float32) / np.float32(256)


def export(twin: Twin, folder: Path) -> Path:
    """Write the twin's weights into a .tflite in `folder`, which has the build in project/."""
    learned, checkpoint = folder / "learned.tflite", folder / "trained.bin"
    twin.save(checkpoint)
    options = ["--project", str(folder / "project"), "--checkpoint", str(checkpoint), "-o", str(learned), "--force"]
    command = [sys.executable, "-m", "tinytrain_compile", "export", str(MODEL), *options]
    subprocess.run(command, check=True, capture_output=True)
    return learned
