"""
Attributes and methods that a parallel module takes from the class of its source module.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import MethodType
from typing import Any, Never

import torch
from torch import nn

from distir.errors import DistIRError

_OTHERWISE = {
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


def of_class(module: nn.Module, source: nn.Module, name: str) -> Any:
    """
    Returns the attribute `name` of the class of `source`: a value, a property evaluated
    on `module`, or a method bound to `module`. A method that would have no effect on a
    parallel module is replaced by one that raises DistIRError. Raises AttributeError if
    the class has no such attribute.
    """
    kind = type(source)
    found = inspect.getattr_static(kind, name, None)
    if name in _OTHERWISE and found is not None:
        return partial(_refuse, kind.__name__, name)
    if isinstance(found, property) and found.fget is not None:
        return found.fget(module)
    if inspect.isfunction(found):
        return MethodType(found, module)
    if found is None:
        raise AttributeError(
            f"{type(module).__name__!r} object has no attribute {name!r}, and neither has "
            f"{kind.__name__}"
        )
    return getattr(kind, name)


def copy_attributes(source: nn.Module, module: nn.Module) -> None:
    """
    Copies the attributes of `source`, such as `config`, to `module`. Not copied are
    submodules, tensors, names that start with an underscore, and attributes that
    `module` already has.
    """
    for name, value in vars(source).items():
        if name not in vars(module) and not hasattr(type(module), name):
            if isinstance(value, torch.Tensor | nn.Module) or name.startswith("_"):
                continue
            setattr(module, name, value)


def _refuse(kind: str, name: str, *args: Any, **kwargs: Any) -> Never:
    raise DistIRError(
        f"{kind}.{name} has no effect on a parallel module, which runs its program: "
        f"{_OTHERWISE[name]}"
    )
