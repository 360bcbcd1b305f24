"""The model file as onnx.reference computes it: the judge of the import and of the gradients."""
