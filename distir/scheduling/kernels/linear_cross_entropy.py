"""
Cross-entropies of a linear layer, computed for one chunk of rows after another, so that
neither the forward nor the backward pass holds all logits.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

CHUNK = 1 << 24
"""The maximal number of logits that are held at once."""


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> torch.Tensor:
    """
    Returns the cross-entropy of a linear layer without a bias. `x` has the shape [...,
    features]; each index into the dimensions before the last one is a row. `weight` has
    one row per class, and `labels` one label per row of `x`.
    """
    return _losses(x, weight, None, labels, reduction, ignore_index)


def biased_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    labels: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> torch.Tensor:
    """
    Returns the cross-entropy of a linear layer with a bias. `x` has the shape [...,
    features]; each index into the dimensions before the last one is a row. `weight` has
    one row per class, and `labels` one label per row of `x`.
    """
    return _losses(x, weight, bias, labels, reduction, ignore_index)


def backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    gradient: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> list[torch.Tensor | None]:
    """
    Returns the gradients of `x` and `weight`, and None for `labels`. `gradient` is the
    gradient of the loss. The logits are recomputed.
    """
    found = _slopes(x, weight, None, labels, gradient, reduction, ignore_index)
    return [*found[:2], None]


def biased_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    labels: torch.Tensor,
    gradient: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> list[torch.Tensor | None]:
    """
    Returns the gradients of `x`, `weight` and `bias`, and None for `labels`. `gradient`
    is the gradient of the loss. The logits are recomputed.
    """
    found = _slopes(x, weight, bias, labels, gradient, reduction, ignore_index)
    return [*found, None]


def _losses(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    reduction: str,
    ignore_index: int,
) -> torch.Tensor:
    x = x.flatten(0, -2)
    parts = [
        F.cross_entropy(
            *(F.linear(x[rows], weight, bias), labels[rows]),
            ignore_index=ignore_index,
            reduction="none",
        )
        for rows in _chunks(x, weight)
    ]
    losses = torch.cat(parts)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum()


def _slopes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    gradient: torch.Tensor,
    reduction: str,
    ignore_index: int,
) -> list[torch.Tensor]:
    """Returns the gradients of `x`, `weight` and the bias, even if `bias` is None."""
    shape, x = x.shape, x.flatten(0, -2)
    counts = labels != ignore_index
    each = gradient / counts.sum() if reduction == "mean" else gradient
    scale = (each.expand(labels.shape) * counts)[:, None]
    dx, dw = torch.empty_like(x), torch.zeros_like(weight)
    db = weight.new_zeros(weight.shape[0])
    for rows in _chunks(x, weight):
        slopes = torch.softmax(F.linear(x[rows], weight, bias), -1)
        right = labels[rows].clamp(min=0)[:, None]
        slopes.scatter_add_(1, right, slopes.new_full((), -1).expand(right.shape))
        slopes *= scale[rows]
        dx[rows] = slopes @ weight
        dw += slopes.T @ x[rows]
        db += slopes.sum(0)
    return [dx.view(shape), dw, db]


def _chunks(x: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    count = max(1, CHUNK // max(1, weight.shape[0]))
    for start in range(0, x.shape[0], count):
        yield slice(start, start + count)
