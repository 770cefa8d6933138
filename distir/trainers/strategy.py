"""Lightning's strategy for modules that hold parallel modules."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.distributed import (
    _init_dist_connection,  # pyright: ignore[reportPrivateUsage]
)
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies.launchers.subprocess_script import (
    _SubprocessScriptLauncher,  # pyright: ignore[reportPrivateUsage]
)
from lightning.pytorch.strategies.parallel import ParallelStrategy
from torch.utils.data import DataLoader

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.scripts.parts import rows_of_all
from distir.system.output_files import replaced
from distir.trainers.batches import Place, loader_of_part
from distir.trainers.checkpoints import load_states, load_values, save_states

_META, _PARTS = "trainer.pt", "parts"
"""
Names in the folder of a checkpoint: the file with the trainer's state, and the
subfolder of values and optimizer states in parts.
"""

_PRECISIONS = ("32-true", "bf16-mixed")


class DistIRStrategy(ParallelStrategy):
    """
    Trains a module of Lightning that holds a parallel module, made in its `__init__` or
    `configure_model`: `Trainer(strategy=DistIRStrategy(), devices=4)`.

    A parallel module communicates by itself. Loaders give each rank its part of the
    batch: ranks that differ in d get different samples, ranks that differ only in t or
    p the same samples. The batch size of a loader is the size of one part. All ranks
    see the loss of the global batch. Gradients are clipped by their norm over all
    ranks. A checkpoint is a folder, in which each rank writes and reads its own parts;
    it can be read under another plan.

    Precisions are `32-true` and `bf16-mixed`; for any other type, use the option
    `dtype` of `parallelize`. Raises DistIRError for other precisions and for
    `sync_batchnorm=True`.
    """

    strategy_name = "distir"

    def __init__(self) -> None:
        super().__init__()
        self.num_nodes = 1

    # Processes

    @property
    def is_distributed(self) -> bool:
        """
        Whether Lightning should divide the samples: never, because the strategy divides
        them.
        """
        return False

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    def _configure_launcher(self) -> None:
        environment = self.cluster_environment
        assert environment is not None and self.parallel_devices is not None
        if not environment.creates_processes_externally:
            count = len(self.parallel_devices)
            self._launcher = _SubprocessScriptLauncher(
                environment, count, self.num_nodes
            )

    def setup_environment(self) -> None:
        """
        Starts communication with the other processes, unless the script has started it.
        Raises DistIRError if the number of processes differs from `devices` x
        `num_nodes` of the trainer.
        """
        super().setup_environment()
        environment = self.cluster_environment
        assert environment is not None and self.parallel_devices is not None
        count = len(self.parallel_devices)
        environment.set_global_rank(self.node_rank * count + self.local_rank)
        environment.set_world_size(self.num_nodes * count)
        setattr(rank_zero_only, "rank", self.global_rank)  # noqa: B010 (a function)
        if not dist.is_initialized():
            backend = "nccl" if self.root_device.type == "cuda" else "gloo"
            _init_dist_connection(environment, backend)
        if dist.get_world_size() != self.world_size:
            raise DistIRError(
                f"DistIRStrategy: there are {dist.get_world_size()} processes, and devices= and "
                f"num_nodes= of the trainer ask for {self.world_size}; make them equal"
            )

    def setup(self, trainer: Any) -> None:
        """
        Checks the settings of the trainer and makes the optimizers. Raises DistIRError
        for a precision or a setting that parallel modules do not support.
        """
        precision = str(self.precision_plugin.precision)
        if precision not in _PRECISIONS:
            raise DistIRError(
                f"DistIRStrategy: precision={precision!r} converts a module or scales its loss, "
                f"and the programs of a parallel module are compiled already; take "
                f"{' or '.join(map(repr, _PRECISIONS))}, and dtype= of distir.parallelize"
            )
        if self._layer_sync is not None:
            raise DistIRError(
                "DistIRStrategy: sync_batchnorm=True replaces parts of a module, and a parallel "
                "module has its program; leave it out: batch normalisation takes the statistics "
                'of the whole batch (batch_norm="device" of distir.parallelize: of each device)'
            )
        self._place()
        plugin = self.precision_plugin
        assert isinstance(plugin, Precision | MixedPrecision)
        plugin.clip_grad_by_norm = partial(_clip, self._modules()[0], plugin)  # pyright: ignore[reportAttributeAccessIssue]
        super().setup(trainer)

    def model_to_device(self) -> None:
        """
        Moves the parameters and buffers outside the parallel modules to this process's
        device.
        """
        assert self.lightning_module is not None
        self.lightning_module.to(self.root_device)

    def _modules(self) -> list[ParallelModule]:
        assert self.lightning_module is not None
        return [
            m for m in self.lightning_module.modules() if isinstance(m, ParallelModule)
        ]

    def _place(self) -> Place:
        return Place.of(self._modules(), "DistIRStrategy")

    # Data

    def process_dataloader(self, dataloader: object) -> object:
        """
        Returns a loader of this rank's parts of the batches. An object that is not a
        `DataLoader` is returned unchanged.
        """
        if not isinstance(dataloader, DataLoader):
            return dataloader
        return loader_of_part(dataloader, self._place(), "DistIRStrategy")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """
        The number of parts of a batch and the part of this rank, for samplers made by
        scripts.
        """
        place = self._place()
        return {"num_replicas": place.count, "rank": place.rank}

    # Communication

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """
        Returns the tensors of all ranks of `group`, stacked along a new first
        dimension, without gradients.
        """
        every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, tensor.detach().contiguous(), group=group)
        return torch.stack(every)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """
        Returns the mean, sum, maximum or minimum of `tensor` over the parts of the
        batch. A value that is not a tensor is returned unchanged. Raises DistIRError
        for any other `reduce_op`.
        """
        if not isinstance(tensor, torch.Tensor):
            return tensor
        place = self._place()
        every = rows_of_all(tensor[None], place.rank, place.count)
        name = str(getattr(reduce_op, "name", reduce_op)).rpartition(".")[2].lower()
        kinds = {
            "mean": "mean",
            "avg": "mean",
            "sum": "sum",
            "max": "amax",
            "min": "amin",
        }
        if name not in kinds:
            raise DistIRError(
                f"DistIRStrategy: there is no reduction {reduce_op!r}; take one of "
                f"{', '.join(kinds)}"
            )
        if name in ("mean", "avg") and not every.is_floating_point():
            every = every.float()
        return getattr(every, kinds[name])(0)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether `decision` is true on all ranks, or on any rank if `all` is false."""
        own = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(own, dist.ReduceOp.MIN if all else dist.ReduceOp.MAX)
        return bool(own)

    def barrier(self, name: str | None = None) -> None:
        """Waits until all ranks have called this method."""
        if dist.is_initialized():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Returns the object `obj` of rank `src`, on every rank."""
        values = [obj]
        if dist.is_initialized():
            dist.broadcast_object_list(values, src)
        return values[0]

    # Checkpoints

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """
        Whether a checkpoint is read after the setup: always, because modules and
        optimizers must exist before their values are read.
        """
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        """
        Whether Lightning restores the states of optimizers: never, because the strategy
        restores them.
        """
        return False

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns an empty dictionary: `save_checkpoint` writes the values in parts."""
        return {}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns an empty dictionary: `save_checkpoint` writes the states in parts."""
        return {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """
        Writes `checkpoint` to the folder `filepath`, with the values and the states of
        optimizers in parts. Every rank must call this method. Raises DistIRError for
        `storage_options`.
        """
        if storage_options is not None:
            raise DistIRError(
                "DistIRStrategy: storage_options are for checkpoints that are one file; leave "
                "them out"
            )
        assert self.lightning_module is not None
        folder = Path(self.broadcast(filepath))
        folder.mkdir(parents=True, exist_ok=True)
        keeps_states = "optimizer_states" in checkpoint
        optimizers = list(self.optimizers) if keeps_states else []
        save_states(folder / _PARTS, [self.lightning_module], optimizers)
        if self.is_global_zero:
            with replaced(folder / _META) as partial_path:
                torch.save(checkpoint, partial_path)
        self.barrier()

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """
        Reads a checkpoint of `save_checkpoint`, which may have been written under
        another plan. Returns Lightning's part of the checkpoint.
        """
        assert self.lightning_module is not None
        folder = Path(self.broadcast(checkpoint_path))
        load_values(folder / _PARTS, [self.lightning_module], "DistIRStrategy")
        checkpoint: dict[str, Any] = torch.load(
            folder / _META, map_location="cpu", weights_only=weights_only is not False
        )
        if self.optimizers and "optimizer_states" in checkpoint:
            load_states(
                folder / _PARTS,
                [self.lightning_module],
                list(self.optimizers),
                "DistIRStrategy",
            )
        return checkpoint

    def load_model_state_dict(
        self, checkpoint: Mapping[str, Any], strict: bool = True
    ) -> None:
        """Does nothing: `load_checkpoint` has read the values."""

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Does nothing: `load_checkpoint` has read the states."""

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes a folder that `save_checkpoint` wrote, on rank 0 only."""
        if self.is_global_zero:
            shutil.rmtree(filepath, ignore_errors=True)

    def teardown(self) -> None:
        """Frees the resources of the trainer. Modules stay on their devices."""
        assert self.cluster_environment is not None and self.accelerator is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()


def _clip(
    module: ParallelModule,
    plugin: Precision,
    optimizer: torch.optim.Optimizer,
    clip_val: float,
) -> None:
    """Clips the gradients of an optimizer's parameters by their norm over all ranks."""
    parameters = list(plugin.main_params(optimizer))
    module.clip_grad_norm_(clip_val, parameters=parameters)
