"""The module that a training script uses in the place of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset, DistributedSampler

from distir.errors import DistIRError
from distir.parallel.autocast import AskedTypes, cast_input, enabled_devices
from distir.parallel.calling import Inputs, Labels
from distir.parallel.chunks import store_runs_apart
from distir.parallel.filling import STATES, fill
from distir.parallel.merged import merged_parts
from distir.parallel.rank_program import RankProgram
from distir.parallel.step_check import StepCheck
from distir.parallel.steps import Steps
from distir.parallel.weights import batch_counters


class _Loss(torch.autograd.Function):
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
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError(
                "backward was called a second time on one loss; call the module again"
            )
        (scale,) = grad_outputs
        on: dict[torch.device, list[torch.Tensor]] = {}
        for gradient in gradients:  # an input may be on another device than parameters
            on.setdefault(gradient.device, []).append(_local(gradient))
        for device, own in on.items():
            torch.ops.aten._foreach_mul_.Tensor(own, scale.to(device))
        return None, None, *gradients


class _ModuleOutput(torch.autograd.Function):
    """
    An output in evaluation mode. Its backward raises DistIRError, because it has no
    gradients.
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


class ParallelModule(nn.Module):
    """
    A module that runs on several processes. `distir.parallelize` makes it on each of
    them.

    Its parameters have the names of the source module and are `DTensor`s. Each process
    holds its part of each parameter; with a pipeline, a process holds only the
    parameters of its own stages. In training mode, a call returns the loss of the
    global batch, and `backward` of this loss fills the gradients. In evaluation mode, a
    call returns this rank's part of the output.

    A rank must be given part `data_rank` of `data_ranks` equal parts of the batch;
    `sampler` returns the samples of this part. `normalisations` is the number of times
    that a step updates the statistics of batch normalisation. `check`, if given,
    compares the first step with one of the source module.
    """

    def __init__(
        self,
        source: nn.Module,
        inputs: Inputs,
        labels: Labels,
        steps: Steps,
        evaluation: Callable[[str | None], RankProgram],
        asked: AskedTypes,
        seed: int,
        normalisations: int = 1,
        check: StepCheck | None = None,
    ):
        super().__init__()
        self._check = check
        store_runs_apart()
        self._normalisations = normalisations
        self._inputs = inputs
        self._labels = labels
        self._steps = steps
        program = self._program = steps.base
        self._make_evaluation = evaluation
        self._evaluations: dict[str | None, RankProgram] = {}
        self._asked = asked
        self.data_rank, self.data_ranks = program.place_in_batch()
        self._counters = batch_counters(source)
        self._others = fill(self, source, program, seed)
        self._known = {spec.name: spec for spec in program.all_arguments}
        self.train(source.training)

    # What training scripts use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """
        Runs the module on this rank's part of the batch. The arguments are those of the
        source module, and in training mode the labels as one more positional argument.
        Returns the loss of the global batch in training mode, and this rank's part of
        the output in evaluation mode.
        """
        if self.training:
            return self._loss(args, kwargs)
        return self._output(args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """
        Runs forward and backward. Returns the loss of the global batch; all gradients
        are then filled.
        """
        loss = self._loss(args, kwargs)
        loss.backward()
        return loss.detach()

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool = True, seed: int = 0
    ) -> DistributedSampler[Any]:
        """
        Returns a sampler for a `DataLoader`. It selects the samples of `dataset` that
        this rank must be given.
        """
        return DistributedSampler(
            dataset, self.data_ranks, self.data_rank, shuffle=shuffle, seed=seed
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """
        Scales all gradients so that their norm, over the parameters of all stages, is
        at most `max_norm`. Returns the norm before scaling. `norm_type` is the order of
        the norm; `inf` stands for the largest magnitude. Every rank must call this.
        """
        gradients = [
            cast(DTensor, p.grad) for p in self.parameters() if p.grad is not None
        ]
        # The same type on all ranks, even if their stages have other parameters.
        kinds = {s.dtype for s in self._program.all_arguments if s.role == "parameter"}
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        norm = torch.zeros((), dtype=kind, device=self._program.device)
        if norm_type == inf:
            for gradient in gradients:
                norm = torch.maximum(norm, _local_norm(gradient, inf).to(kind))
            dist.all_reduce(norm, dist.ReduceOp.MAX)
        else:
            for gradient in gradients:
                norm += _share_of_power(gradient, norm_type)
            dist.all_reduce(norm)
            norm = norm ** (1 / norm_type)
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.to_local().mul_(factor)
        return norm

    # Running

    def _loss(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        autocast = self._asked.now("training")
        if autocast is not None and self._check is not None:
            raise DistIRError(
                'parallelize: check="step" compares the first step with the module as '
                "PyTorch runs it outside of torch.autocast; make this step outside of it, "
                'or take check="import"'
            )
        given = self._batch(self._program, args, kwargs)
        named = self._named()
        needed = self._steps.needed(named, given)
        program = self._steps.program(needed, autocast)
        results = self._scaled_results(program, given, named)
        sources: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        for index, spec in enumerate(program.all_results):
            value = results.get(index)
            if spec.of in given:
                gradient = program.output(index, value)
                if given[spec.of].requires_grad:
                    sources.append(given[spec.of])
                    gradients.append(gradient.to(given[spec.of]))
            elif spec.updates or spec.of:
                own = self._known[spec.updates or spec.of]
                value = program.moved(spec, value, self._program, own)
                if value is None:
                    continue
                if spec.updates:
                    self._tensor(spec.updates, named).copy_(value)
                    continue
                for name, part in self._parts_of_gradient(own, value):
                    parameter = named[name]
                    if parameter.requires_grad:
                        sources.append(parameter)
                        gradients.append(part)
        for counter in self._counters:
            self.get_buffer(counter).add_(self._normalisations)
        loss = program.everywhere(program.all_results[0], results.get(0))
        if not needed:
            return loss
        if self._check is not None:
            check, self._check = self._check, None
            place = self.data_rank, self.data_ranks
            check(self, place, args, kwargs, loss, sources, gradients)
        if not sources:  # the stages of this rank have no parameters
            return loss.requires_grad_()
        return cast(torch.Tensor, _Loss.apply(loss, gradients, *sources))

    def _named(self) -> dict[str, torch.Tensor]:
        """Returns all parameters and buffers, by all of their names."""
        return {
            **dict(self.named_buffers(remove_duplicate=False)),
            **dict(self.named_parameters(remove_duplicate=False)),
        }

    def _scaled_results(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """
        Runs a program on a batch and returns its results by index. If gradients
        overflow because the scale of the loss is too large, the program runs again with
        a smaller scale.
        """
        batch = self._own_part(program, given)
        while True:
            results = program.run({**self._held(program, given, named), **batch})
            if not self._has_smaller_scale(program, results, named):
                return results

    def _has_smaller_scale(
        self,
        program: RankProgram,
        results: Mapping[int, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> bool:
        """
        Whether gradients overflowed and the scale of the loss can still be reduced. If
        so, the smaller scale is stored for all further steps.
        """
        scales = {s.name: s.loss_scale for s in program.all_arguments if s.loss_scale}
        if not scales:
            return False
        new = {
            program.results[i].updates: value
            for i, value in results.items()
            if program.results[i].updates in scales
        }
        change = torch.zeros((), dtype=torch.int64, device=program.device)
        for name, value in new.items():
            if scales[name] == "exponent":
                change = value - self._tensor(name, named)
        dist.all_reduce(change, dist.ReduceOp.MIN)
        if change >= 0:
            return False
        for name, value in new.items():
            self._tensor(name, named).copy_(value)
        return True

    def _parts_of_gradient(
        self, spec: Any, value: torch.Tensor
    ) -> list[tuple[str, DTensor]]:
        """
        Returns the gradient of an argument together with the argument's name. For a
        merged argument, it returns the name and the gradient of each parameter in it.
        """
        program = self._program
        if not spec.repacked:
            # Contiguous like the parameter: fused optimizers on GPUs require it.
            return [(spec.name, program.distributed(spec, value.contiguous()))]
        return [
            (part.name, program.distributed(part, view.contiguous()))
            for part, view in merged_parts(program, spec, value)
        ]

    def _output(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        autocast = self._asked.now("evaluation")
        if autocast not in self._evaluations:
            self._evaluations[autocast] = self._make_evaluation(autocast)
        program = self._evaluations[autocast]
        given = self._batch(program, args, kwargs)
        held = self._held(program, given, self._named())
        results = program.run({**held, **self._own_part(program, given)})
        count = len(program.all_results)
        outputs = [program.output(i, results.get(i)) for i in range(count)]
        sources = [value for value in given.values() if value.requires_grad]
        if sources and torch.is_grad_enabled():
            outputs = [
                _ModuleOutput.apply(x, *sources) if x.is_floating_point() else x
                for x in outputs
            ]
        return self._inputs.output(outputs)

    def _batch(
        self, program: RankProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """
        Returns the inputs and labels of a call, by name. If `torch.autocast` is on,
        floats are cast to the types that the program takes. Each tensor holds the
        values that the call gives: the whole tensor, or this rank's part of the batch.
        """
        given = self._given(program, args, kwargs)
        if not enabled_devices():
            return given
        types = {spec.name: spec.dtype for spec in program.all_arguments}
        return {n: cast_input(value, types[n]) for n, value in given.items()}

    def _given(
        self, program: RankProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        if not program.labels:
            return self._inputs.by_name(args, kwargs, program.inputs)
        if not args:
            raise DistIRError(
                "a call in training takes the labels as its last positional argument; give "
                "them behind the inputs"
            )
        *args, labels = args
        given = self._inputs.by_name(args, kwargs, program.inputs)
        return given | self._labels.by_name(labels, program.labels)

    def _own_part(
        self, program: RankProgram, given: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """
        Returns this rank's parts of the inputs and labels of a call, as the program
        takes them.
        """
        return {
            spec.name: program.of_batch(spec, given[spec.name].detach())
            for spec in program.arguments.values()
            if spec.name in given
        }

    def _held(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """
        Returns this rank's parts of the program's arguments that a call does not give:
        parameters, constants and states. Every rank must call this.
        """
        found: dict[str, torch.Tensor] = {}
        for spec in program.all_arguments:
            if spec.name not in given:
                value = self._as_in(program, spec, named)
                if value is not None:
                    found[spec.name] = value
        return found

    def _as_in(
        self, program: RankProgram, spec: Any, named: Mapping[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """
        Returns a parameter, constant or state as `program` takes it, or None if this
        rank does not need it. It may have another layout in `program` than in the first
        program, or be on another stage. Every rank must therefore call this.
        """
        own = self._program
        known = self._known.get(spec.name)
        if known is None:
            if not program.holds(spec):
                return None
            value = named.get(spec.name)
            if value is None:
                return program.other(spec)
            return program.part(spec, _local(value))
        held = self._tensor(spec.name, named) if own.holds(known) else None
        if program is own:
            return held
        return own.moved(known, held, program, spec)

    def _tensor(self, name: str, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """
        Returns this rank's part of the parameter, buffer or program state called
        `name`.
        """
        value = self._others.get(name)
        if value is None:
            value = named.get(name)
        if value is None:
            value = named[f"{STATES}.{name}"]
        return _local(value)


def _local(value: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor, detached from autograd."""
    if isinstance(value, DTensor):
        # As `to_local` without gradients, but it saves microseconds per parameter.
        return value._local_tensor  # pyright: ignore[reportPrivateUsage]
    return value.detach()


def _local_norm(gradient: DTensor, order: float) -> torch.Tensor:
    """Returns the norm of this rank's part of a gradient; 0 if the part is empty."""
    own = gradient.to_local().flatten()
    if not own.numel():
        return torch.zeros((), device=own.device)
    kind = torch.promote_types(own.dtype, torch.float32)
    return torch.linalg.vector_norm(own, order, dtype=kind)


def _share_of_power(gradient: DTensor, order: float) -> torch.Tensor:
    """
    Returns this rank's contribution to the sum over all elements of their magnitude to
    the power `order`. Elements that several ranks hold count once in the sum over all
    ranks.
    """
    copies = prod(
        size
        for placement, size in zip(
            gradient.placements, gradient.device_mesh.shape, strict=True
        )
        if placement.is_replicate()
    )
    return _local_norm(gradient, order) ** order / copies
