"""ONNX operators that read or write elements by index. Indices may be negative."""

import torch

from ..devices import here

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _from_zero(indices, size):
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def gather_elements(x, indices, axis):
    return x.gather(axis, _from_zero(indices, x.shape[axis]))


def gather_nd(x, indices, batch_dims=0):
    """
    Returns the elements or slices of `x` at the index tuples in the last dimension of
    `indices`. The first `batch_dims` dimensions of both tensors correspond.
    """
    batch = x.shape[:batch_dims]
    length = indices.shape[-1]
    flat = x.reshape(batch.numel(), *x.shape[batch_dims:])
    tuples = indices.reshape(batch.numel(), -1, length).to(torch.int64)
    first = (
        torch.arange(batch.numel(), device=here())
        .reshape(-1, 1)
        .expand(tuples.shape[:2])
    )
    found = flat[(first, *tuples.unbind(-1))]
    return found.reshape(*indices.shape[:-1], *x.shape[batch_dims + length :])


def scatter_elements(x, indices, updates, axis, reduction="none"):
    indices = _from_zero(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, _REDUCTIONS[reduction])


def scatter_nd(x, indices, updates, reduction="none"):
    """
    Returns `x` with `updates` written at the index tuples in the last dimension of
    `indices`, or combined with the old values by `reduction`.
    """
    length = indices.shape[-1]
    sizes = x.shape[:length]
    strides = [sizes[i + 1 :].numel() for i in range(length)]
    tuples = indices.reshape(-1, length).to(torch.int64)
    rows = torch.zeros(len(tuples), dtype=torch.int64, device=here())
    for i, stride in enumerate(strides):
        rows = rows + _from_zero(tuples[:, i], sizes[i]) * stride
    flat = x.reshape(sizes.numel(), -1)
    new = updates.reshape(len(rows), -1)
    places = rows.unsqueeze(1).expand(new.shape)
    if reduction == "none":
        return flat.scatter(0, places, new).reshape(x.shape)
    return flat.scatter_reduce(0, places, new, _REDUCTIONS[reduction]).reshape(x.shape)


def tensor_scatter(x, update, places, axis, mode="linear", in_place=False):
    """
    Returns `x` with one block per batch entry overwritten by `update` along `axis`.
    `places` are the start positions of the blocks; if `places` is None, all blocks
    start at 0. Positions wrap around in mode "circular". With `in_place`, the block is
    written into `x` itself.
    """
    axis = axis % x.dim()
    slots = torch.arange(update.shape[axis], device=update.device)
    if places is not None:
        slots = places.to(torch.int64).unsqueeze(-1) + slots
    if mode == "circular":
        slots = slots % x.shape[axis]
    shape = [1] * x.dim()
    shape[axis] = -1
    if places is not None:
        shape[0] = x.shape[0]
    index = slots.reshape(shape).expand(update.shape)
    # PyTorch scatters no floats of 8 bits on CPUs, but their bytes.
    is_narrow = x.dtype.is_floating_point and x.dtype.itemsize == 1
    own, new = (v.view(torch.uint8) if is_narrow else v for v in (x, update))
    return (own.scatter_ if in_place else own.scatter)(axis, index, new).view(x.dtype)


def compress(x, condition, axis=None):
    """
    Returns the slices along `axis` for which `condition` is true. If `axis` is None,
    returns elements of the flattened tensor.
    """
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, condition.nonzero().reshape(-1))


def one_hot(indices, depth, values, axis=-1):
    """
    Returns one-hot vectors of length `depth` along a new dimension `axis`. `values`
    holds two elements: the off value, then the on value. Negative indices count from
    the end. For an index out of range, all elements have the off value.
    """
    classes = torch.arange(depth, device=here())
    places = indices.to(torch.int64)
    places = torch.where(places < 0, places + depth, places)
    hot = places.unsqueeze(-1) == classes
    off, on = values.unbind(0)
    out = torch.where(hot, on, off)
    return out.movedim(-1, axis)


def reverse_sequence(x, lengths, batch_axis, time_axis):
    """
    Returns `x` with the first `lengths[b]` elements of each batch entry b reversed.
    """
    moved = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(moved.shape[1], device=here())
    ends = lengths.reshape(-1, 1).to(torch.int64)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    rows = torch.arange(moved.shape[0], device=here()).unsqueeze(1)
    return moved[rows, places].movedim((0, 1), (batch_axis, time_axis))


def unique(x, axis=None, ordered=True):
    """
    Returns four tensors: the unique slices along `axis`, the first position of each
    unique slice, the index of the unique slice for each original slice, and the number
    of occurrences of each unique slice. Unique slices are sorted if `ordered`, else in
    the order of their first positions. If `axis` is None, the elements of `x` take the
    place of the slices.
    """
    if axis is None:
        found, inverse, counts = torch.unique(
            x.reshape(-1), return_inverse=True, return_counts=True
        )
        axis = 0
    else:
        found, inverse, counts = torch.unique(
            x, dim=axis, return_inverse=True, return_counts=True
        )
    inverse = inverse.reshape(-1)
    places = torch.arange(len(inverse), device=here())
    first = torch.full((len(counts),), len(inverse), device=here()).scatter_reduce(
        0, inverse, places, "amin"
    )
    if not ordered:
        order = first.argsort()
        found = found.index_select(axis, order)
        counts, first = counts[order], first[order]
        inverse = order.argsort()[inverse]
    return found, first, inverse, counts


def gather_grad(dy, indices, shape, axis):
    """Returns the gradient of a look-up along `axis` in data of shape `shape`."""
    depth = indices.dim()
    slices = dy.movedim(tuple(range(axis, axis + depth)), tuple(range(depth)))
    rest = slices.shape[depth:]
    indices = torch.where(indices < 0, indices + shape[axis], indices).reshape(-1)
    # A kernel that adds in a fixed order, on GPUs too.
    out = torch.ops.aten.embedding_dense_backward(
        slices.reshape(indices.numel(), rest.numel()), indices, shape[axis], -1, False
    )
    return out.reshape(shape[axis], *rest).movedim(0, axis)


def add_look_ups(base, dy, indices, in_place=False):
    """
    Returns `base` with each slice of `dy` added to the row given by its index in
    `indices`, in a fixed order. With `in_place`, `base` is overwritten.
    """
    out = base if in_place else base.clone()
    if out.is_cuda:
        return out.index_put_((indices,), dy, accumulate=True)
    places = torch.where(indices < 0, indices + len(out), indices).reshape(-1)
    return out.index_add_(0, places, dy.reshape(-1, *out.shape[1:]))


def scatter_sum(updates, indices, shape, axis, batch_dims):
    """
    Returns zeros of shape `shape` with `updates` added at `indices`: positions along
    `axis`, or, if `axis` is None, tuples of positions after `batch_dims` batch
    dimensions.
    """
    zeros = updates.new_zeros(shape)
    if axis is not None:
        return zeros.scatter_add(axis, _from_zero(indices, shape[axis]), updates)
    count, length = batch_dims, indices.shape[-1]
    batch = zeros.shape[:count].numel()
    indexed = shape[count : count + length]
    rest = zeros.shape[count + length :].numel()
    tuples = indices.reshape(batch, -1, length)
    places = torch.zeros_like(tuples[..., 0], dtype=torch.int64)
    for i, size in enumerate(indexed):
        places = places * size + _from_zero(tuples[..., i], size)
    rows = updates.reshape(batch, -1, rest)
    flat = zeros.reshape(batch, -1, rest)
    places = places.unsqueeze(2).expand(rows.shape)
    return flat.scatter_add(1, places, rows).reshape(shape)
