"""Operators of ONNX, and their gradients, that are not one call of PyTorch."""
