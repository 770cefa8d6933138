"""Losses that a training script computes for each micro-batch of a program's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from distir.parallel.rank_program import RankProgram
from distir.parallel.training.outside_step import OutsideStep
from distir.parallel.weights import local_part


class MicroBatchLosses:
    """
    Computes the loss of each of the `parts` micro-batches of a program's step, as a
    pipeline needs it.

    `loss` is the user's function of the output and of the values in `target`. Tensors
    of `target` with `rows` rows, the size of this rank's part of the batch, are divided
    into micro-batches; other values are passed whole. `structured` turns the list of
    the program's outputs into the output that `loss` takes. `total` is the sum of the
    losses so far, each divided by `parts`: after the last micro-batch, their mean.
    """

    def __init__(
        self,
        loss: Callable[..., torch.Tensor],
        target: Sequence[Any],
        rows: int,
        parts: int,
        structured: Callable[[Sequence[torch.Tensor]], Any],
    ):
        self._loss, self._structured, self._parts = loss, structured, parts
        self._targets = [
            tree_map_only(
                torch.Tensor,
                lambda t, i=i: t.chunk(parts)[i] if t.dim() and len(t) == rows else t,
                list(target),
            )
            for i in range(parts)
        ]
        self.total: torch.Tensor | None = None

    def run(
        self, program: RankProgram, arguments: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """
        Runs `program` on this rank's parts of its arguments (by name), and returns its
        results by index.
        """
        if not program.gives_outputs:
            return program.run(arguments)
        step = OutsideStep(program, arguments)
        updates = dict(step.updates)
        results: dict[int, torch.Tensor] = {}
        for target in self._targets:
            results = step.finish(self._gradients(step, target))
        return {**updates, **results}

    def _gradients(
        self, step: OutsideStep, target: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """
        Computes the loss of one micro-batch, and returns the gradient of each output.
        The gradient is None for an output that does not need one.
        """
        outputs, step.outputs = step.outputs, []
        pairs = zip(outputs, step.have_gradients, strict=True)
        leaves = [output.requires_grad_(has) for output, has in pairs]
        with torch.enable_grad():
            loss = (
                self._loss(self._structured(step.given(leaves)), *target) / self._parts
            )
        loss.backward()
        found = loss.detach()
        self.total = found if self.total is None else self.total + found
        return [leaf.grad for leaf in leaves]


def of_each_part(
    program: RankProgram,
    found: Mapping[int, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    parts: int,
) -> None:
    """
    Divides gradients by `parts`, the number of parts of the batch, in place. Only the
    gradients of tensors that all parts share are divided: the program sums these over
    the parts. `found` maps the identity (`id`) of each tensor to its gradient, and
    `given` has the inputs of the call by name.
    """
    split = {
        id(given[spec.name])
        for spec in program.all_arguments
        if spec.name in given and program.is_split_with_batch(spec)
    }
    common = [local_part(g) for i, g in found.items() if i not in split]
    on: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in common if parts > 1 else ():
        on.setdefault(gradient.device, []).append(gradient)
    for own in on.values():
        torch.ops.aten._foreach_div_.Scalar(own, parts)
