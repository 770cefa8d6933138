"""
Attributes and methods that a parallel module takes from the class of its source module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, Never, cast

import torch
from torch import nn

from distir.errors import DistIRError

WITHOUT_EFFECT = {
    "activation_checkpointing_enable": "say so when the module is parallelized "
    '(checkpoint="full")',
    "gradient_checkpointing_enable": "say so when the module is parallelized "
    '(checkpoint="full")',
    "resize_token_embeddings": "do so before the module is parallelized",
}
"""
Methods of transformers' models that would have no effect, each with advice on an
alternative.
"""


_GATHERS = (
    "its program gathers and frees parameters by itself (zero=3), and leaves each rank its "
    "parts; full_tensor() of a parameter returns its whole value"
)
_REDUCES = (
    "the program of each step reduces its gradients, so that accumulation needs nothing of "
    "that kind; leave it out"
)

OF_WRAPPERS: dict[str, str] = {
    "module": "a parallel module is no wrapper; use it itself, without .module",
    "register_comm_hook": "its program holds the communication of its plan; leave it out",
    **dict.fromkeys(("unshard", "reshard", "set_reshard_after_forward"), _GATHERS),
    **dict.fromkeys(("set_requires_gradient_sync", "set_is_last_backward"), _REDUCES),
    "set_requires_all_reduce": _REDUCES,
}
"""
Attributes of DistributedDataParallel and FSDP2 that scripts use, each with advice on what a
parallel module has instead.
"""


def of_class(module: nn.Module, source: nn.Module, name: str) -> Any:
    """
    Returns the attribute `name` of the class of `source`: a value, a property evaluated
    on `module`, or a method bound to `module`. Replaces a method that would have no
    effect on a parallel module by a method that raises DistIRError. Raises
    AttributeError if the class has no such attribute.
    """
    kind = type(source)
    found = inspect.getattr_static(kind, name, None)
    if name in WITHOUT_EFFECT and found is not None:
        return refused(kind.__name__, name)
    if isinstance(found, property) and found.fget is not None:
        return found.fget(module)
    if inspect.isfunction(found):
        return MethodType(found, module)
    if found is None:
        advice = OF_WRAPPERS.get(name)
        raise AttributeError(
            f"{type(module).__name__!r} object has no attribute {name!r}, and neither has "
            f"{kind.__name__}" + (f"; {advice}" if advice else "")
        )
    return getattr(kind, name)


def attributes_of(source: nn.Module) -> dict[str, Any]:
    """
    Returns the attributes of `source` by name, such as `config`. Leaves out attributes
    that keep tensors or modules alive: tensors, modules, containers of them, and bound
    methods.
    """
    empty = vars(nn.Module())
    return {
        name: value
        for name, value in vars(source).items()
        if name not in empty and not any(map(_keeps_module, _elements(value)))
    }


def copy_attributes(source: nn.Module, module: nn.Module) -> None:
    """
    Copies the attributes of `source` to `module`, except for names that start with an
    underscore, and attributes that `module` already has.
    """
    for name, value in attributes_of(source).items():
        known = name in vars(module) or hasattr(type(module), name)
        if not known and not name.startswith("_"):
            setattr(module, name, value)


def constants_of(source: nn.Module) -> dict[str, Any]:
    """
    Returns the attributes of `source` that its `forward` may read as constants, by
    name: numbers, strings, booleans, None and tensors.
    """
    kinds = bool | int | float | str | torch.Tensor | None
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in vars(source).items()
        if isinstance(value, kinds)
        and not name.startswith("_")
        and name not in vars(nn.Module())
    }


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast(dict[Any, Any], value).values()
    if isinstance(value, list | tuple | set | frozenset):
        return cast(Iterable[Any], value)
    return [value]


def _keeps_module(value: Any) -> bool:
    return isinstance(value, torch.Tensor | nn.Module | MethodType)


def refused(kind: str, name: str) -> Callable[..., Never]:
    """Returns a method `name` of the class `kind` that raises DistIRError."""

    def method(*args: Any, **kwargs: Any) -> Never:
        raise DistIRError(
            f"{kind}.{name} has no effect on a parallel module, which runs its program: "
            f"{WITHOUT_EFFECT[name]}"
        )

    return method
