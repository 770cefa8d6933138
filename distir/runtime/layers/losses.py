"""Losses of integer labels, and their gradients."""

import torch
import torch.nn.functional as F

NO_LABEL = -(2**62)
"""
The value of PyTorch's `ignore_index` for ignoring no label. The default would ignore
label -100.
"""

CHUNK = 1 << 24
"""
The largest number of logits that exist at once in the type in which losses are
computed.
"""


def _chunks(logits, *others):
    """
    Yields chunks of rows of `logits`, with the corresponding elements of `others`.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    count = max(1, CHUNK // max(1, rows.shape[1]))
    others = [other.reshape(-1) for other in others]
    return list(zip(*(x.split(count) for x in (rows, *others)), strict=True))


def _by_rows(function, logits, *others):
    """
    Applies `function` to one chunk of rows after another, and returns the results as
    one tensor.
    """
    chunks = _chunks(logits, *others)
    parts = (function(*chunk) for chunk in chunks)
    if len(chunks) == 1:
        return next(parts)
    out, end = None, 0
    for part in parts:
        if out is None:
            count = logits.shape[:-1].numel()
            out = part.new_empty((count, *part.shape[1:]))
        out[end : end + len(part)] = part
        end += len(part)
    return out


def cross_entropy(logits, labels, factor, ignore_index, dtype):
    """
    Returns the sum of the losses of all labels except `ignore_index`, times `factor`.
    """
    ignored = NO_LABEL if ignore_index is None else ignore_index
    parts = [
        F.cross_entropy(rows.to(dtype), classes, ignore_index=ignored, reduction="sum")
        for rows, classes in _chunks(logits, labels.to(torch.int64))
    ]
    return (parts[0] if len(parts) == 1 else torch.stack(parts).sum()) * factor


def cross_entropy_grad(dloss, logits, labels, factor, ignore_index):
    scale = (dloss * factor).expand(labels.shape)
    classes = labels.to(torch.int64)
    if ignore_index is not None:
        kept = classes != ignore_index
        classes, scale = torch.where(kept, classes, 0), scale * kept
    gradient = _by_rows(_row_gradients, logits, classes, scale)
    return gradient.reshape(logits.shape)


def _row_gradients(rows, classes, scale):
    """
    Returns the gradients of rows of logits; `scale` multiplies the loss of each row.
    """
    out = torch.softmax(rows, -1, dtype=scale.dtype)
    places = classes[:, None]
    out.scatter_add_(1, places, out.new_full((1, 1), -1.0).expand_as(places))
    return out.mul_(scale[:, None]).to(rows.dtype)


def logit_maximum(logits, dtype):
    return logits.amax(-1).to(dtype)


def exponential_sum(logits, maximum):
    def of_rows(rows, largest):
        # 16-bit logits minus a 32-bit maximum are 32 bits wide.
        return (rows - largest[:, None]).exp_().sum(-1)

    return _by_rows(of_rows, logits, maximum).reshape(maximum.shape)


def label_logit(logits, labels, dtype):
    """
    Returns the logit of each label, or 0 if this process does not have the label's
    class.
    """
    held, classes = _among(labels, logits.shape[-1])
    found = logits.gather(-1, classes)[..., 0].to(dtype)
    return torch.where(held, found, 0.0)


def cross_entropy_sum(maximum, total, chosen, labels, classes, factor, ignore_index):
    """
    Returns the sum of the losses of all labels except `ignore_index`, times `factor`.
    Labels of other classes than 0 to `classes` - 1 make the sum NaN.
    """
    each = total.log() - (chosen - maximum)
    held, _ = _among(labels, classes)
    each = torch.where(held, each, float("nan"))
    if ignore_index is not None:
        each = torch.where(labels != ignore_index, each, 0.0)
    return each.sum() * factor


def cross_entropy_part_grad(
    dloss, logits, labels, maximum, total, factor, ignore_index
):
    scale = (dloss * factor).expand(labels.shape)
    if ignore_index is not None:
        scale = scale * (labels != ignore_index)

    def of_rows(rows, labels, maximum, total, scale):
        out = (rows - maximum[:, None]).exp_().div_(total[:, None])
        held, classes = _among(labels, rows.shape[-1])
        out.scatter_add_(1, classes, held[:, None].to(out.dtype).neg_())
        return out.mul_(scale[:, None]).to(rows.dtype)

    gradient = _by_rows(of_rows, logits, labels, maximum, total, scale)
    return gradient.reshape(logits.shape)


def _among(labels, count):
    """
    Returns booleans that are true for labels from 0 to `count` - 1, and the labels with
    0 in place of all labels outside of this range.
    """
    held = (labels >= 0) & (labels < count)
    return held, torch.where(held, labels, 0).to(torch.int64)[..., None]
