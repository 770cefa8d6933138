"""
Keeps the module that was parallelized, but not the values of its parameters: they can
be freed once each rank has its parts.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Generator

import torch
from torch import nn

from distir.frontends.torch.modules.meta import has_no_value

_SPREAD = 0.02
"""The standard deviation of drawn values, small enough that deep modules stay finite."""


class KeptSource:
    """
    The source module of a parallel module. `release` replaces the reference to it by a
    weak reference and an outline: a copy of its structure and its buffers, with
    parameters on the meta device. `module` is the source module itself as long as the
    script keeps it, and the outline afterwards.
    """

    def __init__(self, module: nn.Module):
        self._outline = module
        self._module: weakref.ref[nn.Module] | None = None
        self._tensors: list[tuple[str, weakref.ref[torch.Tensor]]] = []

    @property
    def module(self) -> nn.Module:
        """The source module if the script has kept it, otherwise its outline."""
        alive = None if self._module is None else self._module()
        return self._outline if alive is None else alive

    @property
    def is_released(self) -> bool:
        """Whether `release` has dropped the reference to the source module."""
        return self._module is not None

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """
        Returns the parameters and buffers of the source module by name. After
        `release`, returns only those that the script still has.
        """
        if not self.is_released:
            module = self._outline
            return [*module.named_parameters(), *module.named_buffers()]
        alive = ((name, each()) for name, each in self._tensors)
        return [(name, tensor) for name, tensor in alive if tensor is not None]

    def release(self) -> None:
        """
        Drops the reference to the source module. Has no effect on a module that cannot
        be copied, or that is not wholly on the CPU.
        """
        module = self._outline
        named = self.tensors()
        if self.is_released or any(t.device.type != "cpu" for _, t in named):
            return
        outline = outline_of(module)
        if outline is None:
            return
        self._tensors = [(name, weakref.ref(tensor)) for name, tensor in named]
        self._module, self._outline = weakref.ref(module), outline

    @contextlib.contextmanager
    def with_values(self) -> Generator[nn.Module]:
        """
        A context manager that yields a module that can run: the source module or, if
        the script has dropped it, the outline with random values in its parameters. The
        random values are removed at the end. They suffice to compare a program with the
        module.
        """
        module = self.module
        if not self.is_released or module is not self._outline:
            yield module
            return
        generator = torch.Generator().manual_seed(0)
        places = [
            (part, name, parameter)
            for part in module.modules()
            for name, parameter in part._parameters.items()  # pyright: ignore[reportPrivateUsage]
            if parameter is not None
        ]
        drawn: dict[nn.Parameter, nn.Parameter] = {}
        for _, _, parameter in places:
            if parameter not in drawn:
                drawn[parameter] = _drawn(parameter, generator)
        try:
            for part, name, parameter in places:
                part._parameters[name] = drawn[parameter]  # pyright: ignore[reportPrivateUsage]
            yield module
        finally:
            for part, name, parameter in places:
                part._parameters[name] = parameter  # pyright: ignore[reportPrivateUsage]


def outline_of(module: nn.Module) -> nn.Module | None:
    """
    Returns a copy of a module that shares its buffers and has its parameters on the
    meta device. Returns None if the module cannot be copied.
    """
    memo: dict[int, object] = {id(buffer): buffer for buffer in module.buffers()}
    for parameter in module.parameters():
        if has_no_value(parameter) or type(parameter) is not nn.Parameter:
            return None
        memo[id(parameter)] = nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # of the user's code: the module is kept as it is
        return None


def _drawn(parameter: nn.Parameter, generator: torch.Generator) -> nn.Parameter:
    shape, kind = parameter.shape, parameter.dtype
    if not kind.is_floating_point:
        return nn.Parameter(torch.zeros(shape, dtype=kind), parameter.requires_grad)
    value = torch.randn(shape, generator=generator) * _SPREAD
    if parameter.dim() < 2:  # the scale of a norm
        value += 1.0
    return nn.Parameter(value.to(kind), parameter.requires_grad)
