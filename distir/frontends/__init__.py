"""
Frontends, which make sequential programs: importers of ONNX files and PyTorch modules, and
builders of MLPs, GPTs and mixtures of experts.
"""
