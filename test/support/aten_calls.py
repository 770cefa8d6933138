"""Counts the calls of PyTorch's operators that a function makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class AtenCalls(TorchDispatchMode):
    """
    A context manager that counts calls of ATen's operators inside it, by their names,
    without views: only those that compute something. Operators that are made of others are
    counted as these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(func.overloadpacket.__name__)
        # It is for gradients that PyTorch does not call that one a view.
        if func.namespace == "aten" and not func.is_view and name != "_unsafe_view":
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))
