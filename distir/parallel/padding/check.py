"""
Compares the results of a module on padded sequences with its results without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from distir.errors import DistIRError
from distir.frontends.torch.modules.meta import lacks_values
from distir.frontends.torch.modules.state import unchanged
from distir.parallel.calling import Inputs
from distir.parallel.content import tensors_of
from distir.parallel.losses import Loss
from distir.parallel.padding.lengths import cut
from distir.parallel.step_check import loss_of_output


@dataclass
class PaddingCheck:
    """
    Checks, at the first padded call, that padding does not change the result. On rank
    0, the source module of `inputs` runs on the rank's own part of the batch twice:
    without and with padding. A source module that was freed runs with random values.
    The check compares the losses, or the outputs if the caller computes the loss.
    """

    loss: Loss
    inputs: Inputs
    _done: set[bool] = field(default_factory=set[bool])

    def __deepcopy__(self, memo: object) -> PaddingCheck:
        """Returns the object itself: copies of a parallel module share it."""
        return self

    def __call__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Mapping[str, torch.Tensor],
        padded: Mapping[str, torch.Tensor],
        *,
        has_labels: bool,
        has_loss: bool,
    ) -> None:
        """
        Checks a call. `given` holds the inputs and labels by name, and `padded` holds
        them after padding. With `has_labels`, the last of `args` are the labels. With
        `has_loss`, the program computes the loss. Every rank must call this method.
        Raises DistIRError, on every rank, if padding changes the result.
        """
        if has_loss in self._done:
            return
        self._done.add(has_loss)
        said: list[str | None] = [None]
        if dist.get_rank() == 0:
            said[0] = self._problem(args, kwargs, given, padded, has_labels, has_loss)
        dist.broadcast_object_list(said)
        if said[0] is not None:
            raise DistIRError(said[0])

    def _problem(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Mapping[str, torch.Tensor],
        padded: Mapping[str, torch.Tensor],
        has_labels: bool,
        has_loss: bool,
    ) -> str | None:
        """
        Returns a description of the results that padding changes, or None if padding
        changes no result. Skips a module that never had values.
        """
        names = {id(tensor): name for name, tensor in given.items()}
        call = (tuple(args), dict(kwargs))
        other = tree_map_only(
            torch.Tensor, lambda t: padded.get(names.get(id(t), ""), t), call
        )
        with self.inputs.kept.with_values() as module:
            if lacks_values(module):
                return None
            results = [
                self._result(module, self.inputs.here(each), has_labels, has_loss)
                for each in (call, other)
            ]
        if _alike(*results):
            return None
        what = "loss" if has_loss else "output"
        return (
            f"parallelize: padding changes the {what} of {type(module).__name__}; give it a "
            f"mask that hides what is appended, and labels that do not count "
            f"(pad_with={{'labels': -100}}), or leave pad_to out"
        )

    def _result(
        self, module: nn.Module, call: Any, has_labels: bool, has_loss: bool
    ) -> list[torch.Tensor]:
        """
        Returns the loss of a call of the module in evaluation mode if `has_loss`, else
        the outputs of the call.
        """
        args, kwargs = call
        labels = None
        if has_labels:
            *args, labels = args
        with unchanged(module, False), torch.no_grad():
            found = module(*args, **kwargs)
            if has_loss:
                return [loss_of_output(self.loss, found, labels)]
        return tensors_of(found)


def _alike(found: Sequence[torch.Tensor], padded: Sequence[torch.Tensor]) -> bool:
    """
    Whether `padded`, without the appended elements, equals `found` up to rounding.
    """
    for own, other in zip(found, padded, strict=True):
        one, two = own.double(), cut(other, own.shape).double()
        if one.numel() and (one - two).abs().max() > 1e-4 * one.abs().max() + 1e-6:
            return False
    return True
