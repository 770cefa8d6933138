"""Accelerate's `Accelerator` for parallel modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import accelerate
import torch
import torch.distributed as dist
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DistributedType, DynamoBackend
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.scripts.parts import rows_of_all
from distir.trainers.batches import Place, loader_of_part, objects_of_all
from distir.trainers.checkpoints import load_states, load_values, save_states

_FOLDER = "distir"
"""The subfolder of a saved state that holds parameters and states of optimizers."""


class Accelerator(accelerate.Accelerator):
    """
    `accelerate.Accelerator` for parallel modules, with the same arguments and methods.

    A parallel module communicates by itself, and `prepare` does not wrap it. A prepared
    loader gives each rank its part of the batch: ranks that differ in d get different
    samples, ranks that differ only in t or p the same samples. The loader's batch size
    is the size of one part. Losses equal the losses of one process with a batch that is
    `data_ranks` times as large; this holds for the last batch too. `gather`,
    `gather_for_metrics` and `reduce` count each part once. `clip_grad_norm_` uses the
    norm over all ranks. `save_state` writes a checkpoint in parts, and `load_state`
    reads it under any plan.

    Raises DistIRError for other ways to distribute (FSDP, DeepSpeed,
    `ParallelismConfig`), for fp16 and fp8, and for `torch.compile`: use the options of
    `parallelize` instead.
    """

    def __init__(self, *args: Any, **options: Any):
        is_gloo = dist.is_initialized() and "nccl" not in dist.get_backend_config()
        if not torch.cuda.is_available() or is_gloo:
            options.setdefault("cpu", True)
        super().__init__(*args, **options)
        self._parallel: list[ParallelModule] = []
        self._check()

    def _check(self) -> None:
        others = (
            DistributedType.FSDP,
            DistributedType.DEEPSPEED,
            DistributedType.MEGATRON_LM,
            DistributedType.XLA,
        )
        if self.distributed_type in others or self.parallelism_config is not None:
            kind = self.distributed_type.value
            if self.parallelism_config is not None:
                kind = "a ParallelismConfig"
            raise DistIRError(
                f"Accelerator: {kind} distributes a module, which distir.parallelize has done "
                f"already; leave it out, and give d=, t=, zero= and the like to parallelize"
            )
        if self.mixed_precision in ("fp16", "fp8"):
            instead = {"fp16": 'dtype="f16"', "fp8": 'float8="tensor"'}
            raise DistIRError(
                f"Accelerator: mixed_precision={self.mixed_precision!r} scales numbers by itself, "
                f"and the program of a parallel module does so too; leave it out, and give "
                f"{instead[self.mixed_precision]} to distir.parallelize"
            )
        dynamo: Any = self.state.dynamo_plugin
        if dynamo.backend != DynamoBackend.NO:
            raise DistIRError(
                "Accelerator: torch.compile cannot look into the program of a parallel module; "
                "leave the dynamo backend out, and give compiled=True to distir.parallelize"
            )
        world = dist.get_world_size() if dist.is_initialized() else 1
        if self.num_processes != world:
            raise DistIRError(
                f"Accelerator: there are {world} processes, of which Accelerate sees "
                f"{self.num_processes}; start them with torchrun, and on CPUs say so "
                f"(cpu=True; use_cpu=True of TrainingArguments)"
            )

    # Preparing

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """
        Prepares each argument and returns them in the given order. Modules are prepared
        first, because loaders depend on them.
        """
        for given in args:
            if isinstance(given, nn.Module):
                self.prepare_model(given)
        return super().prepare(*args, device_placement=device_placement)

    def prepare_model(
        self,
        model: nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> nn.Module:
        """
        Returns the parallel module `model` itself; calls of the module use autocast if
        mixed precision was chosen. Raises DistIRError if `model` is not a parallel
        module.
        """
        if not isinstance(model, ParallelModule):
            raise DistIRError(
                f"Accelerator: {type(model).__name__} is no parallel module; prepare what "
                f"distir.parallelize returns. Leave out a module that is not trained; an encoder "
                f"in front of a parallel module is left out too, and its gradients are summed "
                f"over the ranks that have different samples"
            )
        if not any(model is known for known in self._parallel):
            self._parallel.append(model)
            model._is_accelerate_prepared = False  # pyright: ignore[reportPrivateUsage]
        elif any(model is known for known in self._models):
            return model
        made = super().prepare_model(model, False, evaluation_mode=True)
        model._is_accelerate_prepared = True  # pyright: ignore[reportPrivateUsage]
        return made

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Any = None,
    ) -> DataLoader[Any]:
        """
        Returns a loader of this rank's parts of the batches. The batch size of
        `data_loader` is the size of one part. Raises DistIRError for
        `split_batches=True` or `dispatch_batches=True`.
        """
        if getattr(data_loader, "_is_accelerate_prepared", False):
            return super().prepare_data_loader(data_loader)
        for name in ("split_batches", "dispatch_batches"):
            if getattr(self, name):
                raise DistIRError(
                    f"Accelerator: {name}=True divides batches over all processes, and those that "
                    f"differ in t or p need the same samples; leave it out: the batch size of a "
                    f"prepared loader is that of one part"
                )
        if device_placement is None:
            device_placement = self.device_placement
        return self._one_process(
            loader_of_part(data_loader, self._place(), "Accelerator"), device_placement
        )

    def _one_process(self, loader: DataLoader[Any], on_device: bool) -> DataLoader[Any]:
        """Prepares a loader that already gives only this rank's samples."""
        from accelerate.data_loader import prepare_data_loader

        prepared = prepare_data_loader(
            loader,
            self.device,
            num_processes=1,
            process_index=0,
            put_on_device=on_device,
            dispatch_batches=False,
            use_seedable_sampler=self.use_seedable_sampler,
            data_seed=self.dataloader_config.data_seed,
            non_blocking=self.non_blocking,
            use_stateful_dataloader=self.use_stateful_dataloader,
        )
        batches = loader.batch_sampler or loader.dataset
        prepared._drop_last = getattr(batches, "drop_last", False)  # pyright: ignore[reportAttributeAccessIssue]
        self._dataloaders.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """
        Returns a scheduler that makes one step per part of the batch at each step of
        the optimizer. (Accelerate's own scheduler makes one step per process.)
        """
        if getattr(scheduler, "_is_accelerate_prepared", False):
            return super().prepare_scheduler(scheduler)
        made = _Scheduler(
            scheduler,
            next(
                (o for o in self._optimizers if o.optimizer is scheduler.optimizer),
                self._optimizers,
            ),
            step_with_optimizer=self.step_scheduler_with_optimizer,
        )
        made.parts = self._place().count
        self._schedulers.append(made)
        return made

    def _place(self) -> Place:
        return Place.of(self._parallel, "Accelerator")

    # Training

    def clip_grad_norm_(
        self, parameters: Any, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """
        Scales the gradients of `parameters` so that their norm over all ranks is at
        most `max_norm`. Returns the norm before the scaling.
        """
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        return self._parallel[0].clip_grad_norm_(max_norm, norm_type, given)

    def gather(self, tensor: Any) -> Any:
        """
        Returns `tensor`, a tensor or a structure of tensors, with the rows of all parts
        of the batch, while the argument has only the rows of this rank's part. The
        result has each part once.
        """
        place = self._place()
        return tree_map_only(
            torch.Tensor, lambda t: rows_of_all(t, place.rank, place.count), tensor
        )

    def gather_for_metrics(
        self, input_data: Any, use_gather_object: bool = False
    ) -> Any:
        """
        Returns the rows, or the objects, of all parts of the batch. The result has each
        part once.
        """
        leaves = tree_leaves(input_data)
        if not use_gather_object and all(isinstance(x, torch.Tensor) for x in leaves):
            return super().gather_for_metrics(input_data)
        found: list[Any] = []
        for own in objects_of_all(input_data, self._place()):
            found += own if isinstance(own, list | tuple) else [own]
        return found

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """
        Returns the sum, or with `reduction="mean"` the mean, of `tensor` over the parts
        of the batch, times `scale`. Each part is included once.
        """
        copies = self.num_processes // self._place().count if self._parallel else 1
        found = super().reduce(tensor, reduction, scale)
        if reduction != "sum" or copies == 1:
            return found
        return tree_map_only(torch.Tensor, lambda t: _quotient(t, copies), found)

    def check_trigger(self) -> bool:
        """
        Whether any rank has called `set_trigger` since the last call of
        `check_trigger`.
        """
        own: Any = self.flag_tensor
        flag = torch.as_tensor(0 if own is None else own, device=self.device)
        found = bool(cast(torch.Tensor, super().reduce(flag)).item())
        self.flag_tensor = torch.tensor(0, device=self.device) if found else flag
        return found

    # Saving

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """
        Returns the state dictionary of `model`. For a parallel module, the dictionary
        has whole tensors and is complete on rank 0 only. Every rank must call this
        method.
        """
        if isinstance(model, ParallelModule):
            return model.whole_state_dict()
        return super().get_state_dict(model, unwrap)

    def save_state(
        self,
        output_dir: Any = None,
        safe_serialization: bool = True,
        **save_model_func_kwargs: Any,
    ) -> Any:
        """
        Writes the state of the training to `output_dir`, and returns the folder. Each
        rank writes its parts of the parameters and of the states of optimizers.
        """
        with _Apart(self) as (models, optimizers):
            folder = super().save_state(
                output_dir, safe_serialization, **save_model_func_kwargs
            )
            save_states(Path(folder, _FOLDER), models, optimizers)
        return folder

    def load_state(
        self,
        input_dir: Any = None,
        load_kwargs: Any = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """
        Reads the state that `save_state` wrote to `input_dir`. The modules may have a
        different plan than when the state was written. Raises DistIRError if
        `input_dir` is None.
        """
        if input_dir is None:
            raise DistIRError(
                "Accelerator: load_state needs the folder that save_state returned; give it"
            )
        with _Apart(self) as (models, optimizers):
            folder = Path(input_dir, _FOLDER)
            load_values(folder, models, "Accelerator")
            load_states(folder, models, optimizers, "Accelerator")
            super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)


class _Apart:
    """
    A context in which `accelerator` has no modules and optimizers, so that Accelerate
    does not write or read them as whole tensors. Entering the context returns the
    modules and the optimizers.
    """

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator
        self._kept = accelerator._models, accelerator._optimizers  # pyright: ignore[reportPrivateUsage]

    def __enter__(self) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        self._accelerator._models, self._accelerator._optimizers = [], []  # pyright: ignore[reportPrivateUsage]
        models, optimizers = self._kept
        return list(models), list(map(plain_optimizer, optimizers))

    def __exit__(self, *error: object) -> None:
        self._accelerator._models, self._accelerator._optimizers = self._kept  # pyright: ignore[reportPrivateUsage]


class _Scheduler(AcceleratedScheduler):
    """A prepared scheduler that makes `parts` steps for each step of the optimizer."""

    parts = 1

    def step(self, *args: Any, **kwargs: Any) -> None:
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            if self.gradient_state.adjust_scheduler:
                self.scheduler._step_count += 1
            return
        for _ in range(self.parts):
            last = getattr(self.scheduler, "total_steps", None)
            if last is None or self.scheduler._step_count <= last:
                self.scheduler.step(*args, **kwargs)


def plain_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """
    Returns PyTorch's own optimizer, unwrapped if `optimizer` has been prepared by
    Accelerate.
    """
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _quotient(total: torch.Tensor, copies: int) -> torch.Tensor:
    return total / copies if total.is_floating_point() else total // copies
