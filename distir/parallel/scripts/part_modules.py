"""
The parts of a parallel module: submodules with the classes and the names of the source
module's submodules. They hold parameters, and refuse uses that would have no effect.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Never, Self

import torch
from torch import nn

from distir.errors import DistIRError
from distir.parallel.scripts.guards import check_conversion
from distir.parallel.scripts.sealed import Sealed
from distir.parallel.scripts.source_class import WITHOUT_EFFECT, attributes_of, refused


class ModulePart(Sealed):
    """
    A part of a parallel module. The program never calls it, so it refuses calls, hooks,
    changes of mode and conversions with DistIRError. Hooks on the parallel module
    itself run.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Never:
        """Raises DistIRError, because a part cannot be called."""
        raise DistIRError(
            "a part of a parallel module holds parameters and cannot be called; call the "
            "parallel module, or parallelize that part alone"
        )

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Never:
        """
        Raises DistIRError, because a part is never called and the hook would never run.
        The same holds for forward pre-hooks and backward hooks.
        """
        raise DistIRError(
            "a part of a parallel module holds parameters and is not called, so that a hook "
            "on it would never run; register the hook on the parallel module itself, or on a "
            "parameter (register_hook), or return the value that it is to see from the "
            "module's forward"
        )

    register_forward_pre_hook = register_forward_hook
    register_full_backward_hook = register_forward_hook
    register_full_backward_pre_hook = register_forward_hook

    def train(self, mode: bool = True) -> Self:
        """
        Returns the part if it already is in this mode. Raises DistIRError if it is in
        another mode.
        """
        if self.training != mode:
            name = "train" if mode else "eval"
            raise DistIRError(
                f"a part of a parallel module has the mode that it had when the module was "
                f"parallelized, and {name}() would not change it; call {name}() on the part "
                f"before parallelize, or on the whole module"
            )
        return self

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> Self:
        """Raises DistIRError for a conversion that would change a tensor."""
        check_conversion(self, fn)
        return self


def add_parts(module: nn.Module, source: nn.Module) -> None:
    """
    Adds an empty part to `module` for each submodule of `source`, under its names.
    Parts have the classes of these submodules, and their attributes except for tensors,
    so that scripts find them by class, index them and iterate over them. Every rank has
    all parts. If a rank does not run the stage of a submodule, the part stays without
    parameters.
    """
    made: dict[nn.Module, nn.Module] = {source: module}
    for each in source.modules():
        part = made.setdefault(each, _part_like(each))
        for name, child in each._modules.items():  # pyright: ignore[reportPrivateUsage]
            if child is not None:
                child = made.setdefault(child, _part_like(child))
            part._modules[name] = child  # pyright: ignore[reportPrivateUsage]


def _part_like(source: nn.Module) -> nn.Module:
    kind = type(source)
    if isinstance(source, torch.jit.ScriptModule):  # its class makes no instances
        kind = nn.Module
    part: nn.Module = object.__new__(_class_of(kind))
    nn.Module.__init__(part)
    # Without `__setattr__` of the class, which may expect tensors.
    vars(part).update(attributes_of(source))
    part.training = source.training
    return part


@cache
def _class_of(kind: type[nn.Module]) -> type[nn.Module]:
    """Returns the class of the parts that stand for modules of class `kind`."""
    own: dict[str, Any] = {
        name: refused(kind.__name__, name)
        for name in WITHOUT_EFFECT
        if hasattr(kind, name)
    }
    own |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    bases = (ModulePart,) if kind is nn.Module else (ModulePart, kind)
    return types.new_class(kind.__name__, bases, {}, lambda names: names.update(own))
