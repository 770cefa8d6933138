"""
Modules as ONNX models, by one of PyTorch's exporters: `exporter.py` chooses it, `dynamo.py`
is the newer and `script.py` the older one. The other files write what an exporter cannot
write or loses in terms of what it writes, or find it, so that it can be refused.
"""
