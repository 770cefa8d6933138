"""
Makes a `torch.autocast` around the call of a parallel module apply to the module's
programs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
import torch.distributed as dist

from distir.errors import DistIRError
from distir.parallel.forward_options import name_of_float

_DEVICES = ("cpu", "cuda")


def enabled_devices() -> list[str]:
    """
    Returns the device types, of "cpu" and "cuda", for which `torch.autocast` is on.
    """
    return [device for device in _DEVICES if torch.is_autocast_enabled(device)]


@contextlib.contextmanager
def outside_autocast() -> Generator[None]:
    """Returns a context manager that switches `torch.autocast` off."""
    with contextlib.ExitStack() as stack:
        for device in enabled_devices():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


class AskedTypes:
    """
    Finds the type that `torch.autocast` requests, at each call of a parallel module.
    The module is on a device of type `device`. `dtype` is the option of `parallelize`,
    or None if not given.
    """

    def __init__(self, device: str, dtype: str | None):
        self._device, self._dtype = device, dtype
        self._known: dict[str, str | None] = {}

    def now(self, kind: str) -> str | None:
        """
        Returns the name of the type to which programs are autocast in this call, or
        None if they keep their own types. `kind` separates kinds of calls, such as
        "training". Every rank must call this method. Ranks compare their types at the
        first call of a kind, and when a type changes. Raises DistIRError, on every
        rank, if ranks differ, or if `torch.autocast` and the module's `dtype` request
        different types.
        """
        asked = None
        if torch.is_autocast_enabled(self._device):
            asked = name_of_float(torch.get_autocast_dtype(self._device))
        if kind not in self._known or asked != self._known.pop(kind):
            _check_alike(asked)
        self._known[kind] = asked
        if asked is None or self._dtype is None:
            return asked
        if asked != self._dtype:
            raise DistIRError(
                f'parallelize: dtype="{self._dtype}" was given, but torch.autocast around '
                f"the module asks for {asked}; leave one of them out, or give both the same "
                f"type"
            )
        return None

    def is_f16(self, autocast: str | None) -> bool:
        """Whether a program that is autocast to `autocast` computes in float16."""
        return "f16" in (self._dtype, autocast)


def _check_alike(asked: str | None) -> None:
    """Raises DistIRError, on every rank, if ranks have different types `asked`."""
    every: list[str | None] = [asked] * dist.get_world_size()
    if len(every) > 1:
        dist.all_gather_object(every, asked)
    ranks = [next(i for i, t in enumerate(every) if t == kind) for kind in set(every)]
    if len(ranks) > 1:
        found = ", ".join(f"{every[i] or 'off'} on rank {i}" for i in sorted(ranks))
        raise DistIRError(
            f"ranks call a parallel module in different ways: torch.autocast is {found}; "
            f"enter it on all ranks, or on none"
        )


def cast_input(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """
    Returns an input cast to the type `dtype` of the program if `torch.autocast` is on
    and both types are floats. Otherwise returns `tensor` itself. For example, an
    encoder in front of the module gives tensors in the type of autocast.
    """
    if enabled_devices() and tensor.is_floating_point() and dtype.is_floating_point:
        return tensor.to(dtype)
    return tensor
