"""
Parameters of the source module that a schedule merged into one argument of the program.

The parallel module holds these parameters under their own names, as views of this
rank's part of the argument. An optimizer that updates such a parameter in place thus
updates the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram


def joined(spec: Any, value_of: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """
    Returns the whole tensor of a merged argument: `value_of` gives the value of each
    part. Raises DistIRError if the argument interleaves its parts in groups.
    """
    _check_groups(spec)
    return torch.cat([value_of(part) for part in spec.parts()], spec.repacked[0])


def merged_parts(
    program: RankProgram, spec: Any, local: torch.Tensor
) -> Iterator[tuple[Any, torch.Tensor]]:
    """
    Yields, for each part of a merged argument or of its gradient, the part's
    description with its layout, and its view in this rank's tensor `local`. Raises
    DistIRError if a rank does not hold an even share of each part, or if the argument
    interleaves its parts in groups.
    """
    _check_groups(spec)
    dim, sizes, _ = spec.repacked
    split = spec.split[dim] if spec.split else ()
    start = 0
    parts, run = 1, spec.shape[dim]
    if split:
        ((axis, run), *others) = split
        parts = program.specs[spec.mesh].axes[axis]
        run = run or spec.shape[dim] // parts
        if others or any(size % (run * parts) for _, size in sizes):
            raise DistIRError(
                f"parallelize: {spec.name!r} is merged of {_names(spec)} and split so that "
                f"no rank has an even share of each, as parameters of the module must be; "
                f"split {sizes[0][0]!r} and the others alike with a request, or do not "
                f"merge them"
            )
    for part, (_, size) in zip(spec.parts(), sizes, strict=True):
        own: Any = spec.split
        if split:
            ((axis, _),) = split
            shard = (axis, None if run * parts == size else run)
            own = (*spec.split[:dim], (shard,), *spec.split[dim + 1 :])
        view = local.narrow(dim, start // parts, size // parts)
        yield replace(part, mesh=spec.mesh, split=own), view
        start += size


def make_views(
    module: nn.Module, program: RankProgram, others: Mapping[str, torch.Tensor]
) -> None:
    """
    Turns each parameter of the module that a schedule merged into a view of the merged
    argument. `others` holds the merged arguments by name, with the same values as the
    parameters.
    """
    for spec in program.arguments.values():
        if spec.repacked and spec.role == "parameter":
            merged = cast(DTensor, others[spec.name])
            for part, view in merged_parts(program, spec, merged.to_local()):
                # PyTorch cannot deep-copy a DTensor made of a view that begins behind the
                # beginning of its storage; it can one that is given the view afterwards,
                # and the copy's is a view of the copied argument.
                parameter = cast(DTensor, module.get_parameter(part.name))
                parameter._local_tensor = view  # pyright: ignore[reportPrivateUsage]


def _names(spec: Any) -> str:
    return ", ".join(repr(name) for name, _ in spec.repacked[1])


def _check_groups(spec: Any) -> None:
    groups = spec.repacked[2]
    if groups > 1:
        raise DistIRError(
            f"parallelize: {spec.name!r} is merged of {_names(spec)} in {groups} groups, so "
            f"that they are no views of it, as parameters of the module must be; do not "
            f"merge them"
        )
