"""
Exports `nn.Transformer` with attention masks that the call does not mark as causal.

PyTorch's layers read the values of a mask to detect a causal mask, because attention
may then use a kernel without a mask. During an export, tensors have no values. A mask
that is not marked as causal is therefore exported as a mask of any kind, which computes
the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
from torch.nn.modules import transformer


@contextlib.contextmanager
def masks_as_they_are() -> Generator[None]:
    """
    A context manager in which the layers of `nn.Transformer` do not read the values of
    masks.
    """
    name = "_detect_is_causal_mask"
    if not hasattr(transformer, name):  # a version of PyTorch without it
        yield
        return
    before = getattr(transformer, name)
    setattr(transformer, name, _is_causal)
    try:
        yield
    finally:
        setattr(transformer, name, before)


def _is_causal(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Whether the caller declares a mask causal."""
    return is_causal is True
