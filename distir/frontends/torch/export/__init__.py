"""
Exports modules as ONNX models. `exporter.py` chooses one of PyTorch's exporters;
`dynamo.py` runs the newer one, `script.py` the older one. The other files replace
operations that an exporter cannot write or loses, or find them so that they can be
refused.
"""
