"""
Attention in training with dropout of the probabilities.

PyTorch has no kernel that draws random numbers by position, so attention is computed in
several steps. To save memory, these steps run for one sample after another. On GPUs,
where small kernels are slow, the steps run for several samples at once, up to
`_AT_ONCE` scores.
"""

import math

import torch

from . import dropout, fused_attention

_AT_ONCE = 1 << 25


class DrawnFactors:
    """
    The factors by which dropout multiplies the probabilities, (batch, heads, queries,
    keys). `dropout.dropout` explains the arguments.
    """

    def __init__(self, counter, *coordinates, key, threshold, scale, shape, splits):
        self.scale = scale
        self._given = counter, coordinates, key, threshold, shape, splits

    def factors(self, like, local, samples):
        """
        Returns the factor of each probability in the range `samples`: `scale` for a
        kept probability, else 0, in the type of `like`. `local` is the shape of this
        process's part of the probabilities.
        """
        size = math.prod(local[1:])
        first, last = samples.start * size, samples.stop * size
        found = torch.empty(last - first, dtype=like.dtype, device=like.device)
        for start, end, keep in dropout.kept(local, (first, last), *self._given):
            found[start - first : end - first] = keep
        return found.mul_(self.scale).view(len(samples), *local[1:])


def _samples(query, key, value, mask, numbers, options):
    """
    Yields, for one group of samples after another, the slice of the samples, their
    attention, and the dropout factors of their probabilities.
    """
    count, step = query.shape[0], 1
    if query.is_cuda and count:
        whole = fused_attention.Attention(query, key, value, **options)
        size = math.prod(whole.query.shape[1:3]) * whole.key.shape[2]
        step = max(1, _AT_ONCE // max(size, 1))
    for index in range(0, count, step):
        samples = range(index, min(index + step, count))
        own = slice(samples.start, samples.stop)
        shown = mask
        if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
            shown = mask[own]
        part = fused_attention.Attention(
            query[own], key[own], value[own], shown, **options
        )
        local = (query.shape[0], *part.query.shape[1:3], part.key.shape[2])
        yield own, part, numbers.factors(part.query, local, samples)


def dropped_attention(query, key, value, *, numbers, mask=None, **options):
    """
    Returns the output of attention with dropout of the probabilities, and the
    logarithms of the sums of exponentials [batch, heads, queries]. Operands and options
    are those of `fused_attention.attention`.
    """
    outs, sums = [], []
    for _, part, factors in _samples(query, key, value, mask, numbers, options):
        weights, own = part.probabilities()
        outs.append(part.packed((weights * factors) @ part.repeated(part.value)))
        sums.append(own)
    return torch.cat(outs).to(query.dtype), torch.cat(sums)


def dropped_attention_grad(
    dy, out, sums, query, key, value, *, numbers, mask=None, **options
):
    """
    Returns the gradients of query, key and value. `out` and `sums` are the results of
    `dropped_attention`.
    """
    found = []
    for own, part, factors in _samples(query, key, value, mask, numbers, options):
        mine = (part.by_head(x[own], part.query.shape[1]) for x in (dy, out))
        dquery, *others = part.written_out(*mine, sums[own], factors)
        given = [dquery, *(part.over_groups(x) for x in others)]
        found.append([part.packed(x) for x in given])
    return tuple(torch.cat(x).to(query.dtype) for x in zip(*found, strict=True))
