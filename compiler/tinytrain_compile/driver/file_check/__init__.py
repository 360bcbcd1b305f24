"""The imported graph against the model file: outputs, losses and values on the same samples."""
