"""
Compares the first step of a parallel module with a step of its source module on one
process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils import _pytree

from distir.errors import DistIRError
from distir.frontends.torch.modules.meta import lacks_values
from distir.frontends.torch.modules.runs import (
    as_array,
    distance,
    is_amplified_rounding,
    tolerance,
    wider,
)
from distir.frontends.torch.modules.state import unchanged
from distir.parallel.calling import Inputs
from distir.parallel.content import tensors_of
from distir.parallel.losses import Loss
from distir.parallel.shapes import Example
from distir.parallel.weights import whole_tensor

_OF_LARGEST = 5e-6
"""
The difference that is allowed for any gradient, as a fraction of the largest magnitude
in all gradients and the loss.
"""

_Step = dict[str, torch.Tensor]
"""The loss, under the name "", and the gradients, by the names of their parameters."""


@dataclass(frozen=True)
class StepCheck:
    """
    Compares the loss and the gradients of a step with a step of the source module of
    `inputs`. Rank 0 runs the source module on the whole batch.
    """

    inputs: Inputs
    loss: Loss

    def __call__(
        self,
        parallel: nn.Module,
        place: tuple[int, int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: torch.Tensor,
        trained: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> None:
        """
        Checks a step of a parallel module. `place` holds the index of this rank's part
        of the batch, and the number of parts. `gradients` belong to the tensors
        `trained`. Every rank must call this method. Raises DistIRError, on every rank,
        if the step differs from the source module's step.
        """
        names = {id(p): name for name, p in parallel.named_parameters()}
        found: _Step = {"": loss.detach().cpu()}
        for tensor, gradient in zip(trained, gradients, strict=True):
            if id(tensor) in names:
                found[names[id(tensor)]] = _whole(gradient)
        state = {
            name: _whole(tensor)
            for name, tensor in parallel.state_dict().items()
            if isinstance(tensor, torch.Tensor)
        }
        call = _pytree.tree_map_only(torch.Tensor, _whole, (tuple(args), dict(kwargs)))
        own = (place[0], call, state, found)
        every: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own, every if dist.get_rank() == 0 else None)
        said: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                said[0] = self._problem(place[1], every)
            except (
                Exception
            ) as error:  # of the user's code; the others wait for this rank
                said[0] = f"the module itself fails: {type(error).__name__}: {error}"
        dist.broadcast_object_list(said)
        if said[0] is not None:
            raise DistIRError(f'parallelize(check="step"): {said[0]}')

    def _problem(self, parts: int, every: Sequence[Any]) -> str | None:
        """
        Returns a description of the difference between a step and the source module's
        step, or None if both agree. `every` holds the part of the batch, the state and
        the gradients of each rank.
        """
        state: _Step = {}
        found: _Step = {}
        calls: dict[int, Any] = {}
        for place, call, own, gradients in every:
            calls.setdefault(place, call)
            state |= own
            found |= gradients
        args, kwargs = _joined([calls[place] for place in range(parts)])
        first, second = (
            self._step(state, args, kwargs, seed=seed, wide=False) for seed in (0, 1)
        )
        kind = type(self.inputs.source).__name__
        if not torch.equal(first[""], second[""]):
            warnings.warn(
                f'check="step": {kind} draws random numbers (dropout), so that its first '
                f"step cannot be compared; put it into evaluation mode to check a step",
                stacklevel=2,
            )
            return None
        wide: _Step | None = None
        largest = max(float(v.abs().max()) for v in first.values() if v.numel())
        for name, wanted in first.items():
            value = found.get(name)
            if value is None:
                if not wanted.any():
                    continue
                return f"the step of {kind} has no gradient of {name!r}"
            one, other = as_array(wanted), as_array(value)
            size = float(np.abs(one).max(initial=0.0))
            allowed = max(tolerance(one, other) * size, _OF_LARGEST * largest)
            apart = distance(one, other)
            if apart <= allowed:
                continue
            if wide is None:
                wide = self._step(state, args, kwargs, seed=0, wide=True)
            if is_amplified_rounding(one, other, as_array(wide[name])):
                continue
            what = f"the gradient of {name!r}" if name else "the loss"
            return (
                f"{what} of the first step of {kind} differs from the module's on one "
                f"process by {apart:.2g} (its largest number is {size:.3g}). Report that, "
                f'with the module and the options; check="import" trains nevertheless'
            )
        return None

    def _step(
        self,
        state: _Step,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        seed: int,
        wide: bool,
    ) -> _Step:
        """
        Returns the loss and the gradients of the source module for a batch, with the
        parameters and buffers in `state`. With `wide`, the module computes in a wider
        type.
        """
        module = self.inputs.source
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        values = {name: state[name] for name in own if name in state}
        given, named = args, kwargs
        if wide:
            values = {name: wider(value) for name, value in values.items()}
            given, named = _pytree.tree_map_only(torch.Tensor, wider, (given, named))
        trained = {
            name: values[name].detach().requires_grad_()
            for name, p in module.named_parameters()
            if p.requires_grad and name in values
        }
        count = len(given) - (self.loss is not None)
        mode = None if module.training else True
        with unchanged(module, mode), torch.enable_grad():
            torch.manual_seed(seed)
            output = torch.func.functional_call(
                module, {**values, **trained}, tuple(given[:count]), dict(named)
            )
            loss = loss_of_output(self.loss, output, *given[count:])
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(value) if gradient is None else gradient  # pyright: ignore[reportUnnecessaryComparison]
            for (name, value), gradient in zip(trained.items(), found, strict=True)
        }
        return {"": loss.detach(), **gradients}


def check_copies(source: nn.Module, loss: Loss, example: Example) -> None:
    """
    Raises DistIRError if copies of the samples of a batch change the loss. For a module
    without values, a loss given by name counts as a mean over samples; any other loss
    raises DistIRError.
    """
    if example.samples is None:
        return
    kind = type(source).__name__
    advice = (
        "leave a last batch out (drop_last=True of a DataLoader), or choose batches that can "
        "be divided evenly"
    )
    if lacks_values(source):
        if isinstance(loss, str):
            return
        raise DistIRError(
            f"parallelize: the samples of a batch cannot be divided evenly among the ranks, and "
            f"{kind} has no values, with which to find out whether its loss is a mean over "
            f"samples; {advice}"
        )
    size = example.samples
    copies = {len(t) for t in _tensors(example) if t.dim() and len(t) % size == 0}
    whole = max(copies)

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:size] if tensor.dim() and len(tensor) == whole else tensor

    def all_of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    losses: list[float] = []
    for cut in (first, all_of):
        args, kwargs, labels = _pytree.tree_map_only(
            torch.Tensor, cut, (example.args, example.kwargs, example.labels)
        )
        with unchanged(source, False), torch.no_grad():
            losses.append(float(loss_of_output(loss, source(*args, **kwargs), labels)))
    if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[0]) + 1e-6:
        raise DistIRError(
            f"parallelize: the samples of a batch cannot be divided evenly among the ranks, and "
            f"the loss of {kind} is no mean over samples, as {losses[0]:.6g} becomes "
            f"{losses[1]:.6g} where each sample is there {whole // size} times; {advice}"
        )


def _tensors(example: Example) -> list[torch.Tensor]:
    return tensors_of((example.args, example.kwargs, example.labels))


def loss_of_output(loss: Loss, output: Any, labels: Any = None) -> torch.Tensor:
    """Returns the loss of a module's output, computed as the program computes it."""
    if callable(loss):
        return loss(output, labels)
    leaves = tensors_of(output)
    if loss is None:
        return next(x for x in leaves if x.is_floating_point() and not x.dim())
    if loss == "mse":
        return functional.mse_loss(leaves[0], labels)
    classes = leaves[0].shape[-1]
    return functional.cross_entropy(leaves[0].reshape(-1, classes), labels.reshape(-1))


def _joined(calls: Sequence[Any]) -> Any:
    """
    Returns the arguments of the call for the whole batch, given the calls for its
    parts. Concatenates tensors along their first dimension. Scalars and other values
    come from the first part.
    """
    if len(calls) == 1:
        return calls[0]
    columns = zip(*map(_pytree.tree_leaves, calls), strict=True)
    leaves = [
        torch.cat(column)
        if isinstance(column[0], torch.Tensor) and column[0].dim()
        else column[0]
        for column in columns
    ]
    return _pytree.tree_unflatten(leaves, _pytree.tree_structure(calls[0]))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return whole_tensor(tensor).cpu()
