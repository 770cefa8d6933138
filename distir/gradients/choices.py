"""
What a training step can be made with. Nothing is imported here, so that commands know the
choices before they load anything.
"""

from __future__ import annotations

LOSSES = ("cross_entropy", "mse", "none")
"""The losses that `differentiate` appends."""

OPTIMIZERS = ("adamw", "adam", "sgd", "none")
"""The optimizers; with `none` a step returns the gradients."""

DROPOUT_MASKS = ("drawn", "stored")
"""Whether the backward draws the masks of dropout again, or the forward keeps them."""

GRADIENT_DTYPES = ("parameter", "f32")
"""The element types of gradients: that of their parameter, or f32."""

LOSS_SCALINGS = ("none", "dynamic")
"""Whether the loss is scaled, so that gradients in f16 do not underflow."""

IGNORED_LABEL = -100
"""The label of positions that do not count in PyTorch's cross-entropy, unless told otherwise."""
