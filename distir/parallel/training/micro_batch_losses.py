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
    Computes the loss of each of the `parts` micro-batches of a step, for pipelines.

    - `loss`: the user's function of the output and of the values in `target`;
    - `rows`, `own`: the number of rows of this rank's part of the batch, and the number
      of rows that the caller passed; the last rows are copies. Tensors of `target` with
      `own` rows are divided into micro-batches; other values are passed whole;
    - `structured`: turns the list of the program's outputs into the output that `loss`
      takes;
    - `total`: the sum of the losses so far, each multiplied by its share of the rows.
      After the last micro-batch, `total` is the mean loss.
    """

    def __init__(
        self,
        loss: Callable[..., torch.Tensor],
        target: Sequence[Any],
        rows: int,
        own: int,
        parts: int,
        structured: Callable[[Sequence[torch.Tensor]], Any],
    ):
        self._loss, self._structured = loss, structured
        self._size, self._own = rows // parts, own
        starts = range(0, rows, self._size)
        self._counts = [min(max(own - start, 0), self._size) for start in starts]
        self._targets = [
            tree_map_only(
                torch.Tensor,
                lambda t, i=i: (
                    t[i : i + self._size] if t.dim() and len(t) == own else t
                ),
                list(target),
            )
            for i in starts
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
        for target, count in zip(self._targets, self._counts, strict=True):
            results = step.finish(self._gradients(step, target, count))
        return {**updates, **results}

    def _gradients(
        self, step: OutsideStep, target: Sequence[Any], count: int
    ) -> list[torch.Tensor | None]:
        """
        Computes the loss of the first `count` rows of a micro-batch, and returns the
        gradient of each output. The gradient is None for an output that does not need
        one.
        """
        outputs, step.outputs = step.outputs, []
        if not count and self._own:
            return [None] * len(outputs)
        pairs = zip(outputs, step.have_gradients, strict=True)
        leaves = [output.requires_grad_(has) for output, has in pairs]
        given = leaves
        if count < self._size:
            given = [
                leaf[:count] if leaf.dim() and len(leaf) == self._size else leaf
                for leaf in leaves
            ]
        share = count / self._own if self._own else 1.0
        with torch.enable_grad():
            given = step.given(given)
            loss = self._loss(self._structured(given), *target) * share
        loss.backward()
        found = loss.detach()
        self.total = found if self.total is None else self.total + found
        return [leaf.grad for leaf in leaves]


_SMALL = 4
"""Gradients of outputs are small if those of parameters have this many times their elements."""


def can_divide_first(
    program: RankProgram,
    gradients: Sequence[torch.Tensor | None],
    sources: Sequence[torch.Tensor],
    given: Mapping[str, torch.Tensor],
    parts: int,
) -> bool:
    """
    Whether the gradients of a step's outputs can be divided by `parts`, the number of
    parts of the batch, instead of the gradients of `sources`: all parts share all
    sources, the result is as exact, and the outputs have far fewer elements.
    """
    found = [gradient for gradient in gradients if gradient is not None]
    split = _split_inputs(program, given)
    is_rounded = parts & (parts - 1) != 0
    kinds = (torch.float32, torch.float64, *(() if is_rounded else (torch.bfloat16,)))
    return (
        parts > 1
        and not any(id(source) in split for source in sources)
        and all(gradient.dtype in kinds for gradient in found)
        and sum(g.numel() for g in found) * _SMALL <= sum(s.numel() for s in sources)
    )


def divide_first(gradients: list[torch.Tensor | None], parts: int) -> None:
    """
    Divides the gradients of a step's outputs by `parts`, and replaces them in the list.
    """
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            gradients[i] = gradient / parts


def of_each_part(
    program: RankProgram,
    found: Sequence[tuple[torch.Tensor, torch.Tensor]],
    given: Mapping[str, torch.Tensor],
    parts: int,
) -> None:
    """
    Divides gradients by `parts`, the number of parts of the batch, in place. Divides
    only the gradients of tensors that all parts share, because the program sums them
    over the parts. `found` has pairs of a tensor and its gradient; a tensor that is
    given for several inputs has several gradients. `given` has the inputs of the call
    by name.
    """
    split = _split_inputs(program, given)
    common = [local_part(g) for source, g in found if id(source) not in split]
    on: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in common if parts > 1 else ():
        on.setdefault(gradient.device, []).append(gradient)
    for own in on.values():
        torch.ops.aten._foreach_div_.Scalar(own, parts)


def _split_inputs(program: RankProgram, given: Mapping[str, torch.Tensor]) -> set[int]:
    """
    Returns the ids of the inputs of a call that are split along the batch, so that each
    part has its own rows.
    """
    return {
        id(given[spec.name])
        for spec in program.all_arguments
        if spec.name in given and program.is_split_with_batch(spec)
    }
