"""What training scripts do with parallel modules, which tests run on several ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import inf
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from support.parallel_options import Towers
from support.parallel_scripts import Options, batch, own_part, tiny_gpt, whole


class Unread(nn.Module):
    """Towers with a parameter that no op reads."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = Towers()
        self.unread = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns four numbers for each row."""
        return self.towers(x)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and labels of `Towers`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 8, generator=generator), torch.randn(
        8, 4, generator=generator
    )


def wholes(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns copies of all of each parameter of a module by name."""
    return {n: whole(p).clone() for n, p in module.named_parameters()}


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Returns the largest difference of an element of tensors of the same names."""
    return max((value - expected[n]).abs().max().item() for n, value in found.items())


def averaged_run(options: Options) -> dict[str, Any]:
    """
    Trains for three steps with an exponential moving average of the parameters, in parallel
    and with plain PyTorch. Returns the differences of the averages, of the outputs of the
    averaged modules and of the trained parameters, and the classes of the parameters.
    """
    x, y = rows()
    plain = Unread()
    parallel = parallelize(Unread(), (x,), loss="mse", **options)
    both: list[tuple[nn.Module, AveragedModel]] = []
    for module in (parallel, plain):
        module.train()
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(3):
            if isinstance(module, ParallelModule):
                module.step(own_part(module, x), own_part(module, y))
            else:
                F.mse_loss(module(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(module)
        both.append((module, average.eval()))
    (_, ours), (_, theirs) = both
    with torch.no_grad():
        output = ours(own_part(parallel, x)) - own_part(parallel, theirs(x))
    return {
        "averages": worst(wholes(ours.module), wholes(theirs.module)),
        "apart": worst(wholes(ours.module), wholes(parallel)),
        "trained": worst(wholes(parallel), wholes(plain)),
        "output": output.abs().max().item(),
        "classes": {type(p).__name__ for p in parallel.parameters()},
        "split": sum(
            p.to_local().numel() < p.numel()
            for p in ours.parameters()
            if isinstance(p, DTensor)
        ),
    }


def copied_run(options: Options) -> dict[str, Any]:
    """
    Trains a deep copy. Returns the difference of its loss after that from plain PyTorch's,
    and how much the module that was copied has changed.
    """
    x, y = rows()
    parallel = parallelize(Towers(), (x,), loss="mse", **options).train()
    before = wholes(parallel)
    twin, plain = copy.deepcopy(parallel), Towers()
    given = own_part(parallel, x), own_part(parallel, y)
    ours = torch.optim.SGD(twin.parameters(), lr=0.5)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.5)
    found: list[float] = []
    expected: list[float] = []
    for _ in range(2):
        found.append(twin.step(*given).item())
        (loss := F.mse_loss(plain(x), y)).backward()
        expected.append(loss.item())
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    return {
        "found": found,
        "expected": expected,
        "parameters": worst(wholes(twin), wholes(plain)),
        "changed": worst(wholes(parallel), before),
    }


class WithLoss(nn.Module):
    """A layer that returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the mean squared error."""
        return F.mse_loss(self.layer(x), y)


def own_loss_run(options: Options) -> dict[str, float]:
    """
    Returns the loss of a module that returns it itself, in training and in evaluation mode
    and as plain PyTorch gives it, and the largest difference of a gradient's element.
    """
    x, y = torch.arange(32.0).view(8, 4) / 32, torch.ones(8, 2)
    plain = WithLoss()
    parallel = parallelize(WithLoss(), (x, y), **options).train()
    own = [own_part(parallel, tensor) for tensor in (x, y)]
    (loss := parallel(*own)).backward()
    (expected := plain(x, y)).backward()
    gradients = {n: whole(p.grad) for n, p in parallel.named_parameters()}  # type: ignore[arg-type]
    wanted = {n: whole(p.grad) for n, p in plain.named_parameters()}  # type: ignore[arg-type]
    return {
        "loss": loss.item(),
        "evaluated": whole(parallel.eval()(*own)).item(),
        "expected": expected.item(),
        "gradients": worst(gradients, wanted),
    }


def clipped_run(options: Options) -> dict[str, float]:
    """
    Returns the norm of the gradients of GPT-2 by our function, by PyTorch's, which clips
    them to 0.1, and after that.
    """
    words, _ = batch(0)
    parallel = parallelize(
        tiny_gpt(layers=1), (words,), loss="cross_entropy", **options
    ).train()
    parallel.step(*(own_part(parallel, part) for part in batch(0)))
    ours = parallel.clip_grad_norm_(1e9).item()
    others: dict[str, float] = {}
    for order in (1.0, 3.0, inf):
        others[f"ours {order}"] = parallel.clip_grad_norm_(1e9, order).item()
        found = nn.utils.get_total_norm([p.grad for p in parallel.parameters()], order)
        others[f"theirs {order}"] = whole(found).item()
    theirs = whole(nn.utils.clip_grad_norm_(parallel.parameters(), 0.1)).item()
    return {
        "ours": ours,
        "theirs": theirs,
        "clipped": parallel.clip_grad_norm_(1e9).item(),
        **others,
    }


def seeded_run(seed: int) -> dict[str, list[Any]]:
    """
    Returns the first values of the parameters of a module on the meta device, one of which
    no op reads.
    """
    with torch.device("meta"):
        module = Unread()
    x, _ = rows()
    parallel = parallelize(module, (x,), loss="mse", d=2, seed=seed)
    return {name: value.tolist() for name, value in wholes(parallel).items()}


def unlaunched_run() -> tuple[float, float]:
    """
    Returns the loss of a module in a process that no launcher started, and plain PyTorch's.
    """
    dist.destroy_process_group()
    x, y = rows()
    parallel = parallelize(Towers(), (x,), loss="mse").train()
    return parallel(x, y).item(), F.mse_loss(Towers()(x), y).item()


def orders() -> list[list[int]]:
    """
    Returns the samples of a dataset on the only rank: with two seeds, and not shuffled.
    """
    parallel = parallelize(nn.Linear(4, 4), (torch.ones(8, 4),), loss="mse")
    dataset: Any = range(12)
    given: list[Options] = [dict(seed=0), dict(seed=1), dict(shuffle=False)]
    return [list(parallel.sampler(dataset, **options)) for options in given]


def optimizer_run(options: Options, name: str, given: Options) -> dict[str, Any]:
    """
    Trains with the optimizer of PyTorch that has that name and a scheduler of its learning
    rate, in parallel and with plain PyTorch.
    """
    x, y = rows()
    plain = Towers()
    parallel = parallelize(Towers(), (x,), loss="mse", **options).train()
    own = own_part(parallel, x), own_part(parallel, y)

    def trained(module: nn.Module, loss: Callable[[], torch.Tensor]) -> list[float]:
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=1e-2, **given)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        found: list[float] = []
        for _ in range(3):
            (value := loss()).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            found.append(value.item())
        return found

    return {
        "found": trained(parallel, lambda: parallel(*own)),
        "expected": trained(plain, lambda: F.mse_loss(plain(x), y)),
        "parameters": worst(wholes(parallel), wholes(plain)),
        "split": any(
            p.to_local().numel() < p.numel()
            for p in parallel.parameters()
            if isinstance(p, DTensor)
        ),
    }


class Settled(nn.Module):
    """Layers of which two are different in evaluation, with an argument that has a default."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return self.last(self.dropout(self.norm(self.first(x)))) * factor


def settled_run(options: Options) -> dict[str, float]:
    """
    Returns the loss of a model in training mode with a norm and a dropout in evaluation
    mode, without and with an argument that is its default, PyTorch's, and how much the norm's
    statistics changed.
    """
    x, y = rows()
    model = Settled()
    model.norm.eval()
    model.dropout.eval()
    expected = F.mse_loss(model(x), y).item()
    parallel = parallelize(model, (x,), loss="mse", **options)
    own = [own_part(parallel, tensor) for tensor in (x, y)]
    parallel(*own).backward()
    mean = parallel.get_buffer("norm.running_mean")
    return {
        "expected": expected,
        "loss": parallel(*own).item(),
        "spelled out": parallel(own[0], 2.0, own[1]).item(),
        "named": parallel(*own, factor=2.0).item(),
        "changed": mean.abs().max().item(),
    }


class Rotated(nn.Module):
    """A layer whose results are turned by a complex buffer, as Meta's LLaMA has it."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        turns = torch.polar(torch.ones(5, 4), torch.rand(5, 4))
        self.register_buffer("turns", turns, persistent=kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns numbers of the shape of `x` [samples, words, features]."""
        pairs = self.layers(x).unflatten(-1, (-1, 2))
        turned = torch.view_as_complex(pairs) * self.get_buffer("turns")[None]
        return torch.view_as_real(turned).flatten(2)


def complex_run(options: Options) -> dict[str, Any]:
    """
    Returns the losses of two steps of a module with a complex buffer, which is replaced before
    the second, and plain PyTorch's, with the types of the buffers.
    """
    x, y = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(1)).unbind()
    plain = Rotated(kept=True)
    parallel = parallelize(Rotated(kept=True), (x,), loss="mse", **options).train()
    found: list[float] = []
    expected: list[float] = []
    for _ in range(2):
        parts = (own_part(parallel, part) for part in (x, y))
        found.append(parallel.step(*parts).item())
        expected.append(F.mse_loss(plain(x), y).item())
        state = {"turns": plain.get_buffer("turns") * 1j}
        plain.load_state_dict(state, strict=False)
        parallel.load_state_dict(state, strict=False)
    kept = whole(parallel.state_dict()["turns"])
    apart = (kept - plain.get_buffer("turns")).abs().max().item()
    return {"found": found, "expected": expected, "apart": apart, "type": kept.dtype}


def wide_run(options: Options) -> dict[str, Any]:
    """Returns the norm of gradients of f64 by our function, and plain PyTorch's."""
    x, y = (part.double() for part in rows())
    plain = Towers().double()
    parallel = parallelize(Towers().double(), (x,), loss="mse", **options).train()
    parallel.step(own_part(parallel, x), own_part(parallel, y))
    F.mse_loss(plain(x), y).backward()
    expected = nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item()
    largest = parallel.clip_grad_norm_(1e9, inf)
    norm = parallel.clip_grad_norm_(1e9)
    return {
        "norm": norm.item(),
        "expected": expected,
        "types": {norm.dtype, largest.dtype},
    }
