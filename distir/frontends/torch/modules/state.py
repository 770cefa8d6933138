"""
The state of modules: which parts are in training mode, and context managers that
restore modules and random numbers after a run.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from distir.errors import DistIRError
from distir.frontends.torch.modules.meta import has_no_value

if TYPE_CHECKING:
    import torch


def parts_that_change(module: torch.nn.Module) -> list[str]:
    """
    Returns the names of the parts in training mode that behave differently in
    evaluation mode: parts with dropout, and batch normalisations.
    """
    from torch.nn.modules.batchnorm import (
        _BatchNorm,  # pyright: ignore[reportPrivateUsage]
    )
    from torch.nn.modules.dropout import (
        _DropoutNd,  # pyright: ignore[reportPrivateUsage]
    )

    found: list[str] = []
    for name, part in module.named_modules():
        # Attention and recurrent layers hold the rate of their dropout themselves.
        own = part.p if isinstance(part, _DropoutNd) else getattr(part, "dropout", 0.0)
        drops = isinstance(own, float | int) and own > 0
        if part.training and (drops or isinstance(part, _BatchNorm)):
            found.append(name or type(part).__name__)
    return found


def training_norms(module: torch.nn.Module) -> dict[str, float]:
    """
    Returns, for every batch normalisation in training mode, the fraction of the running
    statistics that a step keeps. Keys are the names of the batch normalisations. Raises
    DistIRError for a batch normalisation without running statistics or without a fixed
    momentum.
    """
    from torch.nn.modules.batchnorm import (
        _BatchNorm,  # pyright: ignore[reportPrivateUsage]
    )

    found: dict[str, float] = {}
    for name, part in module.named_modules():
        if not isinstance(part, _BatchNorm) or not part.training:
            continue
        if not part.track_running_stats or part.momentum is None:
            raise DistIRError(
                f"{type(part).__name__} {name!r} has no running statistics with a fixed "
                f"momentum, which is what can be trained; set its momentum and "
                f"track_running_stats=True, or put it into evaluation mode"
            )
        found[name] = 1 - part.momentum
    return found


@contextlib.contextmanager
def unchanged(module: torch.nn.Module, training: bool | None = None) -> Generator[None]:
    """
    A context manager inside which a module runs in training or evaluation mode (None:
    each part in its own mode), and batch normalisation does not update its running
    statistics.

    At the end, the module's modes, buffers, attributes and hooks, and the random
    numbers of Python, NumPy and PyTorch are restored. Raises DistIRError for batch
    normalisations that `training_norms` refuses.
    """
    import torch

    own = set(vars(torch.nn.Module())) - {"training"}
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    containers: list[tuple[Any, Any]] = []
    buffers: list[tuple[dict[str, Any], dict[str, Any]]] = []
    values: list[tuple[torch.Tensor, torch.Tensor]] = []
    for part in module.modules():
        attributes = vars(part)
        kept = {n: v for n, v in attributes.items() if n not in own}
        held.append((attributes, kept))
        containers += [
            (value, value.copy())
            for name, value in attributes.items()
            if _are_hooks(name, value)
            or (name in kept and type(value) in (list, dict, set))
        ]
        tensors: Any = part._buffers  # pyright: ignore[reportPrivateUsage]
        if isinstance(tensors, dict):  # not those of a ScriptModule
            buffers.append((tensors, dict(tensors)))
        values += [
            (tensor, tensor.detach().clone())
            for tensor in tensors.values()
            if tensor is not None and not has_no_value(tensor)
        ]
    devices = list(range(torch.cuda.device_count())) if _uses_cuda() else []
    with torch.random.fork_rng(devices=devices), unchanged_python_random():
        try:
            if training is not None:
                module.train(training)
            for name in training_norms(module):
                module.get_submodule(name).momentum = 0.0  # pyright: ignore[reportArgumentType]
            yield
        finally:
            for attributes, kept in held:
                for name in [n for n in attributes if n not in own and n not in kept]:
                    del attributes[name]
                attributes.update(kept)
            for now, before in (*containers, *buffers):
                now.clear()
                (now.extend if isinstance(now, list) else now.update)(before)
            with torch.no_grad():
                for tensor, value in values:
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def _are_hooks(name: str, value: Any) -> bool:
    """
    Whether an attribute of a module holds hooks. Models that install hooks in their
    first run record this in a further attribute, so the hooks and this attribute must
    be restored together.
    """
    return "_hooks" in name and isinstance(value, dict)


def _uses_cuda() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_initialized()


def python_random_state() -> tuple[Any, ...]:
    """
    Returns the states of the random number generators of Python and NumPy as comparable
    tuples.
    """
    name, words, *rest = np.random.get_state()
    return random.getstate(), (name, np.asarray(words).tobytes(), *rest)


@contextlib.contextmanager
def unchanged_python_random() -> Generator[None]:
    """
    A context manager that restores the state of the random number generators of Python
    and NumPy at its end.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
