"""
Makes inputs for a module that resemble the example inputs but have different values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from distir.frontends.torch.modules.runs import ModuleCall


def other_calls(call: ModuleCall, *, same_rows: bool = False) -> Iterator[ModuleCall]:
    """
    Yields calls with different values of the same shapes and types. The most different
    values come first, because a module may accept only some values. No two tensors
    share memory.

    - Floats have the mean and deviation of the example. If the example has no negative
      numbers, new floats are drawn from its range.
    - Integers are drawn from the example's range. In the second call, each row's
      numbers are permuted instead, so that the count of each number stays the same (such
      as the number of placeholders for features of an image). With `same_rows` only the
      second call is yielded.
    - Masks (two values, or floats that are not finite) exchange their rows. Positions
      and bounds (one dimension that increases) stay unchanged.
    """
    for rows in (True,) if same_rows else (False, True):
        generator = np.random.default_rng(0)
        yield call.with_leaves(
            [
                _other(x, generator, rows) if isinstance(x, torch.Tensor) else x
                for x in call.leaves
            ]
        )


def _other(
    tensor: torch.Tensor, generator: np.random.Generator, rows: bool
) -> torch.Tensor:
    own = tensor.detach()
    if not own.numel():
        return own.clone()
    if own.is_complex():
        parts = torch.view_as_real(own.resolve_conj())
        return torch.view_as_complex(_floats(parts, generator))
    if own.is_floating_point():
        if not bool(own.isfinite().all()) or _is_mask(own):
            return own.roll(1, 0) if own.dim() else own.clone()
        return _floats(own, generator)
    if own.dtype == torch.bool or _is_mask(own):
        return own.roll(1, 0) if own.dim() else own.clone()
    if own.dim() <= 1 and _increases(own):
        return own.clone()
    return _mixed(own, generator) if rows else _integers(own, generator)


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.unique().numel() == 2


def _increases(tensor: torch.Tensor) -> bool:
    """
    Whether a tensor is a single number or has increasing numbers, as positions and
    bounds do.
    """
    flat = tensor.reshape(-1)
    is_sorted = bool((flat[1:] >= flat[:-1]).all())
    return flat.numel() == 1 or (is_sorted and bool(flat[0] < flat[-1]))


def _floats(tensor: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    values = tensor.double().cpu()
    lowest, highest = float(values.min()), float(values.max())
    if lowest == highest:
        lowest, highest = (-1.0, 1.0) if lowest == 0 else sorted((lowest / 2, lowest))
    elif lowest < 0:
        # Not more extreme than the example, which the module takes.
        drawn = generator.standard_normal(tuple(tensor.shape))
        drawn = float(values.mean()) + float(values.std(correction=0)) * drawn
        return _like(drawn.clip(lowest, highest), tensor)
    return _like(generator.uniform(lowest, highest, tuple(tensor.shape)), tensor)


def _integers(tensor: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    lowest, highest = int(tensor.min()), int(tensor.max())
    if lowest == highest == 0 and tensor.device.type == "cpu":
        highest = 1  # an index that is too large would be an error, and not more, there
    return _like(
        generator.integers(lowest, highest, tuple(tensor.shape), endpoint=True), tensor
    )


def _mixed(tensor: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    values = np.asarray(tensor.cpu())
    return _like(generator.permuted(values, axis=-1), tensor)


def _like(values: Any, tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values).to(tensor.device, tensor.dtype)
