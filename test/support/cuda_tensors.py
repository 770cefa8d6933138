"""
Tensors without values that say that they are on a CUDA device, on machines without one: programs
take their branches for CUDA, and PyTorch checks operators, arguments, types, devices and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_META = torch.library.Library("aten", "IMPL", "Meta")
_META.impl("_fused_sgd_", lambda *_, **__: None)  # pyright: ignore[reportUnknownLambdaType]


def takes_flash(params: Any) -> bool:
    """Flash attention is for half precision, without masks."""
    half = params.query.dtype in (torch.float16, torch.bfloat16)
    return half and params.attn_mask is None and params.query.shape[-1] <= 256


def takes_efficient(params: Any) -> bool:
    """Memory-efficient attention needs rows of 16 bytes."""
    rows = params.query.shape[-1] * params.query.dtype.itemsize
    return params.query.dtype != torch.float64 and rows % 16 == 0


class _WithoutDevice(TorchFunctionMode):
    """
    Reads and writes elements by index on the CPU, and copies what is not contiguous: PyTorch's
    own methods ask for the device, which a PyTorch without CUDA does not know.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.contiguous:
            return args[0] if args[0].is_contiguous() else _copied(args[0])
        if func not in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            return func(*args, **(kwargs or {}))
        device = args[0].device
        found = func(*tree_map_only(torch.Tensor, _on("cpu"), tuple(args)))
        return None if found is None else _on(device)(found)


def _copied(x: torch.Tensor) -> torch.Tensor:
    return torch.clone(x, memory_format=torch.contiguous_format)


def _on(device: str | torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function to a tensor of the same kind on another device."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            x.shape, x.stride(), dtype=x.dtype, device=device, requires_grad=False
        )

    return moved


@contextmanager
def cuda_tensors(
    module: torch.nn.Module, capability: tuple[int, int] = (9, 0)
) -> Generator[None]:
    """
    The tensors of the module of a rank, and those that it makes, are on a GPU, of the compute capability of an H100. Which kernel of
    attention it takes is said here, as the documentation of these kernels has it.
    """
    kernels: Any = torch.backends.cuda
    with (
        patch.object(kernels, "can_use_flash_attention", takes_flash),
        patch.object(kernels, "can_use_efficient_attention", takes_efficient),
        patch.object(torch.cuda, "get_device_capability", return_value=capability),
        torch.no_grad(),
        FakeTensorMode(),
        _WithoutDevice(),
    ):
        module.__dict__["_device"] = torch.device("cuda")
        for part in module.modules():
            for held in (vars(part), vars(part)["_buffers"]):
                for name, value in list(held.items()):
                    if isinstance(value, torch.Tensor):
                        held[name] = _on("cuda")(value)
        yield
