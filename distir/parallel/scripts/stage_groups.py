"""
The groups of parameters in the states of a pipeline's optimizer. Each rank's optimizer
has the parameters of its own stages, but PyTorch's distributed checkpoint keeps only
the first rank's list of groups. With the groups of all ranks in this list, any plan can
read the states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict

_STATES, _GROUPS, _MEMBERS = "state", "param_groups", "params"


@cache
def list_all_stages() -> None:
    """
    Changes `get_state_dict` and `set_state_dict` of PyTorch, in this process, for
    optimizers of pipelines. `get_state_dict` and `get_optimizer_state_dict` then list
    the groups of all ranks, and all ranks must call them. An optimizer may have groups
    without members on some ranks. Other optimizers are not affected.
    """
    _replace("_get_optim_state_dict", _with_all_groups)
    _replace("_split_optim_state_dict", _without_empty_groups)


def _replace(name: str, ours: Callable[..., Any]) -> None:
    theirs = getattr(state_dict, name)

    @wraps(theirs)
    def changed(model: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(theirs, model, optimizers, *args, **kwargs)

    setattr(state_dict, name, changed)


def _with_all_groups(
    theirs: Callable[..., dict[str, Any]],
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    *args: Any,
    **kwargs: Any,
) -> dict[str, Any]:
    found = theirs(model, optimizers, *args, **kwargs)
    if _GROUPS not in found or not any(map(_is_of_pipeline, optimizers)):
        return found
    every: list[list[dict[str, Any]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, found[_GROUPS])
    return {**found, _GROUPS: _joined(every) or _listed(every)}


def _joined(every: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    """
    Returns the groups of all ranks, given the groups of each rank, if groups with the
    same index have the same settings on all ranks. Otherwise returns None.
    """
    if len({len(own) for own in every}) > 1:
        return None
    groups: list[dict[str, Any]] = []
    for same in zip(*every, strict=True):
        some = [group for group in same if group[_MEMBERS]] or [same[0]]
        settings = [{k: v for k, v in g.items() if k != _MEMBERS} for g in some]
        if any(each != settings[0] for each in settings):
            return None
        members = dict.fromkeys(name for group in some for name in group[_MEMBERS])
        groups.append({**some[0], _MEMBERS: list(members)})
    return groups


def _listed(every: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the concatenated groups of all ranks, each member once."""
    known: set[str] = set()
    groups: list[dict[str, Any]] = []
    for group in (group for own in every for group in own):
        members = [name for name in group[_MEMBERS] if name not in known]
        known.update(members)
        if members:
            groups.append({**group, _MEMBERS: members})
    return groups


def _without_empty_groups(
    theirs: Callable[..., dict[str, Any]],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    states: dict[str, Any],
    info: Any,
) -> dict[str, Any]:
    """
    Returns the states of an optimizer, read by PyTorch's function `theirs`. PyTorch
    finds the settings of a group by the group's members. A group that has members only
    on other ranks is therefore hidden from `theirs`, and keeps its settings.
    """
    groups = optimizer.param_groups
    is_numbered = not all(isinstance(key, str) for key in states[_STATES])
    if is_numbered or not _is_of_pipeline(optimizer):
        return theirs(model, optimizer, states, info)
    if not states[_STATES]:
        # PyTorch takes a state without names for that of `optimizer.state_dict()`.
        states = {**states, _STATES: {"": {}}}
        info = replace(info, strict=False)
    optimizer.param_groups = [group for group in groups if group[_MEMBERS]]
    try:
        found = theirs(model, optimizer, states, info)
    finally:
        optimizer.param_groups = groups
    read = iter(found[_GROUPS])
    return {
        **found,
        _GROUPS: [next(read) if group[_MEMBERS] else dict(group) for group in groups],
    }


def _is_of_pipeline(optimizer: torch.optim.Optimizer) -> bool:
    members = (p for group in optimizer.param_groups for p in group[_MEMBERS])
    return any(getattr(each, "_distir_pipeline", False) for each in members)
