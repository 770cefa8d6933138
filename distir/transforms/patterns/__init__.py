"""
Replaces groups of ops that compute the same as one ONNX operator by that operator.
Groups are recognised by their computation, never by names. `match` and `masks` answer
questions about values and masks. `attention`, `normalization`, `activation` and
`slices` are the patterns. `raising` applies them to a whole program.
"""
