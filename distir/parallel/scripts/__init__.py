"""
What training scripts do with a parallel module besides calling it: they clip gradients, make
optimizers, and register hooks.
"""
