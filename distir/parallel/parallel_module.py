"""The module that a training script works with instead of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset, DistributedSampler

from distir.errors import DistIRError
from distir.parallel.calling import Inputs
from distir.parallel.chunks import store_runs_apart
from distir.parallel.filling import STATES, fill
from distir.parallel.merged import merged_parts
from distir.parallel.rank_program import RankProgram
from distir.parallel.weights import batch_counters


class _Loss(torch.autograd.Function):
    """A loss whose gradients have been computed already."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: torch.Tensor,
        gradients: Sequence[DTensor],
        *parameters: torch.Tensor,
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
        for gradient in gradients:
            gradient.to_local().mul_(scale)
        return None, None, *gradients


class ParallelModule(nn.Module):
    """
    A module that runs on several processes, made by `distir.parallelize` on each of them.

    Its parameters have the names of the source module and are `DTensor`s: each process
    holds its part, and with a pipeline only those of its own stages. In training mode a
    call returns the loss of the global batch, and `backward` on that fills the gradients;
    in evaluation mode it returns this rank's part of the output. `data_rank` of
    `data_ranks`, or a `sampler`, say which part of a batch a rank must be given.
    `normalisations` says how often a step moves the statistics of batch normalisation.
    """

    def __init__(
        self,
        source: nn.Module,
        inputs: Inputs,
        program: RankProgram,
        evaluation: Callable[[], RankProgram],
        seed: int,
        normalisations: int = 1,
    ):
        super().__init__()
        store_runs_apart()
        self._normalisations = normalisations
        self._inputs = inputs
        self._program = program
        self._make_evaluation = evaluation
        self._evaluation: RankProgram | None = None
        self.data_rank, self.data_ranks = program.place_in_batch()
        self._counters = batch_counters(source)
        self._others = fill(self, source, program, seed)
        self.train(source.training)

    # What training scripts use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """
        Takes this rank's part of the batch, as the source module takes the whole, and in
        training the labels as one more positional argument. Returns the loss of the global
        batch in training, this rank's part of the output in evaluation mode.
        """
        if self.training:
            return self._loss(args, kwargs)
        return self._output(args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """
        Runs forward and backward: returns the loss of the global batch, with all gradients
        filled.
        """
        loss = self._loss(args, kwargs)
        loss.backward()
        return loss.detach()

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool = True, seed: int = 0
    ) -> DistributedSampler[Any]:
        """
        Returns the samples of a dataset that this rank must be given, for a `DataLoader`.
        """
        return DistributedSampler(
            dataset, self.data_ranks, self.data_rank, shuffle=shuffle, seed=seed
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """
        Scales all gradients so that their norm of that order (`inf`: the largest number),
        over the parameters of all stages, is at most `max_norm`; returns the norm before.
        """
        gradients = [
            cast(DTensor, p.grad) for p in self.parameters() if p.grad is not None
        ]
        # Of one type on all ranks, whichever parameters their stages have.
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
        program = self._program
        given = self._given(program, args, kwargs)
        results = self._scaled_results(given)
        trained: list[nn.Parameter] = []
        gradients: list[DTensor] = []
        for index, value in results.items():
            spec = program.results[index]
            if spec.updates:
                _local(self._tensor(spec.updates)).copy_(value)
            elif spec.of:
                for part, own in self._parts_of_gradient(spec, value):
                    trained.append(self.get_parameter(part.of))
                    gradients.append(program.distributed(part, own))
        for counter in self._counters:
            self.get_buffer(counter).add_(self._normalisations)
        loss = program.everywhere(program.all_results[0], results.get(0))
        if not torch.is_grad_enabled():
            return loss
        if not trained:  # the stages of this rank have no parameters
            return loss.requires_grad_()
        return cast(torch.Tensor, _Loss.apply(loss, gradients, *trained))

    def _scaled_results(
        self, given: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """
        Runs the program and returns its results by index. If gradients overflow because the
        loss is scaled by too large a number, the program runs again with a smaller one.
        """
        program = self._program
        while True:
            own = {
                s.name: _local(self._tensor(s.name))
                for s in program.arguments.values()
                if s.name not in given
            }
            results = program.run({**own, **given})
            if not self._has_smaller_scale(results):
                return results

    def _has_smaller_scale(self, results: Mapping[int, torch.Tensor]) -> bool:
        """
        Returns whether gradients overflowed although the scale of the loss can be reduced;
        if so, sets the smaller scale for all further steps.
        """
        program = self._program
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
                change = value - self._tensor(name)
        dist.all_reduce(change, dist.ReduceOp.MIN)
        if change >= 0:
            return False
        for name, value in new.items():
            self._tensor(name).copy_(value)
        return True

    def _parts_of_gradient(
        self, spec: Any, value: torch.Tensor
    ) -> list[tuple[Any, torch.Tensor]]:
        """
        Returns a gradient with its description, or for a merged argument one for each of
        its parameters.
        """
        of = next(s for s in self._program.arguments.values() if s.name == spec.of)
        if not of.repacked:
            return [(spec, value)]
        whole = replace(spec, repacked=of.repacked)
        return [
            (replace(part, of=part.name), view.contiguous())
            for part, view in merged_parts(self._program, whole, value)
        ]

    def _output(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._evaluation is None:
            self._evaluation = self._make_evaluation()
        program = self._evaluation
        values = self._given(program, args, kwargs)
        for spec in program.all_arguments:
            if spec.name not in values and spec.role not in ("input", "label"):
                value = self._as_in(program, spec)
                if value is not None:
                    values[spec.name] = value
        results = program.run(values)
        count = len(program.all_results)
        return self._inputs.output(
            [program.output(i, results.get(i)) for i in range(count)]
        )

    def _given(
        self, program: RankProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Returns the parts of inputs and labels that this rank takes of a call."""
        count = len(args) - len(program.labels)
        if count < 0:
            raise DistIRError(
                "a call in training takes the labels as its last positional argument; give "
                "them behind the inputs"
            )
        given = self._inputs.by_name(args[:count], kwargs, program.inputs)
        given |= dict(zip(program.labels, args[count:], strict=True))
        return {
            spec.name: program.of_batch(spec, given[spec.name])
            for spec in program.arguments.values()
            if spec.name in given
        }

    def _as_in(self, program: RankProgram, spec: Any) -> torch.Tensor | None:
        """
        Returns a parameter or constant as another program takes it (None: not on this
        rank). It may have another layout there, or be on another stage, so every rank must
        take part.
        """
        own = self._program
        held_here = any(spec is s for s in program.arguments.values())
        known = next((s for s in own.all_arguments if s.name == spec.name), None)
        if known is None:
            value = self._found(spec.name)
            if value is None:
                return program.other(spec) if held_here else None
            return program.part(spec, value) if held_here else None
        if own.sharding_of(known) == program.sharding_of(spec):
            return _local(self._tensor(spec.name)) if held_here else None
        whole: torch.Tensor | None = None
        if any(known is s for s in own.arguments.values()):
            value = self._tensor(spec.name)
            whole = value.full_tensor() if isinstance(value, DTensor) else value
        whole = own.everywhere(known, whole)
        return program.part(spec, whole) if held_here else None

    def _found(self, name: str) -> torch.Tensor | None:
        """Returns the parameter or buffer of that name, if there is one."""
        *path, last = name.split(".")
        folder: Any = self
        for part in path:
            folder = getattr(folder, part, None)
        value = getattr(folder, last, None)
        return value.detach() if isinstance(value, torch.Tensor) else None

    def _tensor(self, name: str) -> torch.Tensor:
        """Returns what this rank has of a parameter, buffer or state of its program."""
        value = self._others.get(name)
        if value is None:
            value = self._found(name)
        if value is None:
            value = self._found(f"{STATES}.{name}")
        assert value is not None, name
        return value


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _local_norm(gradient: DTensor, order: float) -> torch.Tensor:
    """Returns the norm of what this rank has of a gradient; 0 of nothing."""
    own = gradient.to_local().flatten()
    if not own.numel():
        return torch.zeros((), device=own.device)
    kind = torch.promote_types(own.dtype, torch.float32)
    return torch.linalg.vector_norm(own, order, dtype=kind)


def _share_of_power(gradient: DTensor, order: float) -> torch.Tensor:
    """
    Returns what this rank adds to a power of a norm, such that the sum over all ranks
    counts once what several of them hold.
    """
    copies = prod(
        size
        for placement, size in zip(
            gradient.placements, gradient.device_mesh.shape, strict=True
        )
        if placement.is_replicate()
    )
    return _local_norm(gradient, order) ** order / copies
