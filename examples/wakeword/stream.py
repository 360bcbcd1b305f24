"""LiteRT as a listener: its reference kernels run a .tflite file with state, three rows a call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from speech import CALL, Array


def litert(model: Path, rows: Array) -> Array:
    """Probability (N) of each call."""
    one = Interpreter(str(model), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1)
    one.allocate_tensors()
    source, sink = one.get_input_details()[0]["index"], one.get_output_details()[0]["index"]
    found = list[int]()
    for call in rows.reshape(-1, 1, CALL, rows.shape[1]):
        one.set_tensor(source, call)
        one.invoke()
        found.append(int(one.get_tensor(sink).item()))
    return np.array(found, np.float32) / np.float32(256)
