"""Layer norms of sums. The backward pass recomputes the sum and its statistics."""

import torch
import torch.nn.functional as F


def add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """Returns the layer norm of `x + residual` over the last dimension."""
    return F.layer_norm(x + residual, weight.shape, weight, shift, epsilon)


def backward(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    gradient: torch.Tensor,
    epsilon: float = 1e-5,
) -> list[torch.Tensor]:
    """
    Returns the gradients of the operands of `add_norm`. `gradient` is the gradient of
    the result of `add_norm`.
    """
    dx, dw, db = _backward(x + residual, weight, shift, gradient, epsilon)
    return [dx, dx, dw, db]


def bias_add_norm(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    epsilon: float = 1e-5,
) -> torch.Tensor:
    """Returns the layer norm of `x + bias + residual` over the last dimension."""
    return F.layer_norm(x + bias + residual, weight.shape, weight, shift, epsilon)


def bias_backward(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    gradient: torch.Tensor,
    epsilon: float = 1e-5,
) -> list[torch.Tensor]:
    """
    Returns the gradients of the operands of `bias_add_norm`. `gradient` is the gradient
    of the result of `bias_add_norm`.
    """
    dx, dw, db = _backward(x + bias + residual, weight, shift, gradient, epsilon)
    return [dx, dx.sum_to_size(bias.shape), dx, dw, db]


def _backward(
    total: torch.Tensor,
    weight: torch.Tensor,
    shift: torch.Tensor,
    gradient: torch.Tensor,
    epsilon: float,
) -> list[torch.Tensor]:
    shape = list(weight.shape)
    _, mean, scale = torch.native_layer_norm(total, shape, weight, shift, epsilon)
    found = torch.ops.aten.native_layer_norm_backward(
        gradient, total, shape, mean, scale, weight, shift, [True, True, True]
    )
    return list(found)
