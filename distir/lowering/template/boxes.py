"""The boxes of a whole tensor of which a process's part of it consists."""

from itertools import product

import torch

from . import collectives


def boxes(spec, mesh, rank):
    """
    Returns where the part of a tensor lies that a rank of the mesh holds: for each box
    where it begins in the whole tensor, where in the part, and its sizes.
    """
    place = {} if mesh is None else mesh.coordinates()[mesh.ranks.index(rank)]
    dims = []
    for dim, size in enumerate(spec.shape):
        index = torch.arange(size, device="cpu")
        for axis, run in spec.split[dim] if spec.split and mesh is not None else ():
            index = collectives.split(index, mesh.axes[axis], 0, run)[place[axis]]
        dims.append(runs(index))
    return [tuple(zip(*box, strict=True)) or ((), (), ()) for box in product(*dims)]


def runs(places):
    """
    Returns the runs of which ascending positions of a dimension consist: where each begins
    in the whole and among the positions, and its length.
    """
    breaks = (torch.diff(places) != 1).nonzero().reshape(-1) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(places)]
    return tuple(
        (int(places[start]), start, end - start)
        for start, end in zip(starts, ends, strict=True)
        if end > start
    )


def box_of(part, own, sizes):
    """Returns the elements of a box in a part: where it begins there, and its sizes."""
    for dim, (begin, size) in enumerate(zip(own, sizes, strict=True)):
        part = part.narrow(dim, begin, size)
    return part
