"""The calls of PyTorch's operators that a function makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class AtenCalls(TorchDispatchMode):
    """
    Counts calls of ATen's operators inside a `with`, by their names, views left out: those
    that compute something. Operators that are made of others are counted as these.
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
        if func.namespace == "aten" and not _is_view(func):
            self.counts[str(func.overloadpacket.__name__)] += 1
        return func(*args, **(kwargs or {}))


def _is_view(func: torch._ops.OpOverload) -> bool:
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
