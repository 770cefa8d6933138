"""
Gradient rules: what flows back through an op. `differentiate` applies them.

Rules build ops, so this package knows the dialects and type inference, but no pass.
"""
