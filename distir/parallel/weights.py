"""
The values of parameters and buffers: initial values from the source module on rank 0,
and whole tensors of later values, gathered on rank 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from distir.frontends.torch.modules.meta import has_no_value


def names_of(source: nn.Module) -> dict[str, list[str]]:
    """
    Returns all names of each parameter of a module, by its first name. Tied parameters
    have several names.
    """
    first: dict[nn.Parameter, str] = {}
    found: dict[str, list[str]] = {}
    for name, parameter in source.named_parameters(remove_duplicate=False):
        found.setdefault(first.setdefault(parameter, name), []).append(name)
    return found


def values_of_rank_0(
    source: nn.Module, known: Collection[str] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Yields, on every rank, the name and rank 0's value of each parameter and buffer.
    Yields a shared parameter once, with its first name. Leaves out tensors without
    values, and the names in `known`. Sends only values that differ between ranks:
    nothing if all ranks made the module from the same seed.
    """
    tensors = {
        name: tensor.detach()
        for name, tensor in (*source.named_parameters(), *source.named_buffers())
        if name not in known and not has_no_value(tensor)
    }
    differ = _different(tensors)
    device = next(iter(tensors.values()), torch.empty(0)).device
    for name, tensor in tensors.items():
        if name in differ:
            tensor = tensor.to(device).clone()
            # Not every backend moves complex numbers.
            dist.broadcast(
                torch.view_as_real(tensor) if tensor.is_complex() else tensor, 0
            )
        yield name, tensor


def _different(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Returns the names of the tensors whose values differ between ranks."""
    own = {name: _fingerprint(tensor) for name, tensor in tensors.items()}
    everyone: list[dict[str, tuple[float, ...]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return {n for n in own if any(other.get(n) != own[n] for other in everyone)}


def _fingerprint(tensor: torch.Tensor) -> tuple[float, ...]:
    """
    Returns a few numbers that almost certainly differ if the values of two tensors
    differ.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.reshape(-1)
    if not flat.is_floating_point():
        return (float(flat.to(torch.float64).sum()),)
    places = torch.arange(1, min(flat.numel(), 4096) + 1, dtype=torch.float64)
    first = flat[: len(places)].to("cpu", torch.float64)
    return (
        float(flat.sum(dtype=torch.float64)),
        float(torch.linalg.vector_norm(flat, dtype=torch.float64)),
        float(first @ places),
    )


def batch_counters(source: nn.Module) -> list[str]:
    """
    Returns the names of the buffers in which batch normalisations count their steps. No
    op reads these buffers, so programs do not have them.
    """
    from torch.nn.modules.batchnorm import (
        _BatchNorm,  # pyright: ignore[reportPrivateUsage]
    )

    return [
        f"{name}.num_batches_tracked" if name else "num_batches_tracked"
        for name, part in source.named_modules()
        if isinstance(part, _BatchNorm) and part.num_batches_tracked is not None
    ]


def whole_state(
    named: Mapping[str, torch.Tensor], source: nn.Module, device: torch.device
) -> dict[str, torch.Tensor]:
    """
    Returns, on rank 0, the whole tensors of the state dictionary of `source` by name,
    on the CPU; other ranks get an empty dictionary. `named` has the parts of this rank,
    in a pipeline only of its stages' tensors. At most one whole tensor is on a device
    at a time. Every rank must call this function.
    """
    state = source.state_dict(keep_vars=True)
    every: list[set[str]] = [set()] * dist.get_world_size()
    dist.all_gather_object(every, {name for name in state if name in named})
    found: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    for name, example in state.items():
        if id(example) in first:  # another name of a tied parameter
            if dist.get_rank() == 0:
                found[name] = found[first[id(example)]]
            continue
        first[id(example)] = name
        value = whole_tensor(named[name]) if name in named else None
        holders = [rank for rank, names in enumerate(every) if name in names]
        if 0 not in holders and holders:
            if value is None:
                value = torch.empty(example.shape, dtype=example.dtype, device=device)
            value = value.contiguous()
            parts = torch.view_as_real(value) if value.is_complex() else value
            dist.broadcast(parts, holders[0])
        if dist.get_rank() == 0:
            # What no rank holds does not change: a constant of the programs.
            kept = example.detach() if value is None else value
            found[name] = kept.cpu()
    return found if dist.get_rank() == 0 else {}


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """
    Returns the whole of a tensor. If it is a DTensor with parts on several ranks, all
    of them must call this function.
    """
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(value: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor, detached from autograd."""
    if isinstance(value, DTensor):
        # As `to_local` without gradients, but it saves microseconds per parameter.
        return value._local_tensor  # pyright: ignore[reportPrivateUsage]
    return value.detach()
