"""
The optimizers of `torch.optim` that cannot update parameters that are split over ranks.
For some of them, PyTorch's DTensor lacks a rule for an operation. LBFGS computes sums
over all parameters, and a rank of a pipeline has only its own stages' parameters.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from distir.errors import DistIRError

_REFUSED: dict[type[torch.optim.Optimizer], tuple[str, str]] = {
    torch.optim.Adafactor: (
        "it divides by norms of rows and columns, in place, which PyTorch's DTensor does not "
        "allow for parts",
        "take AdamW, or Adagrad",
    ),
    torch.optim.Rprop: (
        "it sets single elements, which PyTorch's DTensor does not allow for parts",
        "take RMSprop",
    ),
    torch.optim.SparseAdam: (
        "it takes sparse gradients alone, and those of a parallel module are dense",
        "take Adam",
    ),
}
"""
Optimizers that fail, each with the reason and the advice to take another optimizer.
"""

_REFUSED_IF_FUSED = (torch.optim.Adagrad, torch.optim.SGD)
"""Optimizers for whose fused kernels DTensor has no rule."""


@cache
def refuse_optimizers() -> None:
    """
    Makes the first step of an unsuitable optimizer raise a DistIRError that names it,
    before any parameter changes. An optimizer is unsuitable if it cannot update the
    parameters of a parallel module. Optimizers of other parameters are not affected.
    """
    register_optimizer_step_pre_hook(_check)


def owned(parameter: torch.Tensor, *, is_pipeline: bool) -> None:
    """
    Marks `parameter` as one of a parallel module. `is_pipeline` says whether other
    ranks have other parameters.
    """
    parameter._distir_pipeline = is_pipeline  # pyright: ignore[reportAttributeAccessIssue]


def _check(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]
) -> None:
    kind = type(optimizer)
    refused = _REFUSED.get(kind)
    is_fused = kind in _REFUSED_IF_FUSED
    if refused is None and not is_fused and kind is not torch.optim.LBFGS:
        return
    for group in optimizer.param_groups:
        ours = [p for p in group["params"] if _is_of_module(p)]
        if not ours:
            continue
        if refused is not None:
            reason, advice = refused
            raise DistIRError(
                f"torch.optim.{kind.__name__} cannot update the parameters of a parallel "
                f"module: {reason}; {advice}"
            )
        if is_fused and group.get("fused"):
            raise DistIRError(
                f"torch.optim.{kind.__name__} with fused=True cannot update the parameters of a "
                f"parallel module: PyTorch's DTensor has no rule for its fused kernel; take "
                f"foreach=True, which is as fast, or fused=True of Adam or AdamW"
            )
        if kind is torch.optim.LBFGS and any(p._distir_pipeline for p in ours):
            raise DistIRError(
                "torch.optim.LBFGS cannot update the parameters of a pipeline: it computes "
                "products over all parameters, and each rank has those of its own stages alone; "
                "take another optimizer, or p=1"
            )


def _is_of_module(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, DTensor) and hasattr(parameter, "_distir_pipeline")
