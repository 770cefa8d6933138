"""
ONNX files as sequential programs.

`importer.py` is the way of a model: it is read (`file`), brought to one opset without local
functions (`prepare`) and to straight-line code (`bodies`, `loops`), its inputs get sizes and
its values types, and each node becomes an op. `weight_roles` decides which tensors are
trained.
"""
