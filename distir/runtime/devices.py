"""
The device of the tensors that a program makes: that of its rank. A function of PyTorch that
makes a tensor is told it, since a default device costs every other function a call of Python.
"""

from contextlib import contextmanager

import torch

_device = torch.device("cpu")


def here():
    """Returns the device of the program that runs."""
    return _device


def use(device):
    """Lets the programs of this process run on a device from now on."""
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
