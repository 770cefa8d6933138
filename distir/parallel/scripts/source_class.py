"""The attributes and methods that a parallel module has of the class of its source."""

from __future__ import annotations

import inspect
from functools import partial
from types import MethodType
from typing import Any, Never

import torch
from torch import nn

from distir.errors import DistIRError

_OTHERWISE = {
    "generate": "it would run the forward of one process for each word; save_pretrained the "
    "model and generate with what from_pretrained loads",
    "activation_checkpointing_enable": "say so when the module is parallelized "
    '(checkpoint="full")',
    "gradient_checkpointing_enable": "say so when the module is parallelized "
    '(checkpoint="full")',
    "resize_token_embeddings": "do so before the module is parallelized",
}
"""Methods of transformers' models that would have no effect, and what to do instead."""


def of_class(module: nn.Module, source: nn.Module, name: str) -> Any:
    """
    Returns what the class of `source` has under `name`: a value, a property of `module`, or a
    method that runs on `module`. Raises AttributeError.
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
    Gives a module the attributes of `source`, such as `config`, but for its modules and tensors
    and for what the module has itself.
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
