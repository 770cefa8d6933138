"""
The parts of the `onnx` dialect: the class of its ops, types, checks of shapes, and
facts about operators.
"""
