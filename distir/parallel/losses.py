"""Losses that are Python functions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.torch_failures import quiet
from distir.parallel.calling import fake_output

_FAKES = "torch._subclasses.fake_tensor"

LossFunction = Callable[[Any, torch.Tensor], torch.Tensor]
"""A function of a module's output and the labels that returns a scalar."""

Loss = str | LossFunction | None
"""The name of a loss, a function, or None if the module returns its loss itself."""


@contextlib.contextmanager
def with_loss(module: torch.nn.Module, loss: LossFunction) -> Generator[None]:
    """
    A context manager inside which the module takes labels as its last positional argument
    and returns the loss.
    """
    forward, patched = module.forward, module.__dict__.get("forward")

    def forward_and_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        *own, labels = args
        return loss(forward(*own, **kwargs), labels)

    module.forward = forward_and_loss
    try:
        yield
    finally:
        if patched is None:
            del module.forward
        else:
            module.forward = patched


def labels_of(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossFunction,
) -> torch.Tensor:
    """
    Returns example labels for a loss: the number of a class for each position of a map
    (`[N, C, ...]`) or for each row of the module's output, or else a tensor like the
    output, whichever the loss accepts. Raises DistIRError.
    """
    output = fake_output(module, args, kwargs)
    candidates = list(_candidates(output))
    for labels in candidates:
        with warnings.catch_warnings(), quiet(_FAKES), contextlib.suppress(Exception):
            warnings.simplefilter("error")
            if loss(output, labels).ndim == 0:
                return torch.zeros(labels.shape, dtype=labels.dtype)
    tried = " and ".join(str(tuple(c.shape)) for c in candidates)
    raise DistIRError(
        f"parallelize: the loss gives no scalar for the output of "
        f"{type(module).__name__} and labels of shape {tried}; write the loss for labels "
        f"that are classes of each row, or of the output's shape"
    )


def _candidates(output: Any) -> Iterator[torch.Tensor]:
    for leaf in _pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.ndim:
            if leaf.ndim > 3:  # maps of space: PyTorch has their classes in dimension 1
                space = leaf.shape[2:]
                yield leaf.new_zeros((leaf.shape[0], *space), dtype=torch.int64)
            yield leaf.new_zeros(leaf.shape[:-1], dtype=torch.int64)
            yield leaf.new_zeros(leaf.shape)
            return
