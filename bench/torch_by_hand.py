"""What an expert writes in PyTorch: the opponents of `bench/against_torch.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch_models import Benched

LEARNING_RATE = 1e-4
"""
Small enough that rounding stays rounding: with 1e-3 the ResNet crosses thresholds of its
ReLUs from step to step, AdamW brings gradients of less than 1e-8 to the size of all others,
and after 8 steps this side is 2 % beside itself in float64 (the package 2e-6).
"""

MICRO_BATCHES = 4

Step = Callable[[], torch.Tensor | None]
"""
Runs a step and returns its loss (for a forward, the mean of what it computes), if this rank
has one.
"""


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy of a batch."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten())


def adamw(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """
    Returns fused AdamW optimizers, one for DTensors and one for tensors, which it does not
    mix.
    """
    from torch.distributed.tensor import DTensor

    kinds = [
        [p for p in parameters if isinstance(p, DTensor)],
        [p for p in parameters if not isinstance(p, DTensor)],
    ]
    return [
        torch.optim.AdamW(kind, lr=LEARNING_RATE, weight_decay=0.01, fused=True)
        for kind in kinds
        if kind
    ]


def _local(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def forward(benched: Benched) -> Step:
    """Returns inference on one process."""
    module = benched.module()
    given, _ = benched.inputs_and_labels(1)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return module(given)

    return step


def _training(
    module: nn.Module, given: torch.Tensor, labels: torch.Tensor
) -> tuple[Step, list[torch.optim.Optimizer]]:
    optimizers = adamw(list(module.parameters()))

    def step() -> torch.Tensor:
        loss = loss_of(module(given), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, optimizers


def training(benched: Benched) -> Step:
    """Returns a training step on one process."""
    return _training(benched.module(), *benched.inputs_and_labels(1))[0]


def compiled(benched: Benched) -> Step:
    """A training step on one process, with the module through `torch.compile`."""
    given, labels = benched.inputs_and_labels(1)
    module: Any = torch.compile(benched.module(), dynamic=False)
    return _training(module, given, labels)[0]


def data_parallel(benched: Benched) -> Step:
    """Returns a step with DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    given, labels = benched.inputs_and_labels(2)
    module = DistributedDataParallel(
        benched.module(), broadcast_buffers=False, gradient_as_bucket_view=True
    )
    return _training(module, _local(given), _local(labels))[0]


def fully_sharded(benched: Benched) -> Step:
    """Returns a step with FSDP2, one layer at a time."""
    from torch.distributed.fsdp import fully_shard

    given, labels = benched.inputs_and_labels(2)
    module: Any = benched.module()
    for block in benched.blocks(module):
        fully_shard(block)
    fully_shard(module)
    return _training(module, _local(given), _local(labels))[0]


def tensor_parallel(benched: Benched) -> Step:
    """Returns a step with `parallelize_module`; both processes have the whole batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    assert benched.split is not None
    given, labels = benched.inputs_and_labels(1)
    module = benched.module()
    mesh = init_device_mesh(torch.get_default_device().type, (2,))
    parallelize_module(module, mesh, benched.split(module))
    return _training(module, given, labels)[0]


def pipelined(benched: Benched) -> Step:
    """
    Returns a step with `torch.distributed.pipelining` and 1F1B; tied gradients are added at
    the end.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    assert benched.cut is not None
    given, labels = benched.inputs_and_labels(1)
    whole, rank = benched.module(), dist.get_rank()
    tied = benched.tied(whole)
    module = benched.cut(whole, rank)
    stage = PipelineStage(module, rank, 2, torch.get_default_device())
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizers = adamw(list(module.parameters()))

    def step() -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(given)
        else:
            schedule.step(target=labels, losses=losses)
        for parameter in tied:
            dist.all_reduce(parameter.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if losses else None

    return step


BY_HAND: dict[str, Callable[[Benched], Step]] = {
    "forward": forward,
    "step": training,
    "step, both compiled": compiled,
    "-d 2": data_parallel,
    "-d 2 --overlap": data_parallel,
    "-d 2 --zero 3 --overlap": fully_sharded,
    "-t 2": tensor_parallel,
    "-p 2 -k 4": pipelined,
}
"""The steps by row of the table."""
