"""Normalisations of ONNX that PyTorch's functions do not offer."""

import torch
import torch.nn.functional as F


def layer_norm(x, scale, bias, axis, epsilon, stash):
    """Returns the normalised tensor, the means and the inverse standard deviations."""
    axes = tuple(range(axis % x.dim(), x.dim()))
    wide = x.to(stash)
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    out = ((wide - mean) * inverse).to(x.dtype) * scale
    return (out if bias is None else out + bias), mean, inverse


def rms_norm(x, scale, axis, epsilon, stash):
    axes = tuple(range(axis % x.dim(), x.dim()))
    wide = x.to(stash)
    inverse = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return ((wide * inverse).to(x.dtype) * scale).to(x.dtype)


def batch_norm_training(x, scale, bias, mean, variance, epsilon, momentum):
    """
    Returns the normalised batch, the new running mean and the new running variance.
    """
    axes = (0, *range(2, x.dim()))
    own_mean = x.mean(axes)
    own_variance = x.var(axes, correction=0)
    out = F.batch_norm(x, own_mean, own_variance, scale, bias, eps=epsilon)
    return (
        out,
        mean * momentum + own_mean * (1 - momentum),
        variance * momentum + own_variance * (1 - momentum),
    )


def local_response_norm(x, size, alpha, beta, bias):
    """
    Returns `x` divided by a power of the mean square over `size` neighbouring channels,
    as `onnx.LRN` defines it.
    """
    before = (size - 1) // 2
    squares = x.square().movedim(1, -1)
    squares = F.pad(squares, [before, size - 1 - before])
    total = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * total).pow(beta)


def mean_variance_norm(x, axes):
    mean = x.mean(axes, keepdim=True)
    deviation = (x.square().mean(axes, keepdim=True) - mean.square()).sqrt()
    return (x - mean) / (deviation + 1e-9)
