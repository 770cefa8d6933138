"""
Steps whose loss a training script computes. The outputs of the parallel module take
part in autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from distir.errors import DistIRError
from distir.parallel.losses import refuse_higher_gradients
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import own_rows

Finish = Callable[[list[torch.Tensor | None]], Sequence[torch.Tensor | None]]
"""
A function from the gradients of a step's outputs to the gradients of its sources. An
output without a gradient has None. The function empties the list.
"""


class OutsideStep:
    """
    A step of a program whose loss the caller computes. The constructor runs the forward
    pass (of the first micro-batch if there are several), and `finish` runs the backward
    pass. A step that is never finished can simply be dropped.

    - `outputs`: the outputs of this rank's part of the batch;
    - `updates`: results of the forward pass that update states of the module, by index;
    - `have_gradients`: whether the program takes the gradient of each output.

    `arguments` are this rank's parts of the program's arguments, by name, without the
    gradients that `finish` takes. `own` is the number of samples that the caller passed
    on this rank, or None for the number that the program takes. `unchanged` are tensors
    that must not change before `finish`, by name. Every rank with outputs must make a
    step and finish it.
    """

    def __init__(
        self,
        program: RankProgram,
        arguments: Mapping[str, torch.Tensor],
        own: int | None = None,
        unchanged: Mapping[str, torch.Tensor] | None = None,
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
            for name, value in (unchanged or {}).items()
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

    def given(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """
        Returns `outputs` in the form that the caller gets: outputs that stay split are
        DTensors. `outputs` are the outputs of this step, or tensors of autograd with
        the same values.
        """
        pairs = zip(self._places, outputs, strict=True)
        return [self._program.as_sharded(i, output) for i, output in pairs]

    def finish(self, gradients: list[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """
        Runs the backward pass and returns its results by index. If another micro-batch
        follows, the program stops after the forward pass of that micro-batch, and
        `outputs` then has its outputs. `gradients` has the gradient of each output, or
        None; the list is emptied. Raises DistIRError if a tensor of `unchanged` has
        changed, and RuntimeError if the step has already been finished.
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
        results = self._program.resume(call, self._parts(gradients))
        if call.results is None:
            self._call = call
            self._take()
        else:
            self._versions.clear()
        return results

    def _parts(self, gradients: list[torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """
        Returns the gradients of results in the layout that the program takes, by the
        names of the results. `gradients` is emptied.
        """
        found: dict[str, torch.Tensor] = {}
        for index in reversed(self._places):
            gradient = gradients.pop()
            name = self._program.all_results[index].name
            if name in self._program.gradients:
                found[name] = self._part(index, gradient)
        return found

    def _part(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """
        Returns the gradient of result `index` in the layout that the program takes.
        Adds rows of zeros if the caller passed fewer samples on this rank than the
        program takes.
        """
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


class StepOutputs(torch.autograd.Function):
    """
    The outputs of a step as an autograd function, whose backward pass runs the
    program's backward pass. `has_gradients` tells for each output whether the program
    takes its gradient. The program computes the gradients of the tensors `sources`.
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
        refuse_higher_gradients()
        given = list(grad_outputs)
        del grad_outputs
        return None, None, None, *ctx.finish(given)
