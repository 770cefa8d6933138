"""
Reverse-mode differentiation: gradient rules of ops, residuals that a backward needs
from its forward, losses and optimizers. The pass is `differentiate`.

Rules build ops. This package therefore uses the dialects and type inference, but no
pass.
"""
