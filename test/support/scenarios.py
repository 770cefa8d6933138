"""
Training scripts that run twice: with modules of PyTorch on one process, and with parallel
modules on several. A test file has the script, and names the plans.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from distir.parallel.parallelize import parallelize
from support.parallel_scripts import own_part, whole
from support.ranks import run_ranks
from support.thoroughness import chosen

SAMPLES, STEPS = 8, 5

Plan = dict[str, Any]

TOLERANCES = {"f64": 1e-9, "f32": 1e-5}
"""The largest relative differences of losses and parameters, by the type of a training."""


@dataclass(frozen=True)
class Training:
    """A training: its type of numbers, and its optimizer."""

    dtype: str = "f64"
    optimizer: str = "SGD"

    def __str__(self) -> str:
        return f"{self.dtype} {self.optimizer}"


EXACT, SINGLE, ADAM = Training(), Training("f32"), Training(optimizer="AdamW")


@dataclass
class Trained:
    """
    The end of a script: `losses` has all numbers that it logged, and `modules` the modules
    that it trained. `tensors` are others, by name, of which each rank has all.
    """

    losses: list[float]
    modules: list[Any]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


@dataclass
class Plain:
    """The operations of a script on one process."""

    training: Training

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floats of a training."""
        return torch.float64 if self.training.dtype == "f64" else torch.float32

    def make(self, module: nn.Module, *args: Any, **options: Any) -> Any:
        """Returns a module as the script uses it; `options` are those of `parallelize`."""
        return module.to(self.dtype)

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a batch that the script computes on."""
        return batch

    def all(self, module: Any, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the whole batch."""
        return rows

    def mean(self, loss: torch.Tensor) -> float:
        """Returns the loss of the whole batch, given that of the rows of `part`."""
        return loss.item()

    def loss(self, module: Any, function: Callable[..., Any], *batch: Any) -> Any:
        """
        Returns the loss of the whole batch (inputs, then labels), by a `function` of output
        and labels that the module was made with (`loss=`).
        """
        *inputs, labels = batch
        return function(module(*inputs), labels)

    def step_outside(self, module: Any, loss: Any, x: Any, target: Any) -> float:
        """Runs forward and backward with a loss of (output, target); returns it."""
        found = loss(module(x), target)
        found.backward()
        return found.item()

    def clip(self, module: Any, norm: float) -> float:
        """Clips the norm of the gradients; returns it as it was before."""
        return float(nn.utils.clip_grad_norm_(module.parameters(), norm))

    def optimizer(self, parameters: Iterable[Any], lr: float = 0.1) -> Any:
        """Returns the optimizer of this training."""
        if self.training.optimizer == "SGD":
            return torch.optim.SGD(parameters, lr=lr)
        return torch.optim.AdamW(parameters, lr=lr / 10, weight_decay=0.1)

    def data(self, seed: int, *sizes: int, rows: int = SAMPLES) -> torch.Tensor:
        """Returns a batch of `rows` rows with normally distributed numbers."""
        generator = torch.Generator().manual_seed(seed)
        found = torch.randn((rows, *sizes), generator=generator, dtype=torch.float64)
        return found.to(self.dtype)


@dataclass
class Parallel(Plain):
    """The operations of the same script on each of several ranks."""

    plan: Plan
    made: list[Any] = field(default_factory=list[Any])

    def make(self, module: nn.Module, *args: Any, **options: Any) -> Any:
        found = parallelize(module.to(self.dtype), args, **self.plan, **options)
        self.made.append(found)
        return found.train()

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        return own_part(self.made[-1], batch)

    def all(self, module: Any, rows: torch.Tensor) -> torch.Tensor:
        return module.whole_batch(rows)

    def mean(self, loss: torch.Tensor) -> float:
        return self.made[-1].mean_of_parts(loss).item()

    def loss(self, module: Any, function: Callable[..., Any], *batch: Any) -> Any:
        return module(*tree_map(self.part, batch))

    def step_outside(self, module: Any, loss: Any, x: Any, target: Any) -> float:
        return module.step(x, target=target, loss=loss).item()

    def clip(self, module: Any, norm: float) -> float:
        return module.clip_grad_norm_(norm).item()


Script = Callable[[Plain], Trained]


def layers(seed: int, *widths: int) -> nn.Sequential:
    """Returns layers of these widths, with an activation between them."""
    torch.manual_seed(seed)
    found: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        found += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*found[:-1])


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of an element, relative to the largest element."""
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return float(difference)


def _apart(module: Any, plain: nn.Module) -> dict[str, float]:
    """How far each parameter, and each buffer of floats, is from its plain one."""
    expected = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: apart(whole(value), expected[name].detach())
        for name, value in own.items()
        if name in expected and value.is_floating_point()
    }


def _script(path: str) -> ModuleType:
    """Returns the test file at `path` as a module."""
    name = f"scenario_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(path: str, name: str, training: Training, plan: Plan) -> dict[str, Any]:
    """Runs a script of a test file on both sides, on this rank; returns what to compare."""
    script: Script = getattr(_script(path), name)
    ours, theirs = script(Parallel(training, plan)), script(Plain(training))
    far: dict[str, float] = {}
    pairs = zip(ours.modules, theirs.modules, strict=True)
    for place, (module, plain) in enumerate(pairs):
        found = _apart(module, plain)
        far |= {f"{place}: {each}": value for each, value in found.items()}
    assert ours.tensors.keys() == theirs.tensors.keys()
    for key, value in ours.tensors.items():
        far[key] = apart(whole(value), theirs.tensors[key])
    return {"losses": (ours.losses, theirs.losses), "apart": far}


def check(path: str, name: str, training: Training, plan: Plan) -> None:
    """Asserts that a script of a test file trains alike on both sides, under a plan."""
    ranks = prod(plan.get(axis, 1) for axis in "rdectp")
    tolerance = TOLERANCES[training.dtype]
    for rank in run_ranks(ranks, run_script, path, name, training, plan):
        found, expected = rank["losses"]
        assert len(set(expected)) > 1, "the script trains nothing"
        assert found == pytest.approx(expected, rel=tolerance), (found, expected)
        far = {name: far for name, far in rank["apart"].items() if far > tolerance}
        assert not far, far


def cases(
    plans: Sequence[Plan],
    trainings: Sequence[Training] = (EXACT, SINGLE, ADAM),
    quick: int = 0,
) -> list[Any]:
    """
    Returns the parameters (training, plan) of a test: each plan with SGD in f64, and the
    other trainings with the first plans. `make test` tries plan number `quick`.
    """
    first, *others = trainings
    every = [(first, plan) for plan in plans]
    every += [(other, plan) for other in others for plan in plans[:2]]
    return chosen(every, [every[quick]])
