"""
Imports PyTorch modules as sequential programs.

`importer.py` goes through the steps. `export` makes an ONNX model of the module, with
one of PyTorch's two exporters, and restores what these lose. `distir.frontends.onnx`
reads the model, and `checks` compares the program with the module. `modules` runs
modules without changing them. `training.py` is another way to a training step, in which
PyTorch differentiates.
"""
