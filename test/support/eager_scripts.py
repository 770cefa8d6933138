"""Trains models by files that `distir export --to dtensor` wrote."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import distir
from support.parallel_families import FAMILIES, Family
from support.parallel_scripts import own_part

Losses = list[float]


def made(name: str) -> Family:
    """Returns the model of a family with the same values in every process."""
    torch.manual_seed(0)
    return FAMILIES[name]()


def imported(path: Path) -> Any:
    """Returns a Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _steps(
    parameters: Iterable[nn.Parameter], loss: Callable[[], float], steps: int
) -> Losses:
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4, foreach=False)
    found: Losses = []
    for _ in range(steps):
        found.append(loss())
        optimizer.step()
        optimizer.zero_grad()
    return found


def plain_losses(name: str, steps: int) -> Losses:
    """Returns the losses of a training with PyTorch alone on the whole batch."""
    family = made(name)
    module = family.module.train()

    def loss() -> float:
        value = family.plain_loss(module(**family.inputs), family.labels)
        value.backward()
        return value.item()

    return _steps(module.parameters(), loss, steps)


def own_losses(name: str, steps: int, options: dict[str, Any]) -> Losses:
    """Returns the losses of the same training by `distir.parallelize`."""
    family = made(name)
    parallel = distir.parallelize(
        family.module, (), family.inputs, loss=family.loss, **options
    ).train()
    inputs = {n: own_part(parallel, v) for n, v in family.inputs.items()}
    labels = own_part(parallel, family.labels)

    def loss() -> float:
        value = parallel(labels, **inputs)
        value.backward()
        return value.item()

    return _steps(parallel.parameters(), loss, steps)


def _part(mesh: DeviceMesh, tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a batch."""
    if "d" not in (mesh.mesh_dim_names or ()):
        return tensor
    return tensor.chunk(mesh["d"].size())[mesh["d"].get_local_rank()]


def _mean(mesh: DeviceMesh, value: torch.Tensor) -> float:
    """Returns the mean of a loss over the parts of a batch."""
    if "d" in (mesh.mesh_dim_names or ()):
        dist.all_reduce(value, group=mesh["d"].get_group())
        value = value / mesh["d"].size()
    return value.item()


def eager_losses(name: str, path: Path, steps: int) -> tuple[Losses, int]:
    """
    Returns the losses of the same training by a written file, and the number of elements
    of parameters on this rank.
    """
    family, written = made(name), imported(path)
    mesh = written.make_mesh("cpu")
    module = written.parallelize(family.module.train(), mesh)
    inputs = {n: _part(mesh, v) for n, v in family.inputs.items()}
    labels = _part(mesh, family.labels)

    def loss() -> float:
        value = family.plain_loss(module(**inputs), labels)
        value.backward()
        return _mean(mesh, value.detach())

    return _steps(module.parameters(), loss, steps), _held([module])


def pipelined_losses(name: str, path: Path, steps: int) -> tuple[Losses, int]:
    """Returns the same of a file with a pipeline; ranks of other stages get no losses."""
    family, written = made(name), imported(path)
    mesh = written.make_mesh("cpu")
    modules, schedule = written.pipeline(family.module.train(), mesh, family.plain_loss)
    inputs = {n: _part(mesh, v) for n, v in family.inputs.items()}
    labels = _part(mesh, family.labels)

    def loss() -> float:
        losses: list[torch.Tensor] = []
        schedule.step(target=labels, losses=losses, **inputs)
        return _mean(mesh, torch.stack(losses).mean().detach()) if losses else 0.0

    parameters = [p for module in modules for p in module.parameters()]
    return _steps(parameters, loss, steps), _held(modules)


def _held(modules: Iterable[nn.Module]) -> int:
    """Returns the number of elements of parameters that this rank has."""
    return sum(
        getattr(p, "to_local", lambda p=p: p)().numel()
        for module in modules
        for p in module.parameters()
    )


def compared(
    name: str, path: Path, steps: int, options: dict[str, Any], is_own: bool
) -> tuple[Losses, Losses, Losses, int]:
    """
    Returns the losses by a file, by PyTorch, by `parallelize` if asked for, and the elements
    held.
    """
    run = pipelined_losses if options.get("p", 1) > 1 else eager_losses
    found, held = run(name, path, steps)
    own = own_losses(name, steps, options) if is_own else list[float]()
    return found, plain_losses(name, steps), own, held
