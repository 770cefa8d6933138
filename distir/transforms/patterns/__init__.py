"""
Recognises groups of ops that are one operator of ONNX, by what they compute, never by
names.

`match` and `masks` answer questions about values and masks; `attention`, `normalization`,
`activation` and `slices` are the patterns; `raising` applies them to a whole program.
"""
