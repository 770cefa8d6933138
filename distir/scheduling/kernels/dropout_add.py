"""
The ops after a matrix product in a transformer layer, as one function: bias, dropout,
residual and layer norm.

`noise` is 0 for the elements that dropout sets to zero and 1 / (1 - ratio) for all
others. The program draws the noise, so that every distribution drops the same elements.
Without dropout, `noise` is None.
"""

import torch
import torch.nn.functional as F


def bias_dropout_add(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    noise: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Returns `residual + dropout(x + bias)`, in the shape of `residual`. `noise` is the
    scaled dropout mask; None means no dropout.
    """
    total = (x + bias).view_as(residual)
    return residual + (total if noise is None else total * noise)


def bias_dropout_add_norm(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    noise: torch.Tensor | None = None,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """
    Returns the layer norm, over the last dimension, of `residual + dropout(x + bias)`.
    `weight` and `shift` are the scale and shift of the norm. `noise` is the scaled
    dropout mask; None means no dropout.
    """
    total = bias_dropout_add(x, bias, residual, noise)
    return F.layer_norm(total, weight.shape, weight, shift, epsilon)
