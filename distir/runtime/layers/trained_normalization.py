"""
Normalisation layers in training. The forward functions return the statistics of each
row, and the backward functions take them as operands.
"""

import torch

aten = torch.ops.aten


def _wide(x):
    """
    Returns `x` in float32 if it is in half precision on a CPU, where statistics would
    be computed in half precision. Returns any other tensor unchanged.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.to(torch.float32) if half and not x.is_cuda else x


def layer_norm(x, scale, bias=None, *, epsilon):
    """
    Returns the normalised tensor, and the mean and the inverse standard deviation of
    each row.
    """
    given = (None if y is None else _wide(y) for y in (scale, bias))
    out, mean, inverse = torch.native_layer_norm(_wide(x), scale.shape, *given, epsilon)
    return out.to(scale.dtype), mean, inverse


def layer_norm_grad(dy, x, scale, mean, inverse, bias=True):
    """Returns the gradients of the input, the scale and, if `bias`, the bias."""
    weight = _wide(scale)
    # The last operand stands for the bias; only its type matters.
    found = aten.native_layer_norm_backward(
        *(_wide(dy), _wide(x), scale.shape, mean, inverse, weight, weight),
        [True, True, bias],
    )
    return tuple(y.to(x.dtype) for y in found[: 3 if bias else 2])


def rms_norm(x, scale, *, epsilon):
    """Returns the normalised tensor and the inverse root mean square of each row."""
    if x.is_cuda and x.dtype == scale.dtype:
        return aten._fused_rms_norm(x, scale.shape, scale, epsilon)
    rows, size = _rows(x, scale)
    inverse = (rows * rows).mean(1, keepdim=True).add_(epsilon).rsqrt_()
    out = (rows * inverse).mul_(scale.reshape(size))
    ones = [1] * scale.dim()
    statistic = inverse.reshape(*x.shape[: x.dim() - scale.dim()], *ones)
    return out.reshape(x.shape).to(scale.dtype), statistic


def rms_norm_grad(dy, x, scale, inverse):
    """Returns the gradients of the input and the scale."""
    if x.is_cuda and x.dtype == scale.dtype:
        return aten._fused_rms_norm_backward(
            *(dy, x, scale.shape, inverse, scale), [True, True]
        )
    rows, size = _rows(x, scale)
    gradient, weights = dy.reshape(-1, size).to(rows.dtype), scale.reshape(size)
    weights, inverse = weights.to(rows.dtype), inverse.reshape(-1)
    each = gradient * rows
    dscale = torch.mv(each.t(), inverse)
    # The mean of the products of the normalised rows and their gradients.
    mean = torch.mv(each, weights).mul_(inverse.pow(3)).div_(-size)
    dx = (gradient * weights).mul_(inverse[:, None]).addcmul_(rows, mean[:, None])
    return dx.reshape(x.shape).to(x.dtype), dscale.reshape(scale.shape).to(scale.dtype)


def _rows(x, scale):
    """
    Returns `x` as [rows, normalised size], in float32 or float64, and the normalised
    size.
    """
    size = scale.numel()
    wide_type = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.reshape(-1, size).to(wide_type), size
