"""tinytrain-compile: an ONNX model in, C11 that trains it on a microcontroller out."""

__version__ = "0.1.0"
