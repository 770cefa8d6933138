"""The parameters and buffers of a module by all of their names, listed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class NamedTensors:
    """
    The parameters and buffers of one module by all of their names; a tied parameter has
    several names. Because PyTorch needs 0.2 ms to list a hundred tensors, the list is
    kept, and made again only after a tensor or a submodule was replaced, for example
    during a `torch.func.functional_call`.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._places: list[tuple[Mapping[str, Any], str, Any]] = []

    def __deepcopy__(self, memo: object) -> NamedTensors:
        """
        Returns an object without a list, because the copy of the module has its own
        tensors.
        """
        return NamedTensors()

    def of(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """
        Returns the present tensors of `module` by name. Callers must not change the
        result.
        """
        places = self._places
        if not places or any(held.get(name) is not x for held, name, x in places):
            self._tensors = {
                **dict(module.named_buffers(remove_duplicate=False)),
                **dict(module.named_parameters(remove_duplicate=False)),
            }
            self._places = _places(module)
        return self._tensors


def _places(module: nn.Module) -> list[tuple[Mapping[str, Any], str, Any]]:
    """
    Returns, for each parameter, buffer and submodule of the module and of its parts,
    the table that holds it, its name there, and the object itself.
    """
    return [
        (held, name, value)
        for part in module.modules()
        for held in (
            vars(part)[kind] for kind in ("_parameters", "_buffers", "_modules")
        )
        for name, value in held.items()
    ]
