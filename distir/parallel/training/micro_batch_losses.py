"""Losses that a training script computes, in the step of a program over micro-batches."""

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
    Computes the loss of each micro-batch for the step of a program, as a pipeline needs it.
    `loss` is the user's function of the output and, if given, of the `target`, whose
    tensors with as many `rows` as this rank's part of the batch are divided like it.
    `total` is the mean of the losses so far.
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
        Runs a program on this rank's parts of its arguments, and returns its results by
        index.
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
        """Returns the gradients of a micro-batch's outputs."""
        outputs, step.outputs = step.outputs, []
        pairs = zip(outputs, step.have_gradients, strict=True)
        leaves = [output.requires_grad_(has) for output, has in pairs]
        with torch.enable_grad():
            loss = self._loss(self._structured(leaves), *target) / self._parts
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
    Divides gradients that belong to tensors which all `parts` of the batch have in common
    by their number, in place: programs add them up. `found` has the gradients by the
    identities of the tensors, and `given` the inputs of the call.
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
