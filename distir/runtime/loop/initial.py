"""
Initial values of parameters, the same for every distribution.

Random numbers are counter-based: each element depends only on the seed, the name of its
tensor and its position in the whole tensor. All operations except the last
multiplication are on integers, so every device draws the same bits.
"""

import hashlib
from math import prod, sqrt

import torch

from .. import runtime
from ..communication import collectives, flattening
from ..random_numbers import MASK, threefry

STANDARD_DEVIATION = 0.02
"""The standard deviation of new matrices, which is usual for language models."""

_CHUNK = 1 << 20
_LANES = 8


def normal(key, positions):
    """
    Returns a float64 number for each position, from a distribution that is almost
    standard normal. Each number is the scaled sum of eight uniform 16-bit integers, at
    most 4.9 standard deviations from 0.
    """
    total = torch.zeros_like(positions)
    for draw in range(2):
        second = ((positions >> 32) << 1 | draw) & MASK
        for word in threefry(key, positions & MASK, second):
            total += (word & 0xFFFF) + (word >> 16)
    deviation = sqrt(_LANES * (65536**2 - 1) / 12)
    return (total - _LANES * 65535 // 2).to(torch.float64) * (1 / deviation)


def positions(spec, mesh, rank):
    """
    Returns the positions in the whole tensor of the elements in a process's part, or -1
    for zeros of the padding.
    """
    if spec.flattened:
        return _flat_positions(spec, mesh, rank)
    place = {}
    if mesh is not None:
        place = mesh.coordinates()[mesh.ranks.index(rank)]
    found = torch.zeros((), dtype=torch.int64)
    is_behind = torch.zeros((), dtype=torch.bool)
    for dim, size in enumerate(spec.whole_shape):
        index = torch.arange(size)
        for axis, run in spec.split[dim] if spec.split else ():
            index = collectives.split(index, mesh.axes[axis], 0, run)[place[axis]]
        if spec.padded:
            index = flattening.origins(spec, dim).to(index.device)[index]
        found = found.unsqueeze(-1) * spec.shape[dim] + index
        is_behind = is_behind.unsqueeze(-1) | (index < 0)
    return torch.where(is_behind, -1, found) if spec.padded else found


def _flat_positions(spec, mesh, rank):
    """
    Returns the positions in the whole tensor of the elements in a process's part of a
    flattened tensor, or -1 for zeros of the padding.
    """
    splits = spec.flattened[1]
    begin, end, blocks = flattening.held(spec, mesh, rank)
    found = torch.empty((end - begin, len(blocks)), dtype=torch.int64)
    is_behind = torch.arange(begin, end) >= prod(
        flattening.block_shape(spec.whole_shape, splits)
    )
    for column, block in enumerate(blocks):
        index, total, stride = torch.arange(begin, end), 0, 1
        places = flattening.places(spec.whole_shape, splits, block)
        if spec.padded:
            places = [flattening.origins(spec, d)[own] for d, own in enumerate(places)]
        is_zero = is_behind
        for size, own in zip(reversed(spec.shape), reversed(places), strict=True):
            here = own.to(index.device)[index % len(own)]
            total = total + here * stride
            is_zero = is_zero | (here < 0)
            index, stride = index // len(own), stride * size
        found[:, column] = torch.where(is_zero, -1, total)
    return found.reshape(runtime.local_shape(spec, mesh))


def parameter(spec, mesh, rank, seed):
    """
    Returns a process's part of a new parameter. Tensors of two or more dimensions are
    normal with standard deviation 0.02. Other tensors are one if their initial value is
    `ones`, as for scales, and else zero.
    """
    if spec.repacked:
        return runtime.shard(
            runtime.joined(spec, lambda part: parameter(part, None, rank, seed)),
            spec,
            mesh,
            rank,
        ).clone()
    where = positions(spec, mesh, rank)
    if len(spec.shape) < 2:
        value = 1 if spec.initial == "ones" else 0
        return torch.where(where < 0, 0, value).to(spec.dtype)
    digest = hashlib.sha256(f"{seed}:{spec.name}".encode()).digest()
    key = tuple(int.from_bytes(digest[i : i + 4], "big") for i in (0, 4))
    out = torch.empty(where.shape, dtype=spec.dtype)
    flat, places = out.view(-1), where.reshape(-1)
    for start in range(0, len(places), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        flat[chunk] = (normal(key, places[chunk]) * STANDARD_DEVIATION).to(spec.dtype)
    return out.masked_fill_(where < 0, 0) if spec.padded or spec.flattened else out
