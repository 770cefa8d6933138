"""
PyTorch modules as sequential programs.

`importer.py` is the way of a module: `export` makes an ONNX model of it, by one of PyTorch's
two exporters and with what these lose, `distir.frontends.onnx` reads that, and `checks`
compares the program with the module. `modules` runs modules and leaves them as they were.
`training.py` is a second way to a training step, in which PyTorch differentiates.
"""
