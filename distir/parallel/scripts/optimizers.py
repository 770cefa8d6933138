"""
Refuses optimizers that cannot update parameters that are split over ranks.

PyTorch's DTensor lacks a rule for an operation of some optimizers. LBFGS computes sums
over all parameters, but a rank of a pipeline has only the parameters of its own stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import unwrap
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

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


_TESTED = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.LBFGS,
    torch.optim.Muon,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.SGD,
)
"""The optimizers that tests compare with PyTorch's results on whole parameters."""

ALLOWED = "works_on_parts"
"""
The attribute by which the class of another optimizer says that it may update parameters
that are split over ranks.
"""


@cache
def refuse_optimizers() -> None:
    """
    Makes the construction of an unsuitable optimizer raise a DistIRError that names it.
    An optimizer is unsuitable if it cannot update the parameters of a parallel module,
    or if no test shows that it can. Optimizers of other parameters are not affected.
    """
    add = torch.optim.Optimizer.add_param_group

    # PyTorch has hooks for steps and states of optimizers, but none for parameters.
    @wraps(add)
    def checked(
        self: torch.optim.Optimizer, param_group: dict[str, Any], *args: Any
    ) -> None:
        add(self, param_group, *args)
        _check(self, self.param_groups[-1])

    torch.optim.Optimizer.add_param_group = checked
    register_optimizer_step_pre_hook(_refuse_given)


_GIVEN = WeakIdKeyDictionary()
"""The parameters of modules that were parallelized, as keys."""


def note_source(parameters: Iterable[torch.Tensor]) -> None:
    """Records that `parameters` belong to a module that was parallelized."""
    for each in parameters:
        _GIVEN[each] = None


def _refuse_given(
    optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """
    Raises DistIRError if a step would train nothing, because the optimizer was made
    with parameters of the source module and not of the parallel module. A step with a
    closure is not checked, because the closure computes the gradients.
    """
    groups = optimizer.param_groups
    if any(p.grad is not None for group in groups for p in group["params"]):
        return
    has_closure = any((*args[1:], *kwargs))
    if not has_closure and any(p in _GIVEN for g in groups for p in g["params"]):
        raise DistIRError(
            f"{type(optimizer).__name__} has the parameters of the module that was "
            f"parallelized, whose values the parallel module no longer uses, and none of "
            f"them has a gradient; make the optimizer of the parallel module's parameters, "
            f"after parallelize"
        )


def owned(parameters: Iterable[torch.Tensor], *, of_pipeline: bool) -> None:
    """
    Marks `parameters` as parameters of a parallel module. `of_pipeline` tells whether
    ranks have different parameters.
    """
    for each in parameters:
        each._distir_pipeline = of_pipeline  # pyright: ignore[reportAttributeAccessIssue]


def _check(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """
    Raises DistIRError if `optimizer` cannot update the parameters of `group` that
    belong to a parallel module.
    """
    ours = [p for p in group["params"] if is_of_module(p)]
    if not ours:
        return
    kind = type(optimizer)
    refused = next((r for c, r in _REFUSED.items() if isinstance(optimizer, c)), None)
    if refused is not None:
        reason, advice = refused
        raise DistIRError(
            f"torch.optim.{kind.__name__} cannot update the parameters of a parallel "
            f"module: {reason}; {advice}"
        )
    if isinstance(optimizer, _REFUSED_IF_FUSED) and group.get("fused"):
        raise DistIRError(
            f"torch.optim.{kind.__name__} with fused=True cannot update the parameters of a "
            f"parallel module: PyTorch's DTensor has no rule for its fused kernel; take "
            f"foreach=True, which is as fast, or fused=True of Adam or AdamW"
        )
    if isinstance(optimizer, torch.optim.LBFGS) and any(
        p._distir_pipeline for p in ours
    ):
        raise DistIRError(
            "torch.optim.LBFGS cannot update the parameters of a pipeline: it computes "
            "products over all parameters, and each rank has those of its own stages alone; "
            "take another optimizer, or p=1"
        )
    # PyTorch wraps the step of a class when its first optimizer is made.
    step = unwrap(kind.step)
    known = any(isinstance(optimizer, c) and step is unwrap(c.step) for c in _TESTED)
    if not known and not getattr(kind, ALLOWED, False):
        raise DistIRError(
            f"{kind.__module__}.{kind.__name__} is no optimizer that is known to update "
            f"parameters that are split over ranks (DTensor); take one of torch.optim, or, if "
            f"it calls operations of PyTorch alone and you have compared its results, set "
            f"{kind.__name__}.{ALLOWED} = True"
        )


def is_of_module(parameter: torch.Tensor) -> bool:
    """Whether a tensor is a parameter of a parallel module."""
    return isinstance(parameter, DTensor) and hasattr(parameter, "_distir_pipeline")
