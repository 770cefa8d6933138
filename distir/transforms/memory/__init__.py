"""Rewrites that save memory: recomputation, and tensors in the memory of the host."""
