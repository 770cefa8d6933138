"""
The scan of selective state spaces in Hugging Face's models, as an op of the `train` dialect.

Mamba and its relatives call a function of their module for it, which PyTorch can only compute
step by step: a program would have some operators for each token of each layer. While a module is
exported, the function is one that writes a node of a domain of ours.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as F

from distir.frontends.torch.export.nodes import train_node

_MODELS, _FUNCTION = "transformers.models.", "mamba_selective_scan"


@contextlib.contextmanager
def scans_as_ops() -> Generator[None]:
    """
    A context manager inside which exported scans of selective state spaces become ops of
    `train`. Where the last state is asked for, as by a cache, they stay what they are.
    """
    found = {
        module: getattr(module, _FUNCTION)
        for name, module in list(sys.modules.items())
        if name.startswith(_MODELS) and _FUNCTION in vars(module)
    }
    for module, original in found.items():
        setattr(module, _FUNCTION, _written(original))
    try:
        yield
    finally:
        for module, original in found.items():
            setattr(module, _FUNCTION, original)


def _written(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that does what `original` does, and writes one node for it."""

    def scan(
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **others: Any,
    ) -> Any:
        if return_last_state:
            return original(
                *(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, True),
                **others,
            )
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        if delta_softplus:
            dt = F.softplus(dt)
        kind = hidden_states.dtype
        operands = (hidden_states, dt, A, B.to(kind), C.to(kind))
        y = train_node("selective_scan", operands, hidden_states.shape, hidden_states)
        if D is not None:
            y = y + hidden_states * D[None, :, None]
        return y if z is None else y * F.silu(z)

    return scan
