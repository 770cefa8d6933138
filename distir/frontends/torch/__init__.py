"""
Imports PyTorch modules as sequential programs.

`importer.py` runs the steps. `export` makes an ONNX model of the module with one of
PyTorch's two exporters, and restores facts that these exporters lose.
`distir.frontends.onnx` reads the model, and `checks` compares the program with the
module. `modules` runs modules without changing them. `training.py` makes a training
step in which PyTorch computes the gradients.
"""
