"""
Losses that are Python functions, with examples of their labels, and losses whose
gradients a program has already computed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from distir.errors import DistIRError
from distir.frontends.torch.export.failures import quiet
from distir.gradients.options import OUTSIDE
from distir.parallel.calling import fake_output
from distir.parallel.weights import local_part

_FAKES = "torch._subclasses.fake_tensor"

LossFunction = Callable[[Any, Any], torch.Tensor]
"""A function that takes a module's output and the labels, and returns a scalar."""

Loss = str | LossFunction | None
"""
The name of a loss, a function, or None if the module returns its loss itself or the
training script computes one from the module's outputs (as with the name "outside").
"""


class KnownLoss(torch.autograd.Function):
    """A loss whose gradients, for parameters and inputs, have already been computed."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        *sources: torch.Tensor,
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        refuse_higher_gradients()
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError(
                "backward was called a second time on one loss; call the module again"
            )
        (scale,) = grad_outputs
        on: dict[torch.device, list[torch.Tensor]] = {}
        for gradient in gradients:  # an input may be on another device than parameters
            on.setdefault(gradient.device, []).append(local_part(gradient))
        for device, own in on.items():
            torch.ops.aten._foreach_mul_.Tensor(own, scale.to(device))
        return None, None, *gradients


def refuse_higher_gradients() -> None:
    """
    Raises DistIRError if autograd would record a backward pass in order to
    differentiate its gradients again.
    """
    if torch.is_grad_enabled():
        raise DistIRError(
            "backward through a parallel module was asked for gradients that can be "
            "differentiated again (create_graph=True, as for a gradient penalty), and a "
            "program has none; compute such a term inside of the module, in a submodule "
            "that distir.opaque marks, or leave it out"
        )


class OutputWithoutGradients(torch.autograd.Function):
    """
    An output in evaluation mode. Its backward pass raises DistIRError, because the
    output has no gradients.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        raise DistIRError(
            "a module in evaluation mode gives outputs alone, no gradients of its inputs; "
            "call it in train(), where it returns the loss, or under torch.no_grad()"
        )


@contextlib.contextmanager
def with_loss(module: torch.nn.Module, loss: LossFunction) -> Generator[None]:
    """
    Returns a context manager that changes the `forward` of a module: `forward` then
    takes labels, in any structure, as its last positional argument, and returns the
    loss.
    """
    forward, patched = module.forward, module.__dict__.get("forward")

    def forward_and_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        *own, labels = args
        return loss(forward(*own, **kwargs), labels)

    module.forward = forward_and_loss
    try:
        yield
    finally:
        if patched is None:
            del module.forward
        else:
            module.forward = patched


def example_labels(loss: Loss, labels: Any) -> Any:
    """
    Returns the example `labels` with zeros as values. Raises DistIRError if there are
    labels but no `loss`, because the module's output is then the loss, or the script
    computes a loss from it.
    """
    if labels is not None and loss in (None, OUTSIDE):
        raise DistIRError(
            "parallelize: labels are what a loss compares the output with, and the module's "
            "output is the loss, or the script computes it; leave labels out, or give a loss"
        )
    return tree_map_only(
        torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), labels
    )


def labels_of(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: LossFunction,
) -> torch.Tensor:
    """
    Returns example labels of zeros, in the first shape that the loss accepts. The
    shapes are tried in this order: a class for each position of a map (`[N, C, ...]`)
    or each row of the output; a number for each element of the output; a number for
    each position or row. Raises DistIRError if the loss accepts no such shape.
    """
    output = fake_output(module, args, kwargs)
    shaped: torch.Tensor | None = next(filter(_has_rows, tree_leaves(output)), None)
    rows: list[Sequence[int]] = []
    found: list[torch.Tensor] = []
    if shaped is not None:
        if shaped.ndim > 3:  # maps of space: PyTorch has their classes in dimension 1
            rows.append((shaped.shape[0], *shaped.shape[2:]))
        rows.append(shaped.shape[:-1])
        for shape in rows:
            classes = shaped.new_zeros(shape, dtype=torch.int64)
            numbers = shaped.new_zeros(shape)
            # A loss that accepts floats and integers alike expects no classes.
            if not _accepts(loss, output, numbers):
                if _accepts(loss, output, classes):
                    return _zeros(classes)
            else:
                found.append(numbers)
        numbers = shaped.new_zeros(shaped.shape)
        if _accepts(loss, output, numbers):
            return _zeros(numbers)
        if found:
            return _zeros(found[0])
        rows.append(shaped.shape)
    tried = " and ".join(str(tuple(shape)) for shape in rows)
    raise DistIRError(
        f"parallelize: the loss gives no scalar for the output of "
        f"{type(module).__name__} and labels of {f'shape {tried}' if tried else 'any shape'}"
        f"; give an example of the labels, in the structure and the shapes of the global "
        f"batch (labels=...)"
    )


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.is_floating_point() and value.ndim > 0
    )


def _accepts(loss: LossFunction, output: Any, labels: torch.Tensor) -> bool:
    """
    Whether the loss returns a scalar for these labels, without an error or a warning.
    """
    with warnings.catch_warnings(), quiet(_FAKES), contextlib.suppress(Exception):
        warnings.simplefilter("error")
        return loss(output, labels).ndim == 0
    return False


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=like.dtype)
