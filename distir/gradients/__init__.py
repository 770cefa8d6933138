"""
Reverse-mode differentiation: a rule for each op, what a backward keeps of its forward,
losses and optimizers. `differentiate` is the pass.

Rules build ops, so this package knows the dialects and type inference, but no pass.
"""
