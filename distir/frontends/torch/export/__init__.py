"""
Exports modules as ONNX models. `exporter.py` chooses one of PyTorch's exporters;
`dynamo.py` runs the newer exporter, `script.py` the older one. The remaining files are
about operations that an exporter cannot write or loses: they replace such operations,
or find them so that DistIR can refuse the module.
"""
