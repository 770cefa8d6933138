"""
The device on which a program makes tensors: the device of its rank. Programs pass this
device to PyTorch's functions, because a default device would add a Python call to every
function of PyTorch.
"""

from contextlib import contextmanager

import torch

_device = torch.device("cpu")


def here():
    """Returns the device of the running program."""
    return _device


def use(device):
    """Sets the device on which the programs of this process run from now on."""
    global _device
    _device = device


@contextmanager
def no_default():
    """A context in which `torch.set_default_device` has no effect."""
    default = torch.get_default_device()
    if default.type == "cpu":
        yield
        return
    torch.set_default_device(None)
    try:
        yield
    finally:
        torch.set_default_device(default)
