"""
Losses that a training script computes from the outputs of a parallel module: outputs that
take part in autograd, and values of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import own_rows
from distir.parallel.weights import local_part

Finish = Callable[[list[torch.Tensor | None]], Sequence[torch.Tensor]]
"""
A function from the gradients of outputs, None where there are none, to those of the
sources of these outputs. It empties the list.
"""


class OutsideStep:
    """
    A step of a program whose loss the caller computes. The forward, of the first
    micro-batch if there are several, has run when it is made; `finish` runs the backward.
    Without it, the step is simply dropped.

    - `outputs`: the outputs of this rank's part of the batch;
    - `updates`: results of the forward that update states of the module, by index;
    - `have_gradients`: whether the program takes the gradient of each output.

    `arguments` are this rank's parts of the program's arguments, by name, without those
    that `finish` gives. `own` is the number of samples that this rank was given, if that is
    not the number that the program takes. Every rank on which the program gives outputs
    must make a step, and finish it.
    """

    def __init__(
        self,
        program: RankProgram,
        arguments: Mapping[str, torch.Tensor],
        own: int | None = None,
    ):
        self._program, self._own = program, own
        self._call = program.start(arguments)
        self.updates: dict[int, torch.Tensor] = {}
        self._places: list[int] = []
        self.outputs: list[torch.Tensor] = []
        self._take()
        results = [program.all_results[i] for i in self._places]
        self.have_gradients = [spec.name in program.gradients for spec in results]
        self._versions = [
            (name, value, value._version)
            for name, value in arguments.items()
            if not value.is_inference()
        ]

    def _take(self) -> None:
        program = self._program
        results = program.taken(self._call)
        self.updates = {
            i: value for i, value in results.items() if program.all_results[i].updates
        }
        self._places = [i for i in results if i not in self.updates]
        self.outputs = [
            # An object of its own for each, as a program may give one tensor twice.
            own_rows(
                program, i, program.given_output(i, results.pop(i)), self._own
            ).detach()
            for i in self._places
        ]

    def finish(self, gradients: list[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """
        Runs the backward and returns its results by index. If another micro-batch follows,
        runs its forward instead, which gives further `outputs`. `gradients` are those of
        the outputs, and the list is emptied. Raises DistIRError, and RuntimeError if the
        step has run before.
        """
        if self._call is None:
            raise RuntimeError(
                "backward was called a second time on outputs of one call; call it once, on "
                "the sum of the losses, or call the module again"
            )
        call, self._call = self._call, None
        for name, value, version in self._versions:
            if value._version != version:
                raise DistIRError(
                    f"{name!r} was changed in place (by a step of an optimizer?) after the "
                    f"call whose backward this is, which needs its old value; call backward "
                    f"before that, or call the module again"
                )
        own: dict[str, torch.Tensor] = {}
        for index in reversed(self._places):
            gradient = gradients.pop()
            name = self._program.all_results[index].name
            if name in self._program.gradients:
                own[name] = self._part(index, gradient)
        del gradient
        results = self._program.resume(call, own)
        if call.results is None:
            self._call = call
            self._take()
        else:
            self._versions.clear()
        return results

    def _part(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Returns the gradient of a result as the program takes it."""
        program = self._program
        if (
            gradient is not None
            and self._own is not None
            and program.is_of_batch(index)
        ):
            rows = program.part_shape(program.all_results[index])[0]
            empty = gradient.new_zeros((rows - len(gradient), *gradient.shape[1:]))
            gradient = torch.cat([gradient, empty])
        return program.gradient_part(index, gradient)


class PartLosses:
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


class StepOutputs(torch.autograd.Function):
    """
    The outputs of a step, whose backward is that of the program. `has_gradients` says of
    which of them the program takes gradients; the sources are the tensors whose gradients
    it gives.
    """

    @staticmethod
    def forward(
        ctx: Any,
        finish: Finish,
        outputs: list[torch.Tensor],
        has_gradients: Sequence[bool],
        *sources: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.finish = finish
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, has_gradients, strict=True)
        ctx.mark_non_differentiable(*(x for x, has in pairs if not has))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise DistIRError(
                "backward through a parallel module was asked for gradients that can be "
                "differentiated again (create_graph=True, as for a gradient penalty), and a "
                "program has none; compute such a term with the module on one process, or "
                "leave it out"
            )
        given = list(grad_outputs)
        del grad_outputs
        return None, None, None, *ctx.finish(given)


class _Gathered(torch.autograd.Function):
    """
    The rows of all ranks of a group, in the order of the group. The gradient of a rank's
    own rows is the sum of those that all ranks have for them.
    """

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        size, place = dist.get_world_size(group), dist.get_rank(group)
        counts = [torch.zeros(1, dtype=torch.int64, device=own.device)] * size
        counts = [torch.empty_like(count) for count in counts]
        dist.all_gather(counts, counts[0].new_tensor([len(own)]), group=group)
        rows = [int(count) for count in counts]
        ctx.start, ctx.count = sum(rows[:place]), rows[place]
        padded = own.new_zeros((max(rows), *own.shape[1:]))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in rows]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:n] for part, n in zip(parts, rows, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
        whole = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        return whole[ctx.start : ctx.start + ctx.count], None


def whole_batch(program: RankProgram, own: torch.Tensor) -> torch.Tensor:
    """
    Returns the rows that all parts of the batch have of a tensor, of which `own` are this
    rank's. It takes part in autograd. Raises DistIRError for a scalar.
    """
    if not own.dim():
        raise DistIRError(
            "whole_batch brings the rows of all ranks together, and a scalar has none; "
            "mean_of_parts gives the mean of a number over the ranks"
        )
    for group in reversed(program.batch_groups()):
        own = _Gathered.apply(own, group)  # pyright: ignore[reportAssignmentType]
    return own


def mean_of_parts(program: RankProgram, value: torch.Tensor) -> torch.Tensor:
    """
    Returns the mean, over the parts of the batch, of a tensor that each rank has of its
    own part, without gradients.
    """
    found = value.detach().clone()
    for group in program.batch_groups():
        dist.all_reduce(found, group=group)
        found /= dist.get_world_size(group)
    return found
