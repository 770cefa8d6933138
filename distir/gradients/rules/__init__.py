"""The gradient rules of ONNX and train ops, one file per family."""
