"""Reductions and searches with ONNX's conventions, for every element type."""

import torch

from ..devices import here

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _ordered(x):
    """
    Returns unsigned integers as signed integers of the same order, and tensors of other
    types unchanged.
    """
    if x.dtype == torch.uint64:
        return x.view(torch.int64) ^ torch.iinfo(torch.int64).min
    return x.to(torch.int64) if x.dtype in _UNSIGNED else x


def reduce(kind, x, axes, keep, noop=False):
    """
    Returns the ONNX reduction `kind` over `axes`. Without axes, all dimensions are
    reduced, or none if `noop`. A reduction over no elements is allowed if the reduction
    has a neutral element.
    """
    dtype = x.dtype
    if kind in ("ReduceMax", "ReduceMin"):
        x = _ordered(x)
    elif dtype in _UNSIGNED:
        x = x.to(torch.int64)
    if not axes:
        axes = [] if noop else list(range(x.dim()))
    axes = tuple(sorted(axis % x.dim() for axis in axes))
    wide = x
    if kind.startswith("ReduceLog") or kind == "ReduceL2":
        wide = x if x.is_floating_point() else x.to(torch.float64)
    elif not x.is_floating_point() and x.dtype != torch.bool:
        x = wide = x.to(torch.int64)
    if kind == "ReduceL1":
        wide = x if dtype in _UNSIGNED else x.abs()
    elif kind in ("ReduceL2", "ReduceSumSquare"):
        wide = wide * wide
    if kind == "ReduceLogSumExp":
        out = torch.logsumexp(wide, axes, keepdim=keep) if axes else wide
        return out.to(dtype)
    if kind == "ReduceProd":
        out = _product(x, axes, keep)
    elif kind in ("ReduceMax", "ReduceMin"):
        out = _extreme(x, axes, keep, kind == "ReduceMax", dtype)
        if dtype == torch.uint64:
            out = out ^ torch.iinfo(torch.int64).min
    elif kind == "ReduceMean":
        count = torch.Size([x.shape[axis] for axis in axes]).numel()
        if x.is_floating_point():
            out = x.mean(axes, keepdim=keep) if axes else x
        else:
            total = x.sum(axes, keepdim=keep, dtype=torch.int64) if axes else x
            out = torch.div(total, max(count, 1), rounding_mode="trunc")
    elif not axes:
        out = wide
    elif wide.is_floating_point():
        out = wide.sum(axes, keepdim=keep)
    else:
        out = wide.sum(axes, keepdim=keep, dtype=torch.int64)
    if kind == "ReduceL2":
        out = out.sqrt()
    if kind == "ReduceLogSum":
        out = out.log()
    return out.to(dtype)


def _product(x, axes, keep):
    for axis in reversed(axes):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _extreme(x, axes, keep, largest, dtype):
    if not axes:
        return x
    if 0 in (x.shape[axis] for axis in axes):
        shape = [
            1 if i in axes else n
            for i, n in enumerate(x.shape)
            if keep or i not in axes
        ]
        if dtype == torch.bool:
            return torch.full(shape, not largest, device=here())
        if dtype.is_floating_point:
            return torch.full(
                shape, -torch.inf if largest else torch.inf, dtype=dtype, device=here()
            )
        # In the order of signed integers, as `x` is.
        limits = torch.iinfo(torch.int64 if dtype == torch.uint64 else dtype)
        value = limits.min if largest else limits.max
        return torch.full(shape, value, dtype=x.dtype, device=here())
    if x.dtype == torch.bool:
        function = torch.any if largest else torch.all
        return function(x, axes, keepdim=keep)
    return x.amax(axes, keepdim=keep) if largest else x.amin(axes, keepdim=keep)


def arg_extreme(function, x, axis, keep, last):
    """
    Returns the position of the extreme along `axis`. Among equal values, the result is
    the last position if `last`, else the first. `function` is argmax or argmin.
    """
    x = _ordered(x)
    if not last:
        return function(x, axis, keepdim=keep)
    return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)


def top_k(x, count, axis, largest):
    """
    Returns the `count` largest (or smallest) values along `axis` in order, and their
    positions. Equal values stay in the order of their positions.
    """
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def hardmax(x, axis):
    """Returns a tensor that is 1 at the first maximum along `axis`, and 0 elsewhere."""
    if x.numel() == 0:
        return x
    place = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, place, 1)


def lp_normalize(x, p, axis):
    """Returns `x` divided by its norm along `axis`. Vectors of zeros stay zero."""
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return x / torch.where(norm == 0, 1, norm)
