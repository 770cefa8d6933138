"""
Replaces groups of ops that compute the same as one ONNX operator by that operator.
Groups are recognised by their computation, never by names. `match` and `masks` examine
values and masks. `attention`, `normalization`, `activation` and `slices` are the
patterns. `raising` applies the patterns to a whole program.
"""
