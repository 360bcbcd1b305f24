"""Models of LiteRT (TFLite): a .tflite file -> the ONNX model of real numbers and QDQ pairs that is imported."""

from __future__ import annotations

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.rings.unroll import MOST_FRAMES


def translated(name: str, data: bytes, max_window: int | None = None) -> onnx.ModelProto:
    """Return the ONNX model of a file; one with state is unrolled to the window that its output depends on.

    max_window: longest window, in frames of the input; 0: any; None: MOST_FRAMES. Errors: E0114 without the packages
    that read it; E02xx for a file that cannot be used; E0113 for a window of a file without state; E0501 with one line
    per operator for what cannot be translated.
    """
    try:
        from tinytrain_compile.frontend.tflite.reader import parse
    except ImportError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("tflite", "flatbuffers"):
            raise
        what = f"the Python package {missing.name} reads .tflite files, and is not installed"
        raise CompileError("E0114", name, what, "pip install 'tinytrain-compile[tflite]'") from missing
    from tinytrain_compile.frontend.tflite.convert import has_state, in_onnx

    file = parse(name, data)
    if max_window and not has_state(file):
        raise CompileError("E0113", "--max-window", "is for files with state", "leave it out")
    return in_onnx(file, MOST_FRAMES if max_window is None else max_window)
