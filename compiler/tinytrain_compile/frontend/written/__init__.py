"""The trained model as an ONNX file again."""
