"""Import of ONNX operators, a family in each file."""
