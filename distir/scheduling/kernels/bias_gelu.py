"""The GELU of a sum with a bias. The backward pass recomputes the sum."""

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
    Returns the gradients of `x` and `bias`, given `gradient`, the gradient of the
    result. Each is summed over the dimensions in which its operand was broadcast.
    """
    dx = torch.ops.aten.gelu_backward(gradient, x + bias, approximate=approximate)
    return [dx.sum_to_size(x.shape), dx.sum_to_size(bias.shape)]
