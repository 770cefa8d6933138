"""What the ops of the `onnx` dialect are: one class of op, its schema, types, sizes and facts."""
