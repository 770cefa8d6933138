"""
Cross-entropies of a linear layer, some rows at a time: its logits are never there as a whole,
neither in the forward nor in the backward.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

CHUNK = 1 << 24
"""Logits that are there at once."""


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> torch.Tensor:
    """The losses of rows `x`, of classes with these rows of `weight`."""
    parts = [
        F.cross_entropy(
            x[rows] @ weight.T, labels[rows], None, None, ignore_index, None, "none"
        )
        for rows in _chunks(x, weight)
    ]
    losses = torch.cat(parts)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum()


def backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    gradient: torch.Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> list[torch.Tensor | None]:
    """The gradients of rows and weights: the logits are computed again."""
    counts = labels != ignore_index
    each = gradient / counts.sum() if reduction == "mean" else gradient
    scale = (each.expand(labels.shape) * counts)[:, None]
    dx, dw = torch.empty_like(x), torch.zeros_like(weight)
    for rows in _chunks(x, weight):
        slopes = torch.softmax(x[rows] @ weight.T, -1)
        right = labels[rows].clamp(min=0)[:, None]
        slopes.scatter_add_(1, right, slopes.new_full((), -1).expand(right.shape))
        slopes *= scale[rows]
        dx[rows] = slopes @ weight
        dw += slopes.T @ x[rows]
    return [dx, dw, None]


def _chunks(x: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    count = max(1, CHUNK // max(1, weight.shape[0]))
    for start in range(0, x.shape[0], count):
        yield slice(start, start + count)
