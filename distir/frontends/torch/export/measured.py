"""Measures the floating-point operations and the memory of a PyTorch call."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class _Memory(TorchDispatchMode):
    """
    Counts the bytes of the tensors that operations create inside this context manager.
    `peak` is the largest number of bytes alive at the same time. Tensors in `known` are
    not counted.
    """

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._seen = {_storage(tensor) for tensor in known}
        self._live = self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return found

    def _add(self, tensor: torch.Tensor) -> None:
        storage, key = tensor.untyped_storage(), _storage(tensor)
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)

        def free() -> None:
            self._seen.discard(key)
            self._live -= size

        weakref.finalize(storage, free)


class _NoModules(contextlib.nullcontext[None]):
    """
    Replaces the tracker of modules in PyTorch's counter of operations, whose hooks fail
    if the measured call uses `torch.autograd.grad`.
    """

    parents = frozenset({"Global"})


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def measured(
    run: Callable[[], Any], known: Sequence[torch.Tensor]
) -> tuple[Any, int, int]:
    """
    Calls `run`. Returns the result of `run`, the number of its floating-point
    operations, and its peak memory in bytes, without the result and the tensors
    `known`. Operations are matrix products and convolutions, as PyTorch counts them.
    """
    memory, flops = _Memory(known), FlopCounterMode(display=False)
    flops.mod_tracker = _NoModules()  # pyright: ignore[reportAttributeAccessIssue]
    with flops, memory:
        found = run()
    leaves = [x for x in _pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
    own = sum({_storage(x): x.untyped_storage().nbytes() for x in leaves}.values())
    return found, flops.get_total_flops(), max(memory.peak - own, 0)
