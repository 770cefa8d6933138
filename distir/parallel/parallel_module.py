"""The module that a training script uses in place of the user's own module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from distir.errors import DistIRError
from distir.frontends.torch.modules.inputs import distinct
from distir.parallel.autocast import AskedTypes, cast_input, enabled_devices
from distir.parallel.calling import Inputs, Labels
from distir.parallel.chunks import store_runs_apart
from distir.parallel.filling import fill
from distir.parallel.generation.methods import GenerationMethods, MakeGeneration
from distir.parallel.losses import KnownLoss, OutputWithoutGradients
from distir.parallel.nan_check import check_nan
from distir.parallel.padding.check import PaddingCheck
from distir.parallel.pretrained.saving import save_in_shards, saves_in_shards
from distir.parallel.pretrained.stored import StoredWeight
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.clipping import clip
from distir.parallel.scripts.fused_updates import update_local_parts
from distir.parallel.scripts.optimizers import note_source, owned, refuse_optimizers
from distir.parallel.scripts.sealed import seal
from distir.parallel.scripts.source_class import copy_attributes
from distir.parallel.shapes import Batch, Example, Shapes, SharedShapes, check_rows
from distir.parallel.step_check import StepCheck
from distir.parallel.steps import Needed, Steps
from distir.parallel.training.loss_scale import has_smaller_scale
from distir.parallel.training.micro_batch_losses import (
    MicroBatchLosses,
    can_divide_first,
    divide_first,
    of_each_part,
)
from distir.parallel.training.named_tensors import NamedTensors
from distir.parallel.training.outside_step import OutsideStep, StepOutputs
from distir.parallel.training.overflow import spread_overflow
from distir.parallel.training.stored_values import StoredValues, in_order
from distir.parallel.training.whole_batch import mean_of_parts
from distir.parallel.weights import batch_counters, whole_state


class ParallelModule(GenerationMethods):
    """
    A module that runs on several processes, made on each of them by
    `distir.parallelize`.

    Its parameters have the names of the source module and are `DTensor`s. Each process
    holds its part of each parameter; with a pipeline, only of its own stages'
    parameters. In training mode, a call returns the loss of the global batch, and
    `backward` of this loss fills the gradients. In evaluation mode, a call returns this
    rank's part of the output.

    Each rank must get part `data_rank` of `data_ranks` equal parts of the batch;
    `sampler` returns its samples. `normalisations` is the number of times that a step
    updates the statistics of batch normalisation. `check` compares the first step with
    a step of the source module, and `check_padding` checks the first padded call. None
    stands for no check.
    """

    def __init__(
        self,
        source: nn.Module,
        inputs: Inputs,
        labels: Labels,
        steps: Steps,
        evaluation: Callable[[str | None, bool, Example | None], RankProgram],
        generation: MakeGeneration,
        asked: AskedTypes,
        seed: int,
        weights: Mapping[str, StoredWeight],
        shapes: SharedShapes,
        detect_nan: bool,
        normalisations: int = 1,
        check: StepCheck | None = None,
        check_padding: PaddingCheck | None = None,
    ):
        super().__init__()
        self._check = check
        self._check_padding = check_padding
        store_runs_apart()
        self._normalisations = normalisations
        self._inputs = inputs
        self._labels = labels
        self._steps = steps
        program = self._program = steps.base
        if detect_nan and program.gradients:
            raise DistIRError(
                "parallelize: detect_nan=True runs a step with NaN again, with the loss in "
                "it, and this module gives outputs, of which the script computes the loss; "
                "leave it out, or give the loss to parallelize (loss=...)"
            )
        if check is not None and program.gradients:
            raise DistIRError(
                'parallelize: check="step" compares the loss of the first step, and this '
                "module gives outputs, of which the script computes the loss; take "
                'check="import", or give the loss to parallelize (loss=...)'
            )
        self._make_evaluation = evaluation
        self._make_generation = generation
        self._evaluations: dict[
            tuple[str | None, bool, Shapes | None], RankProgram
        ] = {}
        self._shapes = shapes
        if shapes.padding is not None:
            shapes.padding.check_names(program.inputs, program.labels)
        self._detect_nan = detect_nan
        self._asked = asked
        self.data_rank, self.data_ranks = program.place_in_batch()
        self._counters = batch_counters(source)
        self._named_tensors = NamedTensors()
        copy_attributes(source, self)
        buffers = dict(source.named_buffers(remove_duplicate=False))
        others = fill(self, source, program, seed, weights)
        self._stored = StoredValues(program, others, buffers)
        refuse_optimizers()
        note_source(source.parameters())
        update_local_parts()
        if program.is_pipeline:
            # PyTorch's checkpoints are a tenth of a second of imports.
            from distir.parallel.scripts.stage_groups import list_all_stages

            list_all_stages()
        owned(self.parameters(), of_pipeline=program.is_pipeline)
        self.train(source.training)
        seal(self, source)

    # What training scripts use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """
        Runs the module on this rank's part of the batch. The arguments are the source
        module's arguments, followed in training mode by the labels. Returns the loss of
        the global batch in training mode, and this rank's part of the output in
        evaluation mode.
        """
        if not self.training:
            return self._output(args, kwargs)
        if self._program.gradients:
            return self._outputs(args, kwargs)
        return self._loss(args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """
        Runs the forward and backward pass. Returns the loss of the global batch, and
        fills all gradients.

        If the module returns outputs instead of a loss, `loss` is a function of the
        output, and of `target` if given. Tensors in `target` with a row for each sample
        of this rank's part are divided into micro-batches. With a pipeline, the ranks
        of the last stage call `loss`, once for each micro-batch. Returns the mean loss
        of all micro-batches and parts. Raises DistIRError if the arguments do not fit.
        """
        if not self._program.gradients:
            loss = self._loss(args, kwargs)
            loss.backward()
            return loss.detach()
        if not callable(kwargs.get("loss")):
            raise DistIRError(
                "step of a module that gives outputs needs the loss, a function of the "
                "output and the target; give it: step(inputs, target=..., loss=...)"
            )
        own = {n: v for n, v in kwargs.items() if n not in ("loss", "target")}
        target = [kwargs["target"]] if "target" in kwargs else []
        return self._step_outside(args, own, kwargs["loss"], target)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """
        Compiles the program of a training step for a global batch: the arguments of the
        module and, with a loss, the labels. Every rank must call this method. Raises
        DistIRError if the program cannot be made.
        """
        given = self._given(self._program, args, kwargs)
        names = {id(tensor): name for name, tensor in given.items()}
        specs = {spec.name: spec for spec in self._program.all_arguments}

        def own(leaf: torch.Tensor) -> torch.Tensor:
            name = names.get(id(leaf))
            if name is None or not self._program.is_split_with_batch(specs[name]):
                return leaf
            return leaf.tensor_split(self.data_ranks)[self.data_rank]

        call: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
            torch.Tensor, own, (tuple(args), dict(kwargs))
        )
        autocast = self._asked.now("training")
        self._prepared(self._named(), *call, autocast, is_announced=True)

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """
        Returns, on rank 0, the source module's state dictionary with the current
        values: whole tensors on the CPU. Other ranks get an empty dictionary. Every
        rank must call this method.
        """
        return whole_state(self._named(), self._inputs.source, self._program.device)

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """
        Writes the module with its current values, as `save_pretrained` of the source
        module does with `options`. Every rank must call this method. A model of
        transformers is written in several files with an index. Each file has at most
        `max_shard_size` ("1GB" by default), and each rank writes its share of the
        files, so that no rank holds the whole model. For other models and other
        options, rank 0 writes all files. `state_dict=` passes whole values. Raises
        DistIRError if the source module has no such method.
        """
        source = self._inputs.source
        if not hasattr(source, "save_pretrained"):
            raise DistIRError(
                f"{type(source).__name__} has no save_pretrained; save whole_state_dict() of "
                f"rank 0 with torch.save"
            )
        if saves_in_shards(source, options):
            save_in_shards(self._named(), source, Path(folder), options)
            return
        state = options.pop("state_dict", None)
        if state is None:
            state = self.whole_state_dict()
        if dist.get_rank() == 0:
            cast(Any, source).save_pretrained(folder, state_dict=state, **options)
        if dist.get_world_size() > 1:
            dist.barrier()

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        parameters: Iterable[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """
        Scales all gradients, or the gradients of `parameters`, so that their norm over
        all stages is at most `max_norm`. Returns the norm before scaling. `norm_type`
        is the order of the norm; `inf` stands for the largest magnitude. Every rank
        must call this method.
        """
        # The same type on all ranks, even if their stages have other parameters.
        kinds = {s.dtype for s in self._program.all_arguments if s.role == "parameter"}
        kind = torch.float64 if torch.float64 in kinds else torch.float32
        given = self.parameters() if parameters is None else parameters
        norm = clip(given, max_norm, norm_type, kind, self._program.device)
        self._measured()["grad_norm"] = norm
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
        named = self._named()
        program, batch, needed = self._prepared(named, args, kwargs, autocast)
        given = batch.given
        results = self._scaled_results(program, given, named)
        found = list(self._stored.gradients(program, results, given, named))
        sources, gradients = [s for s, _ in found], [g for _, g in found]
        self._update(program, results, named)
        loss = program.everywhere(program.all_results[0], results.get(0))
        self._measured()["loss"] = loss
        if not needed:
            return loss
        if self._check is not None:
            check, self._check = self._check, None
            place = self.data_rank, self.data_ranks
            check(self, place, args, kwargs, loss, sources, gradients)
        if not sources:  # the stages of this rank have no parameters
            return loss.requires_grad_()
        return cast(torch.Tensor, KnownLoss.apply(loss, gradients, *sources))

    def _update(
        self,
        program: RankProgram,
        results: Mapping[int, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> None:
        """
        Stores the new values of buffers and states. All ranks must call this method.
        """
        self._stored.update(program, results, named)
        for counter in self._counters:
            self.get_buffer(counter).add_(self._normalisations)

    def _outputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """
        Returns the outputs of this rank's part of the batch in training mode. Their
        gradients start the backward pass.
        """
        if self._program.is_pipeline or self._program.parts > 1:
            raise DistIRError(
                "the module has micro-batches, or stages, whose forwards and backwards "
                "alternate, so that it gives no outputs in training mode; call "
                "step(inputs, target=..., loss=...) with a function of the output and the "
                "target"
            )
        autocast = self._asked.now("training")
        named = self._named()
        program, batch, needed = self._prepared(named, args, kwargs, autocast)
        given = batch.given
        held = self._stored.held(program, given, named)
        for spec in program.all_results:
            if spec.updates:  # the backward needs it as it is now
                held[spec.updates] = held[spec.updates].clone()
        own = self._own_part(program, given)
        parameters = (x for x in named.items() if isinstance(x[1], nn.Parameter))
        unchanged = {**dict(parameters), **given} if needed else {}
        step = OutsideStep(program, {**held, **own}, batch.own, unchanged)
        self._update(program, step.updates, named)
        outputs, step.outputs = step.outputs, []
        if needed:
            sources = self._stored.sources(program, given, named)
            is_f16 = self._asked.is_f16(autocast)
            finish = partial(self._finish, program, step, sources, given, named, is_f16)
            outputs = StepOutputs.apply(finish, outputs, step.have_gradients, *sources)
        outputs = step.given(outputs)
        if batch.is_padded:
            outputs = self._inputs.without_padding(outputs, args, kwargs)
        return self._inputs.output(outputs)

    def _finish(
        self,
        program: RankProgram,
        step: OutsideStep,
        sources: Sequence[torch.Tensor],
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
        is_f16: bool,
        gradients: list[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Runs the backward pass of a step and returns the gradients of `sources`."""
        parts = self.data_ranks
        if not is_f16 and can_divide_first(program, gradients, sources, given, parts):
            divide_first(gradients, parts)
            parts = 1
        results = step.finish(gradients)
        found = list(self._stored.gradients(program, results, given, named))
        of_each_part(program, found, given, parts)
        if is_f16:
            spread_overflow([gradient for _, gradient in found], program.device)
        return in_order(found, sources)

    def _step_outside(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Callable[..., torch.Tensor],
        target: Sequence[Any],
    ) -> torch.Tensor:
        """
        Runs both passes of a step with a loss of the output and the target. Returns the
        mean of the losses of all parts of the batch.
        """
        if not self._program.is_pipeline and self._program.parts < 2:
            value = loss(self._outputs(args, kwargs), *target)
            value.backward()
            return self.mean_of_parts(value)
        autocast = self._asked.now("training")
        named = self._named()
        program, batch, _ = self._prepared(named, args, kwargs, autocast)
        given = batch.given
        if batch.own is not None:
            check_rows(program)
        own = self._own_part(program, given)
        arguments = {**self._stored.held(program, given, named), **own}
        rows = program.rows_of_part

        def structured(leaves: Sequence[torch.Tensor]) -> Any:
            if batch.is_padded:
                leaves = self._inputs.without_padding(leaves, args, kwargs)
            return self._inputs.output(leaves)

        count = rows if batch.own is None else batch.own
        losses = MicroBatchLosses(loss, target, rows, count, program.parts, structured)
        results = losses.run(program, arguments)
        pairs = list(self._stored.gradients(program, results, given, named))
        self._update(program, results, named)
        of_each_part(program, pairs, given, self.data_ranks)
        if self._asked.is_f16(autocast):
            spread_overflow([gradient for _, gradient in pairs], program.device)
        value = losses.total
        if value is not None:
            value = mean_of_parts(program, value).double()
        spec = next(s for s in program.all_results if s.name in program.gradients)
        spec = replace(spec, shape=(), split=(), dtype=torch.float64)
        mean = program.everywhere(spec, value)
        if pairs:
            sources, gradients = [s for s, _ in pairs], [g for _, g in pairs]
            KnownLoss.apply(mean, gradients, *sources).backward()  # pyright: ignore[reportOptionalMemberAccess]
        return mean

    def _prepared(
        self,
        named: Mapping[str, torch.Tensor],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        autocast: str | None,
        *,
        is_announced: bool = False,
    ) -> tuple[RankProgram, Batch, Needed]:
        """Returns a step's program, its batch, and the tensors that need gradients."""
        averages = not self._program.gradients
        batch = self._shared(
            self._program, args, kwargs, averages=averages, is_announced=is_announced
        )
        needed = self._steps.needed(named, batch.given)
        example = None
        if batch.shapes is not None:
            example = partial(self._example, self._program, batch, args, kwargs)
        program = self._steps.program(needed, autocast, batch.shapes, example)
        return program, batch, needed

    def _named(self) -> dict[str, torch.Tensor]:
        """Returns all parameters and buffers, by all of their names."""
        return self._named_tensors.of(self)

    def _scaled_results(
        self,
        program: RankProgram,
        given: Mapping[str, torch.Tensor],
        named: Mapping[str, torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """
        Runs a program on a batch and returns its results by index. If gradients
        overflow, the program runs again with a smaller scale of the loss.
        """
        batch = self._own_part(program, given)
        while True:
            arguments = {**self._stored.held(program, given, named), **batch}
            results = program.run(arguments)
            if has_smaller_scale(self._stored, program, results, named):
                continue
            if self._detect_nan:
                check_nan(program, arguments, results)
            return results

    def _output(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        autocast = self._asked.now("evaluation")
        if self._inputs.has_labels(args, self._program.labels):
            return self._validation_loss(autocast, args, kwargs)
        base = self._evaluation(autocast)
        batch = self._shared(base, args, kwargs, averages=False)
        count = len(base.all_results)
        has_loss = not all(base.is_of_batch(i) for i in range(count))
        if batch.own is not None and has_loss and not self._program.labels:
            batch = self._shared(base, args, kwargs)  # a mean over samples
        example = partial(self._example, base, batch, args, kwargs)
        program = self._evaluation(autocast, False, batch.shapes, example)
        given = batch.given
        held = self._stored.held(program, given, self._named())
        results = program.run({**held, **self._own_part(program, given)})
        outputs = [
            batch.rows_of_own(program, i, program.output(i, results.get(i)))
            for i in range(count)
        ]
        if batch.is_padded:
            outputs = self._inputs.without_padding(outputs, args, kwargs)
        sources = [value for value in given.values() if value.requires_grad]
        if sources and torch.is_grad_enabled():
            outputs = [
                OutputWithoutGradients.apply(x, *sources)
                if x.is_floating_point()
                else x
                for x in outputs
            ]
        return self._inputs.output(outputs)

    def _evaluation(
        self,
        autocast: str | None,
        has_loss: bool = False,
        shapes: Shapes | None = None,
        example: Callable[[], Example] | None = None,
    ) -> RankProgram:
        """
        Returns the program of evaluation, or of the loss in evaluation mode
        (`has_loss`), for batches of the shapes `shapes` (None: the example's).
        `example` returns such a batch. Every rank must call this method.
        """
        key = autocast, has_loss, shapes
        if key not in self._evaluations:
            given = None if example is None or shapes is None else example()
            self._evaluations[key] = self._make_evaluation(autocast, has_loss, given)
        return self._evaluations[key]

    def _validation_loss(
        self, autocast: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Returns the loss of the global batch in evaluation mode."""
        batch = self._shared(self._program, args, kwargs)
        example = partial(self._example, self._program, batch, args, kwargs)
        program = self._evaluation(autocast, True, batch.shapes, example)
        held = self._stored.held(program, batch.given, self._named())
        results = program.run({**held, **self._own_part(program, batch.given)})
        loss = program.everywhere(program.all_results[0], results.get(0))
        self._measured()["validation_loss"] = loss
        return loss

    def _shared(
        self,
        program: RankProgram,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        averages: bool = True,
        is_announced: bool = False,
    ) -> Batch:
        """
        Returns the global batch of a call. Raises DistIRError, on every rank, if the
        ranks' parts do not fit together.
        """
        given = self._batch(program, args, kwargs)
        batch = self._shapes.of(
            program, given, averages=averages, is_announced=is_announced
        )
        if batch.samples is not None and self._counters and self.training:
            raise DistIRError(
                "the samples of this batch cannot be divided evenly among the ranks, and "
                "the batch normalisation of the module needs each of them once; leave a "
                "last batch out (drop_last=True of a DataLoader)"
            )
        if batch.is_padded and self._counters and self.training:
            raise DistIRError(
                "the sequences of this batch are padded (pad_to), and the batch "
                "normalisation of the module would count what is appended; leave pad_to out"
            )
        if batch.is_padded and self._check_padding is not None:
            args, kwargs = distinct(self._inputs.source, args, kwargs)
            given = self._given(program, args, kwargs)
            padded = self._shapes.padded(program, given, batch.lengths)
            is_loss = self.training and not self._program.gradients
            has_labels = bool(program.labels)
            flags = dict(has_labels=has_labels, has_loss=has_labels or is_loss)
            self._check_padding(args, kwargs, given, padded, **flags)
        return batch

    def _example(
        self,
        program: RankProgram,
        batch: Batch,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Example:
        """
        Returns an example of a global batch with the shapes of `batch`, in the
        structure of a call.
        """
        call = distinct(self._inputs.source, args, kwargs)
        args, kwargs = self._inputs.here(call)
        names = {id(t): name for name, t in self._given(program, args, kwargs).items()}
        return batch.example(names, args, kwargs, has_labels=bool(program.labels))

    def _batch(
        self, program: RankProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """
        Returns the inputs and labels of a call, by name: whole tensors or this rank's
        part of the batch, as in the call. If `torch.autocast` is on, floats are cast to
        the types of the program.
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
        """Returns this rank's parts of the inputs and labels of a call."""
        return {
            spec.name: program.of_batch(spec, given[spec.name].detach())
            for spec in program.arguments.values()
            if spec.name in given
        }
