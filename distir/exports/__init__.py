"""
Exports distributed programs as calls of PyTorch's own functions for eager modules, and
checkpoints as state dicts.
"""
