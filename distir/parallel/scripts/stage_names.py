"""
The names of parameters in the states of a pipeline's optimizer. Each rank's optimizer
has the parameters of its own stages, and PyTorch's distributed checkpoint keeps the
list of names of the first rank. With the names of all stages in this list, the states
can be read under any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def name_all_stages(optimizer: torch.optim.Optimizer) -> None:
    """
    Makes the state that `get_state_dict` returns for an optimizer of a pipeline list
    the names of all stages' parameters. Other optimizers stay as they are, as do those
    of several groups of parameters, whose members on other ranks are not known here.
    """
    if not hasattr(optimizer, "_distir_names_all") and _names(optimizer):
        optimizer._distir_names_all = True  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.register_state_dict_post_hook(_with_all_names)


def _names(optimizer: torch.optim.Optimizer) -> list[str]:
    """
    Returns the names of the parameters of all stages, or none if the optimizer is not
    that of a pipeline.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return list(getattr(parameter, "_distir_pipeline", ()))
    return []


def _with_all_names(
    optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> dict[str, Any] | None:
    if len(optimizer.param_groups) > 1:
        return None
    groups = [_Group(group, _names(optimizer)) for group in state["param_groups"]]
    return {**state, "param_groups": groups}


class _Group(dict[str, Any]):
    """
    The settings of a group of parameters, with the numbers of this rank's parameters.
    When PyTorch replaces these by names, the names of other stages are added. Other
    libraries make copies by `type(group)(items)`, which have no names to add.
    """

    def __init__(self, group: dict[str, Any], names: Sequence[str] = ()) -> None:
        super().__init__(group)
        self._names = names

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "params" and all(isinstance(name, str) for name in value):
            value = [*value, *(n for n in self._names if n not in value)]
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes copies and files hold a plain dictionary in place of this object."""
        return dict, (list(self.items()),)
