"""Tensors in the host's memory between forward and backward."""

from typing import NamedTuple

import torch


class Offloaded(NamedTuple):
    """A tensor in the host's memory, and the device that it comes from."""

    tensor: torch.Tensor
    device: torch.device


def offload(x):
    """A copy in the host's memory, pinned for devices that copy by themselves."""
    if x.device.type == "cpu":
        return Offloaded(x, x.device)
    there = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
    # The backward copies it back on the same stream, so that it comes after this.
    there.copy_(x, non_blocking=True)
    return Offloaded(there, x.device)


def fetch(x):
    """The tensor on its device again."""
    return x.tensor.to(x.device, non_blocking=True)
