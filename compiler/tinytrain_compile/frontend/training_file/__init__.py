"""Training information of a file: ONNX TrainingInfoProto and artifacts of onnxruntime."""
