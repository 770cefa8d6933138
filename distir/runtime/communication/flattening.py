"""
Padding and flattening of tensors, so that any number of processes can split them. Zeros
are added after or between the elements.
"""

from itertools import product
from math import prod

import torch

from . import collectives

ZERO = -2
"""
The position that stands for a zero of the padding. It is not -1, which would be next to
the position of the first element.
"""


def origins(spec, dim):
    """
    Returns, for each position of a padded dimension, the position in the tensor without
    padding, or `ZERO` for padding.
    """
    whole, size = spec.whole_shape[dim], spec.shape[dim]
    found = torch.full((whole,), ZERO, device="cpu")
    if not spec.runs or spec.runs[0] != dim:
        found[:size] = torch.arange(size, device="cpu")
        return found
    begin = first = 0
    for count, zeros in spec.runs[1]:
        elements = torch.arange(first, first + count, device="cpu")
        found[begin : begin + count] = elements
        first, begin = first + count, begin + count + zeros
    return found


def pad(tensor, spec):
    """Returns a whole tensor with the padding of `spec`."""
    for dim, size in enumerate(spec.whole_shape):
        if size != tensor.shape[dim]:
            where = (origins(spec, dim) >= 0).nonzero().reshape(-1).to(tensor.device)
            shape = list(tensor.shape)
            shape[dim] = size
            tensor = tensor.new_zeros(shape).index_copy_(dim, where, tensor)
    return tensor


def cut(tensor, spec):
    """Returns a whole tensor without the padding of `spec`; the inverse of `pad`."""
    for dim, size in enumerate(spec.shape):
        if size != tensor.shape[dim]:
            where = (origins(spec, dim) >= 0).nonzero().reshape(-1).to(tensor.device)
            tensor = tensor.index_select(dim, where)
    return tensor


def flatten(tensor, length, splits=()):
    """
    Returns the elements of a tensor in row-major order, followed by zeros up to
    `length`. Each split (dimension, parts, run) first deals the dimension out to
    `parts` blocks in runs of `run` elements. Each split adds a dimension to the result,
    whose index is the block.
    """
    counts = [parts for _, parts, _ in splits]
    for dim, parts, run in splits:
        if parts == 1:
            tensor = tensor.unsqueeze(-1)
        else:
            tensor = tensor.unflatten(dim, (-1, parts, run)).movedim(dim + 1, -1)
            tensor = tensor.flatten(dim, dim + 1)
    flat = tensor.reshape(-1, *counts)
    missing = length - flat.shape[0]
    if not missing:
        return flat
    return torch.cat([flat, flat.new_zeros(missing, *counts)])


def unflatten(flat, shape, splits=()):
    """
    Returns the tensor of shape `shape` whose flattened form is `flat`; the inverse of
    `flatten`.
    """
    block = block_shape(shape, splits)
    tensor = flat[: prod(block)].reshape((*block, *flat.shape[1:]))
    for dim, parts, run in reversed(splits):
        if parts == 1:
            tensor = tensor.squeeze(-1)
        else:
            tensor = tensor.unflatten(dim, (-1, run)).movedim(-1, dim + 1)
            tensor = tensor.flatten(dim, dim + 2)
    return tensor


def block_shape(shape, splits):
    """
    Returns the shape of each block into which `splits` cut a tensor of shape `shape`.
    """
    left = list(shape)
    for dim, parts, _ in splits:
        left[dim] //= parts
    return tuple(left)


def places(shape, splits, block):
    """
    Returns, for each dimension, the positions in the whole tensor that belong to a
    block; `block` is the index of the block, with one number for each split.
    """
    found = [torch.arange(size, device="cpu") for size in shape]
    for (dim, parts, run), at in zip(splits, block, strict=True):
        found[dim] = found[dim].unflatten(0, (-1, parts, run))[:, at].flatten()
    return found


def held(spec, mesh, rank):
    """
    Returns a rank's part of a flattened tensor: the start and end of its range in each
    block, and the indices of its blocks, in the order in which the rank holds the
    blocks.
    """
    length, splits = spec.flattened
    place = {} if mesh is None else mesh.coordinates()[mesh.ranks.index(rank)]
    begin, columns = 0, [range(parts) for _, parts, _ in splits]
    if spec.split and mesh is not None:
        for axis, _ in spec.split[0]:  # never in runs
            length //= mesh.axes[axis]
            begin += place[axis] * length
        for dim, axes in enumerate(spec.split[1:]):
            index = torch.arange(len(columns[dim]), device="cpu")
            for axis, run in axes:
                index = collectives.split(index, mesh.axes[axis], 0, run)[place[axis]]
            columns[dim] = index.tolist()
    return begin, begin + length, list(product(*columns))
