"""
Trainings whose losses the script computes from outputs, once with modules of PyTorch and once
with parallel modules, which tests run on several ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from distir.parallel.training.overflow import spread_overflow
from support.parallel_scripts import Options, own_part, whole

SAMPLES, WIDTH, CLASSES, STEPS = 8, 8, 4, 5


def data(seed: int, *sizes: int) -> torch.Tensor:
    """Returns the rows of a whole batch."""
    generator = torch.Generator().manual_seed(seed)
    shape = (SAMPLES, *(sizes or (WIDTH,)))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def layers(seed: int, *widths: int) -> nn.Sequential:
    """Returns layers of these widths, with an activation between them."""
    torch.manual_seed(seed)
    found: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        found += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*found[:-1]).double()


def sgd(module: Any) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def apart(module: Any, plain: nn.Module) -> float:
    """The largest difference of a parameter, relative to its largest element."""
    found = 0.0
    for name, parameter in module.named_parameters():
        expected = plain.get_parameter(name).detach()
        difference = (whole(parameter) - expected).abs().max() / expected.abs().max()
        found = max(found, float(difference))
    return found


class Penalised(nn.Module):
    """A module whose second output is a number of the whole batch."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.scale, x.square().mean() * self.scale

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))


class Normalised(nn.Module):
    """A module with running statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers(0, WIDTH, WIDTH), layers(1, WIDTH, WIDTH)
        self.norm, self.drop = nn.BatchNorm1d(WIDTH).double(), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def told(call: Callable[[], Any]) -> str:
    """The message of the error that a call raises."""
    try:
        call()
    except (DistIRError, RuntimeError) as error:
        return str(error)
    return "no error"


def interrupted(options: Options) -> dict[str, Any]:
    """Returns what calls do that are not one forward and one backward."""
    x = data(0)
    found: dict[str, Any] = {}
    module = parallelize(layers(0, WIDTH, 16, WIDTH), (x,), **options).train()
    own = own_part(module, x)

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        module.zero_grad()
        loss.backward()
        return [whole(p.grad) for p in module.parameters() if p.grad is not None]

    first = gradients(module(own).square().mean())
    # A forward without a backward, one of an evaluation, and two at a time.
    module(own)
    with torch.no_grad():
        found["without"] = module(own).requires_grad
    module.eval()(own)
    module.train()
    both = module(own), module(2 * own)
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.data.mul_(2)
    copied(own)
    again = gradients(both[0].square().mean())
    found["again"] = max(
        float((a - b).abs().max()) for a, b in zip(first, again, strict=True)
    )
    found["second"] = len(gradients(both[1].square().mean()))
    output = module(own)
    output.sum().backward(retain_graph=True)
    found["twice"] = told(lambda: output.sum().backward())
    output = module(own)
    sgd(module).step()
    found["changed"] = told(lambda: output.sum().backward())
    output = module(own)
    parameters = list(module.parameters())
    found["higher"] = told(
        lambda: torch.autograd.grad(output.sum(), parameters, create_graph=True)
    )
    inside = parallelize(layers(0, WIDTH, WIDTH), (x,), loss="mse", **options).train()
    loss = inside(own, own)
    found["higher inside"] = told(lambda: loss.backward(create_graph=True))
    found["loss"] = told(lambda: module.step(own))
    return found


def refused() -> dict[str, str]:
    """Returns the messages for what a loss outside cannot be combined with."""
    x, y = data(0), data(1)
    module = layers(0, WIDTH, WIDTH)
    heads = Penalised()
    parts = parallelize(module, (x,), k=2).train()
    single = layers(0, WIDTH, WIDTH).float()
    return {
        "labels": told(lambda: parallelize(module, (x,), labels=y)),
        "check": told(lambda: parallelize(module, (x,), check="step")),
        "sharded": told(
            lambda: parallelize(single, (x.float(),), loss="mse", sharded_outputs=True)
        ),
        "outputs": told(lambda: parts(x)),
        "penalty": told(lambda: parallelize(heads, (x,), loss="outside", k=2)),
        "scalar": told(lambda: parts.whole_batch(x.sum())),
    }


def last_batch(options: Options) -> list[tuple[float, float]]:
    """
    A batch of 3 of 8 samples, whose losses are weighted such that they are those of the whole
    batch. Returns the losses, and the differences of gradients.
    """
    x, y = data(0)[:3], data(1)[:3]
    plain = layers(0, WIDTH, 16, WIDTH)
    module = parallelize(copy.deepcopy(plain), (data(0),), **options).train()
    own, target = (t.tensor_split(module.data_ranks)[module.data_rank] for t in (x, y))
    given = own.clone().requires_grad_()
    loss = (module(given) - target).square().sum() * module.data_ranks / y.numel()
    loss.backward()
    whole_given = x.clone().requires_grad_()
    expected = F.mse_loss(plain(whole_given), y)
    expected.backward()
    assert given.grad is not None and whole_given.grad is not None
    theirs = whole_given.grad.tensor_split(module.data_ranks)[module.data_rank]
    found = [(module.mean_of_parts(loss).item(), expected.item())]
    found.append(((given.grad / module.data_ranks - theirs).abs().max().item(), 0.0))
    for name, parameter in module.named_parameters():
        own_gradient = plain.get_parameter(name).grad
        assert parameter.grad is not None and own_gradient is not None
        found.append(((whole(parameter.grad) - own_gradient).abs().max().item(), 0.0))
    return found


class Pair(nn.Module):
    """Two layers, each of an input of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers(0, WIDTH, 4), layers(1, WIDTH, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.second(y)


def given_twice(options: Options) -> list[float]:
    """
    One tensor is given for two inputs, and a layer is frozen between the forward and its
    backward, which gives no gradients of it. Returns the differences of all gradients
    from PyTorch's.
    """
    x, plain = data(0), Pair()
    module = parallelize(copy.deepcopy(plain), (x, data(1)), **options).train()
    found: list[dict[str, torch.Tensor]] = []
    for each in (module, plain):
        own = own_part(module, x) if each is module else x
        own = own.clone().requires_grad_()
        loss = each(own, own).square().mean()
        each.second.requires_grad_(False)
        loss.backward()
        every = each.named_parameters()
        gradients = {n: whole(p.grad) for n, p in every if p.grad is not None}
        assert own.grad is not None
        own = own.grad
        if each is module:
            own = module.whole_batch(own) / module.data_ranks
        gradients["x"] = own
        found.append(gradients)
    ours, theirs = found
    assert ours.keys() == theirs.keys() and len(ours) == 3
    return [float((ours[n] - theirs[n]).abs().max()) for n in theirs]


def statistics(options: Options) -> dict[str, Any]:
    """Returns what a forward does to running statistics, and a training with them."""
    x, y = data(0), data(1)
    plain = Normalised()
    plain.drop.p = 0.0
    module = parallelize(copy.deepcopy(plain), (x,), **options).train()
    ours, theirs = sgd(module), sgd(plain)
    losses: list[tuple[float, float]] = []
    for step in range(STEPS):
        found = F.mse_loss(module(own_part(module, x + step)), own_part(module, y))
        expected = F.mse_loss(plain(x + step), y)
        for loss, optimizer in ((found, ours), (expected, theirs)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((module.mean_of_parts(found).item(), expected.item()))
    mean = whole(module.get_buffer("norm.running_mean"))
    return {
        "losses": losses,
        "apart": apart(module, plain),
        "mean": (mean - plain.get_buffer("norm.running_mean")).abs().max().item(),
        "count": int(module.get_buffer("norm.num_batches_tracked")),
    }


def dropped(options: Options) -> float:
    """
    The largest difference of a gradient, with a dropout whose mask is drawn again after other
    forwards have drawn theirs, from that of a step by itself.
    """
    x = data(0)
    found: list[list[torch.Tensor]] = []
    for others in (0, 2):
        module = parallelize(Normalised(), (x,), **options).train()
        own = own_part(module, x)
        output = module(own)
        for _ in range(others):
            module(own)
        output.square().mean().backward()
        gradients = [p.grad for p in module.parameters()]
        found.append([whole(g) for g in gradients if g is not None])
    pairs = zip(*found, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def trained(options: Options) -> dict[str, Any]:
    """Trains in f64 with the loss outside, beside PyTorch."""
    x, y = data(0), data(1)
    plain = layers(0, WIDTH, 16, WIDTH)
    module = parallelize(copy.deepcopy(plain), (x,), **options).train()
    ours, theirs = sgd(module), sgd(plain)
    losses: list[tuple[float, float]] = []
    for step in range(STEPS):
        ours.zero_grad()
        theirs.zero_grad()
        given, target = own_part(module, x + step), own_part(module, y)
        if "p" in options:
            found = module.step(given, target=target, loss=F.mse_loss)
        else:
            found = F.mse_loss(module(given), target)
            found.backward()
            found = module.mean_of_parts(found)
        expected = F.mse_loss(plain(x + step), y)
        expected.backward()
        ours.step()
        theirs.step()
        losses.append((found.item(), expected.item()))
    return {"losses": losses, "apart": apart(module, plain)}


SCALE = 2.0**22
"""A scale of losses with which gradients in float16 overflow at first."""


def _scaled_step(module: Any, scaler: Any, x: Any, y: Any) -> torch.Tensor:
    """A step of a pipeline; only the last stage computes the loss, and scales it."""
    scale = scaler.scale(torch.ones(()))  # makes the scale on all ranks

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return scaler.scale(F.mse_loss(output.float(), target))

    return module.step(x, target=y, loss=loss) / scale


def in_16_bits(options: Options, dtype: str, has_autocast: bool) -> dict[str, Any]:
    """
    Trains with AdamW and parameters in f32, in a type of 16 bits, as PyTorch does under
    autocast: in float16 with a `GradScaler`, whose first steps overflow. Returns the
    losses, the scales after each step, the parameters' distances from those of PyTorch in
    f32, with as many steps, and of PyTorch under autocast, and the largest parameter.
    """
    x, y = data(0).float(), data(1).float()
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    given = options if has_autocast else {**options, "dtype": dtype}
    source = layers(0, WIDTH, 16, WIDTH).float()
    module = parallelize(copy.deepcopy(source), (x,), **given).train()

    def train(each: Any, batch: Any, is_wide: bool, is_ours: bool) -> list[Any]:
        is_pipeline = is_ours and "p" in options
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        scaled = dtype == "f16" and not is_wide
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
        found: list[Any] = []
        for _ in range(12):
            casts = not is_wide and (has_autocast or not is_ours)
            optimizer.zero_grad()
            with torch.autocast("cpu", kind, enabled=casts):
                if is_pipeline:
                    loss = _scaled_step(module, scaler, batch(x), batch(y))
                else:
                    loss = F.mse_loss(each(batch(x)).float(), batch(y))
            if not is_pipeline:
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            is_part = is_ours and not is_pipeline
            value = module.mean_of_parts(loss).item() if is_part else loss.item()
            found.append((value, scaler.get_scale() < before))
        return found

    found = train(module, lambda t: own_part(module, t), False, True)
    skipped = sum(was_left_out for _, was_left_out in found)
    autocast, wide = copy.deepcopy(source), copy.deepcopy(source)
    expected = train(autocast, lambda t: t, False, False)
    given_steps = iter(range(12 - skipped))
    optimizer = torch.optim.AdamW(wide.parameters(), lr=1e-2)
    for _ in given_steps:
        optimizer.zero_grad()
        F.mse_loss(wide(x), y).backward()
        optimizer.step()
    return {
        "found": found,
        "expected": expected,
        "from f32": apart(module, wide),
        "autocast from f32": apart(autocast, wide),
        "moved": apart(source, wide),
    }


def overflow(options: Options) -> list[list[float]]:
    """Returns what becomes of gradients of which one rank has an infinite one."""
    numbers = [1.0, torch.inf if dist.get_rank() else 2.0]
    found: list[list[float]] = []
    for values in (numbers, [1.0, 2.0]):
        gradients = [torch.tensor(values), torch.tensor([3.0])]
        spread_overflow(gradients, torch.device("cpu"))
        found.append(torch.cat(gradients).tolist())
    return found
