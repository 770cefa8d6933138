"""
Uses of a parallel module in training scripts other than calling it: clipping gradients,
making optimizers, and registering hooks.
"""
