"""
Speeds up fused optimizers on the parameters of parallel modules. For a hundred
parameters with their states and gradients, PyTorch's DTensor spends as much time on
layouts as the update of a small model takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from distir.parallel.scripts.optimizers import is_of_module
from distir.parallel.weights import local_part

_FUSED = (torch.ops.aten._fused_adam_.default, torch.ops.aten._fused_adamw_.default)
"""The operations that update many parameters in place, element by element."""


@cache
def update_local_parts() -> None:
    """
    Lets fused optimizers, in this process, work directly on the local parts of the
    parameters of parallel modules, if parameters, gradients and states have the same
    layout. DTensor handles all other cases and parameters as before.
    """
    # PyTorch's `loss_parallel` registers its operations so too.
    _handlers().update(dict.fromkeys(_FUSED, _updated))


def _updated(
    op: Any, args: tuple[Sequence[torch.Tensor], ...], kwargs: dict[str, Any]
) -> object:
    *lists, steps = args
    others = (*steps, *kwargs.values())
    if are_alike(lists) and not any(isinstance(other, DTensor) for other in others):
        return op(*([local_part(x) for x in own] for own in lists), steps, **kwargs)
    handlers = _handlers()
    del handlers[op]
    try:
        return op(*args, **kwargs)
    finally:
        handlers[op] = _updated


def are_alike(lists: Sequence[Sequence[torch.Tensor]]) -> bool:
    """
    Whether the tensors in `lists` have the same layouts. The first list must have
    parameters of parallel modules. Each further list must be empty, or have a DTensor
    with the layout of the parameter for each parameter.
    """
    if not all(is_of_module(parameter) for parameter in lists[0]):
        return False
    for tensors in lists[1:]:
        parameters = lists[0] if tensors else ()
        for tensor, parameter in zip(tensors, parameters, strict=True):
            if not isinstance(tensor, DTensor):
                return False
            own, wanted = _spec(tensor), _spec(parameter)
            if own is not wanted and (
                own.placements != wanted.placements or own.mesh != wanted.mesh
            ):
                return False
    return True


def _spec(tensor: Any) -> DTensorSpec:
    return tensor._spec


def _handlers() -> dict[Any, Any]:
    """Returns the functions with which DTensor replaces operations, by operation."""
    dispatcher: Any = DTensor._op_dispatcher  # pyright: ignore[reportPrivateUsage]
    return getattr(dispatcher, "_custom_op_handlers", {})
