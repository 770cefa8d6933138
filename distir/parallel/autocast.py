"""What an outer `torch.autocast` means for a parallel module: nothing, and it says so."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator

import torch

_DEVICES = ("cpu", "cuda")


def enabled_devices() -> list[str]:
    """Returns the types of devices for which `torch.autocast` is on."""
    return [device for device in _DEVICES if torch.is_autocast_enabled(device)]


@contextlib.contextmanager
def outside_autocast() -> Generator[None]:
    """A context manager inside which `torch.autocast` is off."""
    with contextlib.ExitStack() as stack:
        for device in enabled_devices():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def tell_of_autocast(stacklevel: int) -> None:
    """Warns that a module takes no part in `torch.autocast`."""
    warnings.warn(
        "a module of distir.parallelize computes outside of torch.autocast, in the types of "
        'its program; for mixed precision say parallelize(..., dtype="bf16"), which keeps '
        "parameters and gradients as they are, and leave the call out of torch.autocast",
        stacklevel=stacklevel + 1,
    )


def cast_input(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """
    Returns an input in the type that a program takes, if `torch.autocast` is on and both
    are floats: what comes from an encoder in front has the type of autocast.
    """
    if enabled_devices() and tensor.is_floating_point() and dtype.is_floating_point:
        return tensor.to(dtype)
    return tensor
