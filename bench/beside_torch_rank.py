"""Runs on each rank of `bench/beside_torch.py`."""

from __future__ import annotations

import argparse
import json
import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from beside_torch_models import LENGTH, WORDS, built, changes
from torch.nn.functional import cross_entropy

BLOCKS = 7
SIDES = ("torch", "distir")
BATCH = 2
"""The samples of a rank."""

COMPARED = 3
"""
The number of first steps whose losses are compared with plain PyTorch's. Later, differences
in rounding have grown.
"""


@dataclass
class Training:
    """A model, its optimizers, and a step, which returns the loss of this rank."""

    model: Any
    optimizers: list[Any]
    step: Callable[[], torch.Tensor]


def batch(samples: int) -> list[torch.Tensor]:
    """Returns words and labels, [samples, length] each."""
    generator = torch.Generator().manual_seed(1)
    shape = samples, LENGTH
    return [torch.randint(WORDS, shape, generator=generator) for _ in range(2)]


def training(kind: str, wrapper: str, side: str, check: str) -> Training:
    """Returns the training of a model that one side has wrapped."""
    n, rank = dist.get_world_size(), dist.get_rank()
    model, layers = built(kind)
    splits_batch = wrapper != "parallelize_module"
    words, labels = batch(BATCH * n if splits_batch else BATCH)
    names: dict[str, Any] = dict(model=model, layers=layers, words=words, n=n)
    names |= distir_names(check) if side == "distir" else torch_names(wrapper)
    lines = changes(wrapper, kind)[SIDES.index(side)].splitlines()
    exec("\n".join(li for li in lines if not li.startswith(("sampler", "loss"))), names)
    if splits_batch:
        words, labels = words.chunk(n)[rank], labels.chunk(n)[rank]
    has_loss = side == "distir" and not splits_batch
    return training_of(names["model"], words, labels, has_loss)


def training_of(
    model: Any, words: torch.Tensor, labels: torch.Tensor, has_loss: bool
) -> Training:
    """
    Returns the training of a model on a batch. `has_loss`: the model takes the labels and
    returns the loss.
    """
    optimizers = optimizers_of(list(model.parameters()))

    def step() -> torch.Tensor:
        if has_loss:
            loss = model(words, labels)
        else:
            output = model(words)
            logits = getattr(output, "logits", output)
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
            del output, logits
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        return loss.detach()

    return Training(model, optimizers, step)


def distir_names(check: str) -> dict[str, Any]:
    """Returns the names that our lines use."""
    import distir

    def parallelize(*args: Any, **options: Any) -> Any:
        return distir.parallelize(*args, check=check, **options)

    return {"distir": argparse.Namespace(parallelize=parallelize)}


def torch_names(wrapper: str) -> dict[str, Any]:
    """Returns the names that PyTorch's lines use."""
    if wrapper == "DDP":
        return {"DistributedDataParallel": torch.nn.parallel.DistributedDataParallel}
    if wrapper == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        return {"fully_shard": fully_shard}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    found = (ColwiseParallel, RowwiseParallel, Replicate)
    functions = (init_device_mesh, parallelize_module)
    return {each.__name__: each for each in (*found, *functions)}


def optimizers_of(parameters: list[Any]) -> list[Any]:
    """Returns fused AdamW, one for DTensors and one for tensors, which it does not mix."""
    from torch.distributed.tensor import DTensor

    kinds = [
        [p for p in parameters if isinstance(p, DTensor) is of_parts]
        for of_parts in (True, False)
    ]
    return [torch.optim.AdamW(each, lr=1e-4, fused=True) for each in kinds if each]


def peak_of(given: Training) -> int:
    """
    Returns the largest number of bytes of live storages in a step. They are added up after
    each operator, as FSDP2 changes the size of its storages.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(values: Any) -> int:
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                known.add(getattr(leaf, "_local_tensor", leaf).untyped_storage())
        return sum(storage.nbytes() for storage in known)

    class Peak(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.most = max(self.most, note((args, result)))
            return result

    note([*given.model.parameters(), *given.model.buffers()])
    states = [each.state.values() for each in given.optimizers]
    note([list(state.values()) for own in states for state in own])
    with Peak() as peak:
        given.step()
    return peak.most


def plain_losses(kind: str, wrapper: str) -> list[float]:
    """Returns the losses of the first steps of the whole batch with PyTorch alone."""
    samples = BATCH * (dist.get_world_size() if wrapper != "parallelize_module" else 1)
    given = training_of(built(kind)[0], *batch(samples), has_loss=False)
    return [float(given.step()) for _ in range(COMPARED)]


def run_steps(kind: str, wrapper: str, steps: int) -> dict[str, Any]:
    """
    Times the two sides in turns. `seconds` and `cpu` are those of a step in each block, by
    side. `losses` are those of the first steps, also with plain PyTorch.
    """
    sides = {side: training(kind, wrapper, side, "off") for side in SIDES}
    losses: dict[str, list[float]] = {"plain": plain_losses(kind, wrapper)}
    for side, each in sides.items():  # which also warms up
        losses[side] = [float(each.step()) for _ in range(max(COMPARED, steps))]
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    for block in range(BLOCKS):
        for side in SIDES if block % 2 else reversed(SIDES):
            dist.barrier()
            wall, own = time.perf_counter(), time.process_time()
            for _ in range(steps):
                sides[side].step()
            cpu[side].append((time.process_time() - own) / steps)
            dist.barrier()
            seconds[side].append((time.perf_counter() - wall) / steps)
    peaks = {side: peak_of(each) for side, each in sides.items()}
    return dict(seconds=seconds, cpu=cpu, losses=losses, peaks=peaks)


def run_start(kind: str, wrapper: str, side: str, check: str) -> dict[str, Any]:
    """Runs the first step. `cpu` is what this process has taken until then."""
    training(kind, wrapper, side, check).step()
    return {"cpu": time.process_time()}


def main() -> None:
    """Rank 0 prints what all ranks found as a line of JSON."""
    parser = argparse.ArgumentParser()
    for name in ("kind", "wrapper"):
        parser.add_argument(name)
    parser.add_argument("--side", choices=SIDES, help="whose first step is timed")
    parser.add_argument("--check", default="off")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if given.side:
        found = run_start(given.kind, given.wrapper, given.side, given.check)
    else:
        found = run_steps(given.kind, given.wrapper, given.steps)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print("FOUND", json.dumps(every), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
