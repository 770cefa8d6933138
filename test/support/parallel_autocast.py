"""Scripts that call parallel modules inside of `torch.autocast`, for several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, cross_entropy, own_part, whole

WIDTH, CLASSES = 16, 8

Gradients = Mapping[str, torch.Tensor]


class Blocks(nn.Module):
    """Residual blocks, in which autocast computes in both types and adds them up."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 2 * WIDTH),
                nn.GELU(),
                nn.Linear(2 * WIDTH, WIDTH),
            )
            for _ in range(count)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Norms(nn.Sequential):
    """Layers that move memory and multiply nothing."""

    def __init__(self, count: int) -> None:
        super().__init__(*(nn.LayerNorm(WIDTH) for _ in range(count)))


def uneven() -> nn.Module:
    """Returns a module that a pipeline divides elsewhere where products are in 16 bits."""
    torch.manual_seed(0)
    parts = (Norms(1), Norms(1), Norms(2), Norms(1), 0, Norms(4), 0)
    return nn.Sequential(*(part or nn.Linear(WIDTH, WIDTH) for part in parts))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and classes of `Blocks`."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, WIDTH, generator=generator)
    return x, torch.randint(CLASSES, (8, 4), generator=generator)


def autocast(dtype: torch.dtype | None = torch.bfloat16) -> torch.autocast:
    """Returns the context manager of a type, or of none."""
    return torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the whole gradients of a module's parameters, by name."""
    found = {n: p.grad for n, p in module.named_parameters()}
    return {n: whole(grad) for n, grad in found.items() if grad is not None}


def plain_step(
    dtype: torch.dtype | None, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, Gradients]:
    """Returns the loss and the gradients of `Blocks` in plain PyTorch."""
    module = Blocks()
    with autocast(dtype):
        loss = cross_entropy(module(x), y)
    loss.backward()
    return loss, gradients(module)


def squares(found: Gradients, expected: Gradients) -> float:
    """Returns the sum of the squares of differences, for the names in `found`."""
    return sum(((g - expected[n]) ** 2).sum().item() for n, g in found.items())


def steps_run(options: Options) -> list[dict[str, Any]]:
    """
    Takes steps inside and outside of autocast, in turn, with one module. Returns for each the
    losses, PyTorch's, and squares of differences from PyTorch's gradients: those of this
    rank's, and those of f32's, or bf16's outside.
    """
    x, y = rows()
    parallel = parallelize(Blocks(), (x,), loss="cross_entropy", **options).train()
    own, labels = own_part(parallel, x), own_part(parallel, y)
    wanted = {dtype: plain_step(dtype, x, y) for dtype in (None, torch.bfloat16)}
    results: list[dict[str, Any]] = []
    for dtype, other in ((torch.bfloat16, None), (None, torch.bfloat16)) * 2:
        parallel.zero_grad()
        with autocast(dtype):
            call = parallel.step if results else parallel
            loss = call(own, labels)
        if not results:
            loss.backward()
        expected, theirs = wanted[dtype]
        found = gradients(parallel)
        others = {n: wanted[other][1][n] for n in found}
        kinds = {p.dtype for p in parallel.parameters()}
        kinds |= {p.grad.dtype for p in parallel.parameters() if p.grad is not None}
        results.append(
            {
                "loss": loss.item(),
                "expected": expected.item(),
                "type": (loss.dtype, expected.dtype),
                "own": squares(found, theirs),
                "other": squares(others, theirs),
                "kinds": kinds,
            }
        )
    return results


def outputs_run(options: Options) -> list[dict[str, Any]]:
    """Returns outputs in evaluation inside and outside of autocast, and PyTorch's."""
    x, _ = rows()
    plain = Blocks().eval()
    parallel = parallelize(Blocks(), (x,), loss="cross_entropy", **options).eval()
    found: list[dict[str, Any]] = []
    for dtype in (torch.bfloat16, torch.float16, None):
        with torch.no_grad(), autocast(dtype):
            output = parallel(own_part(parallel, x))
            expected = own_part(parallel, plain(x))
        found.append(
            {
                "type": (output.dtype, expected.dtype),
                "apart": (output - expected).abs().max().item(),
                "largest": expected.abs().max().item(),
            }
        )
    return found


def types_run() -> dict[str, float]:
    """
    Returns the distances of gradients from those inside of autocast in plain PyTorch: of
    plain PyTorch in f32, of autocast, and of `dtype`.
    """
    x, y = rows()
    _, theirs = plain_step(torch.bfloat16, x, y)
    found: dict[str, float] = {"f32": squares(plain_step(None, x, y)[1], theirs)}
    for name, dtype, given in (
        ("autocast", torch.bfloat16, None),
        ("dtype", None, "bf16"),
    ):
        parallel = parallelize(
            Blocks(), (x,), loss="cross_entropy", dtype=given
        ).train()
        with autocast(dtype):
            parallel(x, y).backward()
        found[name] = squares(gradients(parallel), theirs)
    return found


def encoder_run(options: Options) -> dict[str, Any]:
    """
    Trains an encoder in front of a parallel module, all inside of autocast, in which
    `parallelize` is called too. Returns the type of what it gives and the distance of its
    gradients from PyTorch's.
    """
    x, y = rows()
    found: list[torch.Tensor] = []
    with autocast():
        parallel = parallelize(Blocks(), (x,), loss="cross_entropy", **options).train()
        for is_ours in (True, False):
            torch.manual_seed(1)
            encoder = nn.Linear(WIDTH, WIDTH)
            if is_ours:
                encoded = encoder(own_part(parallel, x))
                loss = parallel(encoded, own_part(parallel, y))
            else:
                loss = cross_entropy(Blocks()(encoder(x)), y)
            loss.backward()
            assert encoder.weight.grad is not None
            found.append(encoder.weight.grad)
    ours, theirs = found
    dist.all_reduce(ours)
    ours /= dist.get_world_size() // parallel.data_ranks
    return {
        "encoded": encoded.dtype,  # pyright: ignore[reportPossiblyUnboundVariable]
        "apart": ((ours - theirs).norm() / theirs.norm()).item(),
    }


def scaled_run(options: Options) -> list[dict[str, Any]]:
    """
    Trains with a GradScaler, as scripts for PyTorch do, in float16 and at last in other types.
    Returns for each step the losses, PyTorch's, and the relative distance of this rank's
    parameters from PyTorch's.
    """
    x, y = rows()
    with autocast(torch.float16):
        parallel = parallelize(Blocks(), (x,), loss="cross_entropy", **options).train()
    plain = Blocks()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, plain)]
    scalers = [torch.amp.GradScaler("cpu") for _ in optimizers]
    results: list[dict[str, Any]] = []
    for dtype in (torch.float16, torch.float16, torch.bfloat16, None):
        with autocast(dtype):
            loss = parallel(own_part(parallel, x), own_part(parallel, y))
            expected = cross_entropy(plain(x), y)
        for each, scaler, optimizer in zip(
            (loss, expected), scalers, optimizers, strict=True
        ):
            scaler.scale(each).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found = {n: whole(p) for n, p in parallel.named_parameters()}
        theirs = {n: plain.get_parameter(n).detach() for n in found}
        size = sum((value**2).sum().item() for value in theirs.values())
        results.append(
            {
                "loss": loss.item(),
                "expected": expected.item(),
                "apart": (squares(found, theirs) / size) ** 0.5,
                "states": [n for n, _ in parallel.named_buffers()],
            }
        )
    return results


def told(run: Callable[[], Any]) -> str:
    """Returns the error of a call."""
    try:
        run()
    except DistIRError as error:
        return str(error)
    return "no error"


def refused_run() -> dict[str, str]:
    """Returns the errors of calls inside of autocast that cannot be."""
    x, y = rows()

    def made(**options: Any) -> ParallelModule:
        return parallelize(Blocks(), (x,), loss="cross_entropy", **options).train()

    def called(parallel: ParallelModule, dtype: torch.dtype) -> str:
        with autocast(dtype):
            return told(lambda: parallel(x, y))

    plain, narrow = made(), made(dtype="bf16")
    return {
        "f16": called(plain, torch.float16),
        "other": called(narrow, torch.float16),
        "same": called(narrow, torch.bfloat16),
        "wide": called(made(dtype="f32"), torch.bfloat16),
        "check": called(made(check="step"), torch.bfloat16),
        "after": called(plain, torch.bfloat16),
    }


def some_ranks_run() -> list[str]:
    """Returns the errors of calls inside of autocast on one rank alone, and on both."""
    x, y = rows()
    parallel = parallelize(Blocks(1), (x,), loss="cross_entropy", d=2)
    own = own_part(parallel, x), own_part(parallel, y)
    found: list[str] = []
    for is_on in (dist.get_rank() == 1, True):
        with autocast(torch.bfloat16 if is_on else None):
            found.append(told(lambda: parallel.train()(*own)))
            found.append(told(lambda: parallel.eval()(own[0])))
    return found


def divided_run(is_inside: bool) -> dict[str, Any]:
    """
    Returns the error of a step inside of autocast, whose program a pipeline would divide in
    another way than in f32, and the names of this rank's parameters; `is_inside`:
    parallelize is called inside of autocast too.
    """
    x, _ = rows()
    x = x.flatten(0, 1)[:8]
    with autocast(torch.bfloat16 if is_inside else None):
        parallel = parallelize(uneven(), (x,), loss="mse", p=2, k=2).train()
    with autocast():
        found = told(lambda: parallel.step(x, x))
    return {"error": found, "own": [name for name, _ in parallel.named_parameters()]}


def untrained_run() -> tuple[float, float]:
    """Returns the loss of a call in training without gradients, and PyTorch's."""
    x, y = rows()
    parallel = parallelize(Blocks(), (x,), loss="cross_entropy").train()
    with torch.no_grad(), autocast():
        return parallel(x, y).item(), F.cross_entropy(
            Blocks()(x).flatten(0, 1), y.flatten()
        ).item()
