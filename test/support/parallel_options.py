"""Training scripts for several ranks: floating-point types, schedules, restarts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import cpp_builder, exc
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from distir.scheduling import Columns, Kernel, Rows, Schedule
from support.parallel_scripts import (
    Options,
    batch,
    own_part,
    tiny_gpt,
    train,
    train_parallel,
    train_plainly,
    whole,
    worst_difference,
)


def narrow_run(options: Options) -> dict[str, Any]:
    """Trains GPT-2 in 16 bits in parallel, and in f32 with plain PyTorch."""
    words, _ = batch(0)
    made = functools.partial(tiny_gpt, layers=1)
    parallel = parallelize(made(), (words,), loss="cross_entropy", **options)
    found = train_parallel(parallel, range(3))
    dtypes = {p.dtype for p in parallel.parameters()}
    parallel(*(own_part(parallel, part) for part in batch(0))).backward()
    dtypes |= {p.grad.dtype for p in parallel.parameters() if p.grad is not None}
    parallel.eval()
    with torch.no_grad():
        output = parallel(own_part(parallel, words)).logits
    return {
        "found": [loss for loss, _ in found],
        "expected": [loss for loss, _ in train_plainly(made(), range(3))],
        "dtypes": {str(dtype) for dtype in dtypes},
        "output": str(output.dtype),
    }


def uncompilable_run() -> str:
    """Returns the error of a compiled module where nothing compiles."""

    def none() -> str:
        raise exc.InvalidCxxCompiler

    cpp_builder.get_cpp_compiler = none
    words = torch.zeros(2, 3)
    try:
        parallelize(nn.Linear(3, 3), (words,), loss="mse", compiled=True)
    except DistIRError as error:
        return str(error)
    return ""


def float8_run(options: Options) -> dict[str, Any]:
    """
    Trains GPT-2 with products in 8-bit floats in parallel, and in f32 with plain PyTorch;
    the distance of outputs is that to a plain module with the same parameters.
    """
    words, _ = batch(0)
    made = functools.partial(tiny_gpt, layers=1)
    parallel = parallelize(made(), (words,), loss="cross_entropy", **options)
    found = train_parallel(parallel, range(3))
    parallel.eval()
    plain = made().eval()
    values = {n: whole(p) for n, p in parallel.named_parameters()}
    plain.load_state_dict(values, strict=False)
    with torch.no_grad():
        expected = own_part(parallel, plain(words).logits)
        output = parallel(own_part(parallel, words)).logits
    return {
        "found": [loss for loss, _ in found],
        "expected": [loss for loss, _ in train_plainly(made(), range(3))],
        "dtypes": {str(value.dtype) for value in values.values()},
        "output": ((output - expected).norm() / expected.norm()).item(),
    }


Losses = list[tuple[float, float]]


def both(
    parallel: ParallelModule, plain: nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[Losses, Losses]:
    """
    Returns the losses of three steps on one batch with the mean squared error, of the
    parallel module and of plain PyTorch.
    """
    parallel.train()
    plain.train()
    own, labels = own_part(parallel, x), own_part(parallel, y)
    parameters = list(plain.parameters())
    found = train(
        parallel,
        lambda _: parallel(own, labels),
        parallel.clip_grad_norm_,
        range(3),
    )
    expected = train(
        plain,
        lambda _: F.mse_loss(plain(x), y),
        lambda norm: nn.utils.clip_grad_norm_(parameters, norm),
        range(3),
    )
    return found, expected


class Steep(nn.Module):
    """A layer whose gradients overflow in f16 if the loss is scaled by a large number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a number for each row."""
        return self.head(torch.relu(self.layer(x)))


def overflowing_run(options: Options) -> dict[str, Any]:
    """Trains `Steep` in f16 in parallel, and with plain PyTorch."""
    x = 30 * torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    parallel = parallelize(Steep(), (x,), loss="mse", dtype=torch.float16, **options)
    plain = Steep().train()
    found, expected = both(parallel, plain, x, y)
    state = parallel.state_dict()
    return {
        "found": found,
        "expected": expected,
        "scale": {n: int(v) for n, v in state.items() if "loss_scale" in n},
    }


class Block(nn.Module):
    """Three projections that read the same value, and one that reads their results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.output = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns four numbers for each row."""
        mixed = torch.tanh(self.query(x)) * torch.relu(self.key(x)) + self.value(x)
        return self.output(mixed)


class Towers(nn.Module):
    """A module with one block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns four numbers for each row."""
        return self.block(x)


def split_and_merged(s: Schedule) -> None:
    """A schedule that merges the projections into one layer and splits its columns."""
    s["block"].merge("query", "key", "value", name="qkv")
    s["block.qkv"].split(Columns("t"))
    s["block.output"].split(Rows("t"))


def scheduled_run(options: Options) -> dict[str, Any]:
    """Trains `Towers` with a schedule in parallel, and with plain PyTorch."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    parallel = parallelize(Towers(), (x,), loss="mse", **options).train()
    plain = Towers().train()
    found, expected = both(parallel, plain, x, y)
    parallel.eval()
    with torch.no_grad():
        output = parallel(own_part(parallel, x)) - own_part(parallel, plain(x))
    return {
        "found": found,
        "expected": expected,
        "names": [name for name, _ in parallel.named_parameters()],
        "all names": [name for name, _ in plain.named_parameters()],
        "parameters": worst_difference(parallel, plain),
        "output": output.abs().max().item(),
        "shapes": {
            name: tuple(value.to_local().shape)
            for name, value in parallel.state_dict().items()
            if isinstance(value, DTensor)
        },
    }


KERNELS = """
import torch


def gated(query, key):
    return torch.tanh(query) * torch.relu(key)
"""


def _gate(query: Any, key: Any) -> Any:
    return torch.tanh(query) * torch.relu(key)


def with_kernels(s: Schedule) -> None:
    """A schedule in which a user's kernel gates what the projections give."""
    kernel = Kernel("gated", "gates:gated", gradient="autograd")
    s["block"].find(_gate).replace(kernel)


def of_no_module(s: Schedule) -> None:
    """A schedule for a module that no model has."""
    s["nowhere"].split(Columns("t"))


def in_groups(s: Schedule) -> None:
    """A schedule that merges the projections such that they are no views of the result."""
    s["block"].merge("query", "key", "value", name="qkv", groups=2)


def schedule_refusals(folder: Path) -> list[str]:
    """Returns the error messages for schedules and types that are not possible."""
    x = torch.randn(8, 8)
    (folder / "wrong.py").write_text("def schedule(s):\n    s['nowhere'].split(1)\n")
    found: list[str] = []
    given: list[Options] = [
        dict(schedule="1f1bb"),
        dict(schedule=folder / "nowhere.py"),
        dict(schedule=folder / "wrong.py"),
        dict(schedule=of_no_module),
        dict(dtype="f8"),
        dict(dtype=torch.int64),
        dict(float8="columns"),
        dict(schedule=in_groups),
    ]
    for options in given:
        try:
            parallelize(Towers(), (x,), loss="mse", **options)
            found.append("nothing")
        except DistIRError as error:
            found.append(str(error))
    return found


def restarted(options: Options, folder: Path) -> dict[str, list[float]]:
    """
    Returns the losses of two steps of GPT-2 with dropout after a checkpoint: of the run
    that wrote it, of one that read it, and of one that read all of it except the counter of
    steps.
    """
    words, _ = batch(0)

    def made() -> tuple[Any, torch.optim.Optimizer]:
        module = tiny_gpt(0.5, layers=1)
        parallel = parallelize(module, (words,), loss="cross_entropy", **options)
        return parallel, torch.optim.AdamW(parallel.train().parameters(), lr=1e-2)

    def steps(parallel: Any, optimizer: torch.optim.Optimizer, r: range) -> list[float]:
        found: list[float] = []
        for _ in r:  # on one batch, so that masks alone differ
            loss = parallel(*(own_part(parallel, part) for part in batch(0)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    first, optimizer = made()
    steps(first, optimizer, range(2))
    model, states = get_state_dict(first, optimizer)
    state_dict_saver.save({"model": model, "optimizer": states}, checkpoint_id=folder)
    found = {"went on": steps(first, optimizer, range(2))}
    for name in ("read", "without counter"):
        again, optimizer = made()
        model, states = get_state_dict(again, optimizer)
        state_dict_loader.load(
            {"model": model, "optimizer": states}, checkpoint_id=folder
        )
        set_state_dict(
            again, optimizer, model_state_dict=model, optim_state_dict=states
        )
        counters = [n for n, _ in again.named_buffers() if n.startswith("distir.")]
        if name != "read":
            for counter in counters:
                again.get_buffer(counter).zero_()
        found[name] = steps(again, optimizer, range(2))
        found[f"counters {name}"] = [
            float(whole(again.get_buffer(c))) for c in counters
        ]
    return found


class Normed(nn.Module):
    """Two convolutions with batch normalisation, whose statistics matter: no bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 1, 3, bias=False)
        self.last = nn.BatchNorm2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns numbers for each picture."""
        return self.last(self.second(torch.relu(self.norm(self.first(x)))))


def normed_run(options: Options) -> dict[str, Any]:
    """
    Trains `Normed` in parallel with statistics of devices, and with plain PyTorch as
    DistributedDataParallel does: each part of the batch by itself, running statistics from
    the first device.
    """
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    x = x + torch.arange(8).view(-1, 1, 1, 1)  # parts differ
    y = torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(2))
    parallel = parallelize(
        Normed(), (x,), loss="mse", batch_norm="device", **options
    ).train()
    plain, shared = Normed().train(), Normed().train()
    micro = options.get("k", 1)
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    found: list[float] = []
    expected: list[float] = []
    for _ in range(3):
        loss = parallel(own_part(parallel, x), own_part(parallel, y))
        loss.backward()
        found.append(loss.item())
        expected.append(0.0)
        for rank, part in enumerate(x.chunk(parallel.data_ranks)):
            first = {n: b.clone() for n, b in plain.named_buffers()}
            labels = y.chunk(parallel.data_ranks)[rank].chunk(micro)
            for own, label in zip(part.chunk(micro), labels, strict=True):
                value = F.mse_loss(plain(own), label) / (parallel.data_ranks * micro)
                value.backward()
                expected[-1] += value.item()
            if rank > 0:
                for name, buffer in plain.named_buffers():
                    buffer.copy_(first[name])
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    state = parallel.state_dict()
    worst = max(
        (whole(state[n]).double() - value.double()).abs().max().item()
        for n, value in plain.state_dict().items()
    )
    return {
        "found": found,
        "expected": expected,
        "together": F.mse_loss(shared(x), y).item(),
        "state": worst,
    }
