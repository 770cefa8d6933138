"""
Tensors in the host's memory: activations between forward and backward pass, and
optimizer states that are arguments of the program.
"""

from typing import NamedTuple

import torch


class Offloaded(NamedTuple):
    """A tensor in the host's memory, and its original device."""

    tensor: torch.Tensor
    device: torch.device


def offload(x):
    """
    Copies `x` to the host's memory. Returns the copy with the original device. The copy
    of a GPU tensor is in pinned memory, so that the device copies without the host. A
    tensor on the CPU is not copied.
    """
    if x.device.type == "cpu":
        return Offloaded(x, x.device)
    there = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
    # The backward copies it back on the same stream, so that it comes after this.
    there.copy_(x, non_blocking=True)
    return Offloaded(there, x.device)


def fetch(x):
    """Returns an offloaded tensor on its original device."""
    return x.tensor.to(x.device, non_blocking=True)


def load(states):
    """Returns copies of `states` on the device. On CPUs, the states are not copied."""
    device = torch.get_default_device()
    return [state.to(device, non_blocking=True) for state in states]


def store(values, states):
    """
    Writes the new values of states into the tensors `states` in the host's memory.
    """
    for value, state in zip(values, states, strict=True):
        if value is not state:
            # The next step copies it back on the same stream, so that it comes after this.
            state.copy_(value, non_blocking=True)
