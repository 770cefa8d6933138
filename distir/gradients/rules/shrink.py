"""The gradient rule of shrinkage."""

from __future__ import annotations

from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.gradients.rule import kernel_gradient

kernel_gradient("Shrink", ShrinkGradOp, "lambd")
