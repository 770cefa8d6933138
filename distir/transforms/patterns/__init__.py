"""
Groups of ops that are one operator of ONNX, recognised by what they compute, never by names.

`match` asks about values and `masks` about masks; `attention`, `normalization`, `activation`
and `slices` are the patterns; `raising` looks for them in a whole program.
"""
