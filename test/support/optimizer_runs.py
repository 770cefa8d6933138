"""Every optimizer of `torch.optim` on a small parallel module, beside PyTorch's own result."""

from __future__ import annotations

import copy
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from distir.parallel.parallelize import parallelize
from distir.parallel.scripts import fused_updates
from distir.parallel.scripts.optimizers import ALLOWED
from support.parallel_scripts import Options, own_part, whole
from support.parallel_shapes import message_of

LR, STEPS = 0.01, 3

WORKING: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{}, dict(foreach=True)],
    "Adagrad": [{}, dict(foreach=True)],
    "Adam": [{}, dict(foreach=True), dict(fused=True), dict(amsgrad=True)],
    "AdamW": [{}, dict(foreach=True), dict(fused=True)],
    "Adamax": [{}, dict(foreach=True)],
    "ASGD": [{}, dict(foreach=True)],
    "LBFGS": [{}],
    "Muon": [{}],
    "NAdam": [{}, dict(foreach=True)],
    "RAdam": [{}, dict(foreach=True)],
    "RMSprop": [{}, dict(foreach=True), dict(centered=True, momentum=0.9)],
    "SGD": [{}, dict(foreach=True), dict(momentum=0.9, nesterov=True)],
}
"""The optimizers that work, with the settings that are tried."""

REFUSED: dict[str, list[dict[str, Any]]] = {
    "Adafactor": [{}],
    "Adagrad": [dict(fused=True)],
    "Rprop": [{}, dict(foreach=True)],
    "SGD": [dict(fused=True)],
    "SparseAdam": [{}],
}
"""Those that do not."""


class Layers(nn.Module):
    """Layers of matrices, biases and scales, in f64; returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = self.scale * self.second(torch.tanh(self.first(x)))
        return (made - y).square().mean()


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 8, 8, dtype=torch.float64, generator=generator)
    return x, y


def _trained(name: str, given: dict[str, Any], module: nn.Module, batch: Any) -> None:
    """Makes steps; Muon takes matrices alone."""
    parameters = [p for p in module.parameters() if name != "Muon" or p.ndim == 2]
    optimizer = getattr(torch.optim, name)(parameters, lr=LR, **given)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def differences(options: Options, names: Collection[str]) -> dict[str, float]:
    """
    The largest difference of a parameter from PyTorch's after some steps, for each of these
    optimizers and its settings.
    """
    batch = _batch()
    made = parallelize(Layers(), batch, **options).train()
    own = [own_part(made, each) for each in batch]
    found: dict[str, float] = {}
    for name in names:
        for given in WORKING[name]:
            parallel, plain = copy.deepcopy(made), Layers()
            _trained(name, given, parallel, own)
            _trained(name, given, plain, batch)
            found[f"{name} {given}"] = max(
                float((whole(p) - plain.get_parameter(n)).detach().abs().max())
                for n, p in parallel.named_parameters()
            )
    return found


def fused_runs(options: Options) -> dict[str, tuple[list[bool], float]]:
    """
    Makes steps of fused AdamW on a parallel module, with gradients in the layout of
    parameters and with whole gradients, and on DTensors of the script. Returns whether
    each step worked on local parts, and the largest difference from PyTorch's result.
    """
    alike, paths = fused_updates.are_alike, list[bool]()

    def noted(lists: Any) -> bool:
        paths.append(alike(lists))
        return paths[-1]

    fused_updates.are_alike = noted
    batch = _batch()
    made = parallelize(Layers(), batch, **options).train()
    own = [own_part(made, each) for each in batch]
    first = next(made.parameters())
    assert isinstance(first, DTensor)
    mesh = first.device_mesh
    others = Layers()
    for part in (others.first, others.second, others):
        for name, parameter in list(part.named_parameters(recurse=False)):
            split = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            part.register_parameter(name, nn.Parameter(split))
    found: dict[str, tuple[list[bool], float]] = {}
    for kind in ("own", "whole gradients", "others"):
        module: nn.Module = others
        if kind != "others":
            module = parallelize(Layers(), batch, **options).train()
        plain = Layers()
        pairs = [(module, own), (plain, batch)]
        kept = [torch.optim.AdamW(m.parameters(), LR, fused=True) for m, _ in pairs]
        paths.clear()
        for _ in range(STEPS):
            if kind != "others":
                module(*own).backward()
            plain(*batch).backward()
            for name, parameter in module.named_parameters():
                gradient = plain.get_parameter(name).grad
                if kind == "whole gradients":
                    assert isinstance(parameter.grad, DTensor)
                    parameter.grad = parameter.grad.redistribute(mesh, [Replicate()])
                elif kind == "others":
                    assert gradient is not None
                    parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)])
            for optimizer in kept:
                optimizer.step()
                optimizer.zero_grad()
        far = max(
            float((whole(p) - plain.get_parameter(n)).detach().abs().max())
            for n, p in module.named_parameters()
        )
        found[kind] = list(paths), far
    return found


class Stranger(torch.optim.SGD):
    """An optimizer that no test knows, as it has a step of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


class Renamed(torch.optim.SGD):
    """An optimizer with the step of one that works."""


def _of_strangers(parallel: nn.Module, own: Any) -> dict[str, tuple[str, float]]:
    """
    Returns the message for an unknown optimizer, which is refused when it is made. One
    that says that it works, and one with a known step, are not refused.
    """
    parameters = list(parallel.parameters())
    message = message_of(lambda: Stranger(parameters, lr=0.0))
    Renamed(parameters, lr=0.0)
    setattr(Stranger, ALLOWED, True)
    parallel(*own).backward()
    Stranger(parameters, lr=0.0).step()
    delattr(Stranger, ALLOWED)
    return {f"{Stranger.__module__}.Stranger": (message, 0.0)}


def refusals(options: Options) -> dict[str, tuple[str, float]]:
    """The message for each optimizer that is refused, and the change of a parameter."""
    batch = _batch()
    parallel = parallelize(Layers(), batch, **options).train()
    own = [own_part(parallel, each) for each in batch]
    before = {n: whole(p).clone() for n, p in parallel.named_parameters()}
    cases = dict(REFUSED)
    if options.get("p", 1) > 1:
        cases = {"LBFGS": [{}]}
    found: dict[str, tuple[str, float]] = {}
    for name, settings in cases.items():
        for given in settings:
            kind = getattr(torch.optim, name)
            make = partial(kind, parallel.parameters(), lr=LR, **given)
            message = message_of(make)
            changed = max(
                float((whole(p) - before[n]).abs().max())
                for n, p in parallel.named_parameters()
            )
            found[f"{name} {given}"] = message, changed
    found |= _of_strangers(parallel, own)
    theirs = Layers()
    for name in ("Adafactor", "Rprop"):  # of other modules they are not refused
        _trained(name, {}, theirs, batch)
    return found
