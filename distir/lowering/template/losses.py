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


def logit_maximum(logits, dtype):
    return logits.amax(-1).to(dtype)


def exponential_sum(logits, maximum):
    # 16-bit logits less a maximum of 32 bits are 32 bits wide.
    return (logits - maximum[..., None]).exp_().sum(-1)


def label_logit(logits, labels, dtype):
    """0 where the label is none of the classes held here."""
    held, classes = _among(labels, logits.shape[-1])
    found = logits.gather(-1, classes)[..., 0].to(dtype)
    return torch.where(held, found, 0.0)


def cross_entropy_sum(maximum, total, chosen, labels, classes, factor, ignore_index):
    """NaN where a label that counts is no class at all."""
    each = total.log() - (chosen - maximum)
    held, _ = _among(labels, classes)
    each = torch.where(held, each, float("nan"))
    if ignore_index is not None:
        each = torch.where(labels != ignore_index, each, 0.0)
    return each.sum() * factor


def cross_entropy_part_grad(
    dloss, logits, labels, maximum, total, factor, ignore_index
):
    out = (logits - maximum[..., None]).exp_().div_(total[..., None])
    held, classes = _among(labels, logits.shape[-1])
    out.scatter_(-1, classes, out.gather(-1, classes) - held[..., None].to(out.dtype))
    scale = dloss * factor
    if ignore_index is not None:
        scale = (scale * (labels != ignore_index))[..., None]
    return (out * scale).to(logits.dtype)


def _among(labels, count):
    """Which labels are classes, and the classes with 0 for the others."""
    held = (labels >= 0) & (labels < count)
    return held, torch.where(held, labels, 0).to(torch.int64)[..., None]
