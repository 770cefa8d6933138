"""ONNX operators without an equivalent PyTorch function, and their gradients."""
