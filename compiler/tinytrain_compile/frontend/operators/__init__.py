"""How each ONNX operator is imported."""
