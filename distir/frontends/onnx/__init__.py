"""
Imports ONNX files as sequential programs.

`importer.py` runs the steps. It reads the model (`file`), converts the model to one
opset without local functions (`prepare`) and to straight-line code (`bodies`, `loops`),
and infers sizes and types. Each node then becomes an op. `weight_roles` decides which
tensors are trained.
"""
