"""
Reverse-mode differentiation: gradient rules of ops, residuals (the values of a forward
pass that the backward pass needs), losses and optimizers. The pass is `differentiate`.

Rules build ops. Therefore this package imports the dialects and type inference, but no
pass.
"""
