"""
Modules whose parameters, buffers, submodules and attributes cannot be replaced. The
program of a parallel module would not notice the replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, SupportsIndex

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from distir.errors import DistIRError
from distir.parallel.scripts.guards import (
    refuse_assigned_data,
    refuse_composable_functions,
)
from distir.parallel.scripts.source_class import constants_of

_SEALED, _CONSTANTS = "_distir_sealed", "_distir_constants"


class Sealed(nn.Module):
    """
    A module that, once `seal` was called, refuses new parameters, buffers and
    submodules, and new values of attributes that the source module has. Such an
    attribute, for example a scheduled weight of a term of the loss, is a constant in
    the program.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if _SEALED in vars(self):
            is_held = any(
                name in held
                for held in (self._parameters, self._buffers, self._modules)
            )
            if is_held or isinstance(value, nn.Parameter | nn.Module):
                raise replaced(name)
            known: dict[str, Any] = vars(self)[_CONSTANTS]
            if name in known and not _is_same(known[name], value):
                raise DistIRError(
                    f"{name!r} had the value {known[name]!r} when the module was "
                    f"parallelized, and its programs keep it as a constant; give the "
                    f"forward a value that changes as a tensor among its inputs, or "
                    f"parallelize the module again"
                )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if _SEALED in vars(self) and any(
            name in held for held in (self._parameters, self._buffers, self._modules)
        ):
            raise replaced(name)
        super().__delattr__(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Registers a parameter. Raises DistIRError once the module is sealed."""
        if _SEALED in vars(self):
            raise replaced(name)
        super().register_parameter(name, param)

    def register_buffer(
        self, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        """Registers a buffer. Raises DistIRError once the module is sealed."""
        if _SEALED in vars(self):
            raise replaced(name)
        super().register_buffer(name, tensor, persistent)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Adds a submodule. Raises DistIRError once the module is sealed."""
        if _SEALED in vars(self):
            raise replaced(name)
        super().add_module(name, module)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """
        Returns the state of the module for `copy`, which uses protocol 4. Raises
        DistIRError if `torch.save` writes the module, because the file would hold only
        one rank's parts and no program.
        """
        if protocol != 4:
            raise DistIRError(
                "a parallel module, or a part of one, cannot be pickled (torch.save): it "
                "holds the parts of one rank, and programs; save parallel.state_dict() with "
                "torch.distributed.checkpoint, or whole_state_dict() of rank 0 with "
                "torch.save"
            )
        return super().__reduce_ex__(protocol)

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """
        Calls `fn` with each part and with the module itself, as `nn.Module.apply` does.
        Raises DistIRError if `fn` draws random numbers, as functions that initialise
        parameters do: ranks would draw different numbers for one parameter.
        """
        with _NoRandomNumbers():
            for part in self.children():
                part.apply(fn)
            fn(self)
        return self


def seal(module: nn.Module, source: nn.Module) -> None:
    """
    Seals `module` and its parts. `source` has submodules of the same names. Attributes
    must keep the values that they have in `source`.
    """
    refuse_assigned_data()
    sources = dict(source.named_modules())
    for name, part in module.named_modules():
        known = constants_of(sources[name]) if name in sources else {}
        vars(part)[_CONSTANTS] = known
        vars(part)[_SEALED] = True
        refuse_composable_functions(part)


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return before is now
    return before == now


def replaced(name: str) -> DistIRError:
    """Returns the error for replacing the parameter, buffer or submodule `name`."""
    return DistIRError(
        f"{name}: parameters, buffers and submodules of a parallel module cannot be "
        f"added, replaced or removed, as its programs are compiled for those that it has; "
        f"change, tie or add them before parallelize; to change values alone, copy them in "
        f"place (parameter.copy_(value) under torch.no_grad(), or load_state_dict)"
    )


class _NoRandomNumbers(TorchDispatchMode):
    """Refuses operations that draw random numbers for a DTensor."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random and any(isinstance(each, DTensor) for each in args):
            raise DistIRError(
                "apply: the function draws random numbers for a parameter of a parallel "
                "module, of which each rank would draw others; initialise the module before "
                "parallelize, or leave its parameters on the meta device: they are then "
                "drawn from seed= of parallelize"
            )
        return func(*args, **(kwargs or {}))
