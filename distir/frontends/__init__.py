"""
Frontends, which make sequential programs: importers of ONNX files (`onnx`) and PyTorch
modules (`torch`), and builders of `models`. Importers return an `ImportedModel`.
"""
