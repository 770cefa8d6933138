"""GELU of a sum with a bias; the backward recomputes the sum."""

import torch
import torch.nn.functional as F


def bias_gelu(
    x: torch.Tensor, bias: torch.Tensor, approximate: str = "none"
) -> torch.Tensor:
    """Returns the GELU of `x + bias`."""
    return F.gelu(x + bias, approximate=approximate)


def backward(
    x: torch.Tensor,
    bias: torch.Tensor,
    gradient: torch.Tensor,
    approximate: str = "none",
) -> list[torch.Tensor]:
    """
    Returns the gradients of `x` and `bias`; that of the bias is summed over the dimensions
    that it was broadcast over.
    """
    dx = torch.ops.aten.gelu_backward(gradient, x + bias, approximate=approximate)
    return [dx.sum_to_size(x.shape), dx.sum_to_size(bias.shape)]
