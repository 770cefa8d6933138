"""Statistics and gradients of batch normalisation; halves are computed in float32."""

import torch


def _wide(x):
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _normal(x, mean, variance, epsilon):
    """The normalised input and the inverse deviations, aligned with its dimensions."""
    shape = (-1, *[1] * (x.dim() - 2))
    inverse = torch.rsqrt(_wide(variance) + epsilon).reshape(shape)
    return (_wide(x) - _wide(mean).reshape(shape)).mul_(inverse), inverse


def variance(x, mean, count):
    """The mean square distance of each channel from its mean."""
    centered = _wide(x) - _wide(mean).reshape(-1, *[1] * (x.dim() - 2))
    return (centered.square_().sum((0, *range(2, x.dim()))) / count).to(mean.dtype)


def sums(dy, x, mean, variance, epsilon):
    """The gradients of scale and bias."""
    over = (0, *range(2, x.dim()))
    normal, _ = _normal(x, mean, variance, epsilon)
    dscale, dbias = normal.mul_(_wide(dy)).sum(over), _wide(dy).sum(over)
    return dscale.to(mean.dtype), dbias.to(mean.dtype)


def gradients(dy, x, scale, mean, variance, epsilon):
    """The gradients of input, scale and bias, for a given mean and variance."""
    found = torch.ops.aten.native_batch_norm_backward(
        *(_wide(dy), _wide(x)),
        *(_wide(v) for v in (scale, mean, variance)),
        *(None, None, False, epsilon, [True, True, True]),
    )
    return found[0].to(x.dtype), found[1].to(mean.dtype), found[2].to(mean.dtype)


def input_grad(dy, x, scale, mean, variance, dscale, dbias, epsilon, count):
    """The gradient of an input that mean and variance were computed from."""
    shape = (-1, *[1] * (x.dim() - 2))
    normal, inverse = _normal(x, mean, variance, epsilon)
    scale, dscale, dbias = (_wide(v).reshape(shape) for v in (scale, dscale, dbias))
    # scale * inverse * (dy - dbias / count - normal * dscale / count), in one tensor
    dx = normal.mul_(-dscale / count).add_(_wide(dy)).sub_(dbias / count)
    dx = dx.mul_(scale * inverse)
    return dx.to(x.dtype)
