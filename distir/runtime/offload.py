"""
Tensors in the host's memory: activations between forward and backward, and the optimizer's
states, which are arguments of the program there.
"""

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


def load(states):
    """Copies of states on the device; on CPUs the states themselves."""
    device = torch.get_default_device()
    return [state.to(device, non_blocking=True) for state in states]


def store(values, states):
    """Writes the new values of states to where these are."""
    for value, state in zip(values, states, strict=True):
        if value is not state:
            # The next step copies it back on the same stream, so that it comes after this.
            state.copy_(value, non_blocking=True)
