"""
Statistics and gradients of batch normalisation. Half precision is computed in float32.
"""

import torch


def _wide(x):
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _normal(x, mean, variance, epsilon):
    """
    Returns the normalised input, and the inverse standard deviations in a shape that
    broadcasts to the input.
    """
    shape = (-1, *[1] * (x.dim() - 2))
    inverse = torch.rsqrt(_wide(variance) + epsilon).reshape(shape)
    return (_wide(x) - _wide(mean).reshape(shape)).mul_(inverse), inverse


def variance(x, mean, count):
    """
    Returns the sum of squared distances of each channel from its mean, divided by
    `count`.
    """
    centered = _wide(x) - _wide(mean).reshape(-1, *[1] * (x.dim() - 2))
    return (centered.square_().sum((0, *range(2, x.dim()))) / count).to(mean.dtype)


def sums(dy, x, mean, variance, epsilon):
    """Returns the gradients of the scale and the bias."""
    over = (0, *range(2, x.dim()))
    normal, _ = _normal(x, mean, variance, epsilon)
    dscale, dbias = normal.mul_(_wide(dy)).sum(over), _wide(dy).sum(over)
    return dscale.to(mean.dtype), dbias.to(mean.dtype)


def gradients(dy, x, scale, mean, variance, epsilon):
    """
    Returns the gradients of the input, the scale and the bias, for a mean and variance
    that do not depend on the input.
    """
    found = torch.ops.aten.native_batch_norm_backward(
        *(_wide(dy), _wide(x)),
        *(_wide(v) for v in (scale, mean, variance)),
        *(None, None, False, epsilon, [True, True, True]),
    )
    return found[0].to(x.dtype), found[1].to(mean.dtype), found[2].to(mean.dtype)


def input_grad(dy, x, scale, mean, variance, dscale, dbias, epsilon, count):
    """
    Returns the gradient of the input, for a mean and variance computed from the input.
    `count` is the number of elements per channel.
    """
    shape = (-1, *[1] * (x.dim() - 2))
    normal, inverse = _normal(x, mean, variance, epsilon)
    scale, dscale, dbias = (_wide(v).reshape(shape) for v in (scale, dscale, dbias))
    # scale * inverse * (dy - dbias / count - normal * dscale / count), in one tensor
    dx = normal.mul_(-dscale / count).add_(_wide(dy)).sub_(dbias / count)
    dx = dx.mul_(scale * inverse)
    return dx.to(x.dtype)


def ghost_norm(x, scale, bias, groups, epsilon):
    """
    Returns the batch with each of its `groups` parts normalised separately, and the
    means and inverse standard deviations of the parts.
    """
    parts = [
        torch.native_batch_norm(part, scale, bias, None, None, True, 0.0, epsilon)
        for part in x.chunk(groups)
    ]
    if groups == 1:
        y, mean, inverse = parts[0]
        return y, mean[None].to(scale.dtype), inverse[None].to(scale.dtype)
    y, *statistics = zip(*parts, strict=True)
    mean, inverse = (torch.stack(values).to(scale.dtype) for values in statistics)
    return torch.cat(y), mean, inverse


def ghost_norm_grad(dy, x, scale, mean, inverse, groups, epsilon):
    """Returns the gradients of the input, the scale and the bias of `ghost_norm`."""
    parts = [
        torch.ops.aten.native_batch_norm_backward(
            *map(_wide, part),
            *(scale, None, None, *statistics, True, epsilon, [True, True, True]),
        )
        for *part, statistics in zip(
            dy.chunk(groups),
            x.chunk(groups),
            zip(_wide(mean), _wide(inverse), strict=True),
            strict=True,
        )
    ]
    if groups == 1:
        dx, dscale, dbias = parts[0]
        return dx.to(x.dtype), dscale, dbias
    dx, dscale, dbias = zip(*parts, strict=True)
    return (
        torch.cat(dx).to(x.dtype),
        torch.stack(dscale).sum(0),
        torch.stack(dbias).sum(0),
    )
