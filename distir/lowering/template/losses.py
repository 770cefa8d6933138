"""Losses of integer labels and their gradients."""

import torch
import torch.nn.functional as F

NO_LABEL = -(2**62)
"""No label is ignored; PyTorch's own default would ignore -100."""


def cross_entropy(logits, labels, factor, ignore_index, dtype):
    """The sum over all labels that count, times `factor`."""
    total = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).to(dtype),
        labels.reshape(-1).to(torch.int64),
        ignore_index=NO_LABEL if ignore_index is None else ignore_index,
        reduction="sum",
    )
    return total * factor


def cross_entropy_grad(dloss, logits, labels, factor, ignore_index):
    out = torch.softmax(logits, -1, dtype=dloss.dtype)
    classes = labels.to(torch.int64)
    scale = dloss * factor
    if ignore_index is not None:
        kept = classes != ignore_index
        classes = torch.where(kept, classes, 0)
        scale = (scale * kept)[..., None]
    classes = classes[..., None]
    out.scatter_(-1, classes, out.gather(-1, classes) - 1)
    return (out * scale).to(logits.dtype)
