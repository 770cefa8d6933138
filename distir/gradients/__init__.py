"""
Reverse-mode differentiation: gradient rules of ops, residuals that a backward needs
from its forward, losses and optimizers. The pass is `differentiate`.

Rules build ops. Therefore this package imports the dialects and type inference, but no
pass.
"""
