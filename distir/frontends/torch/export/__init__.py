"""
Exports modules as ONNX models. `exporter.py` chooses one of PyTorch's exporters;
`dynamo.py` runs the newer one, `script.py` the older one. The remaining files treat
operations that an exporter cannot write or loses: they replace them, or find them so
that DistIR can refuse the module.
"""
