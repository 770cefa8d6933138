"""The GELU of a sum with a bias. The backward recomputes the sum."""

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
    Returns the gradients of `x` and `bias`. Each is summed over the dimensions over
    which its operand was broadcast. `gradient` is that of the result.
    """
    dx = torch.ops.aten.gelu_backward(gradient, x + bias, approximate=approximate)
    return [dx.sum_to_size(x.shape), dx.sum_to_size(bias.shape)]
