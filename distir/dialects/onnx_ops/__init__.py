"""
The ops of the `onnx` dialect: one class of op, its schema, types, sizes and facts.
"""
