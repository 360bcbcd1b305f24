"""Writes linear.onnx: y = a x + b, with a = 0 and b = 0 to begin with."""

from pathlib import Path

from onnx import parser, save

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
linear (float[1,1] x) => (float[1,1] y) <float[1,1] a = {0}, float[1] b = {0}> { [line] y = Gemm(x, a, b) }
"""
save(parser.parse_model(MODEL), Path(__file__).with_name("linear.onnx"))
