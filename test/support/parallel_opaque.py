"""Models with parts that PyTorch cannot export, for ranks that train them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import distir

WORDS, WIDTH, EXPERTS = 11, 8, 4


class OwnExperts(nn.Module):
    """A mixture of experts with sizes that depend on values, and `index_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 16) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, 16, WIDTH) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        found = torch.zeros_like(tokens)
        for i in range(EXPERTS):
            rows, which = (chosen == i).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            y = torch.relu(tokens[rows] @ self.up[i]) @ self.down[i]
            found = found.index_add(0, rows, y * weights[rows, which, None])
        return found.reshape(x.shape)


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; the backward sends gradients back."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, out: list[int], to: list[int], group: Any
    ) -> torch.Tensor:
        ctx.sizes, ctx.group = (to, out), group
        found = x.new_empty(sum(to), *x.shape[1:])
        dist.all_to_all_single(found, x.contiguous(), to, out, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        out, to = ctx.sizes
        return Exchange.apply(gradients[0], out, to, ctx.group), None, None, None


class SentExperts(OwnExperts):
    """A mixture whose tokens are sent to the processes of their experts."""

    exchange: Callable[..., Any] = Exchange.apply

    def forward(self, x: torch.Tensor, group: Any = None) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        processes = 1 if group is None else dist.get_world_size(group)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS).view(processes, -1)
        rows, come = tokens[order], counts
        out = to = counts.sum(1).tolist()
        if group is not None:
            come = torch.empty_like(counts)
            dist.all_to_all_single(come, counts, group=group)
            to = come.sum(1).tolist()
            rows = self.exchange(rows, out, to, group)
        experts = torch.arange(len(self.up)).repeat(processes)
        experts = experts.repeat_interleave(come.reshape(-1))
        found = torch.zeros_like(rows)
        for i in range(len(self.up)):
            at = (experts == i).nonzero()[:, 0]
            y = torch.relu(rows[at] @ self.up[i]) @ self.down[i]
            found = found.index_add(0, at, y)
        if group is not None:
            found = self.exchange(found, to, out, group)
        found = torch.zeros_like(tokens).index_add(
            0, order, found * weights[order, None]
        )
        return found.reshape(x.shape)


class _Detached(SentExperts):
    """The same with an all-to-all that stops gradients."""

    @staticmethod
    def exchange(*given: Any) -> Any:
        return cast(torch.Tensor, Exchange.apply(*given)).detach()


class _Sum(torch.autograd.Function):
    """An all-reduce; the backward adds gradients up, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group, found = group, x.clone()
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _Sum.apply(gradients[0], ctx.group), None


class SplitBlock(nn.Module):
    """A block whose hidden features the processes of a group divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(WIDTH, 16) / 3)
        self.down = nn.Parameter(torch.randn(16, WIDTH) / 4)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor, *, group: Any = None) -> torch.Tensor:
        y = torch.relu((x * self.scale) @ self.up) @ self.down
        return y if group is None else _Sum.apply(y, group)


class Model(nn.Module):
    """Words, two residual blocks, and a head."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def opaque_experts() -> nn.Module:
    return distir.opaque(OwnExperts(), rule="b s d -> b s d", keep="d")


SENT: dict[str, Any] = {
    "rule": "b@e s d -> b@e s d",
    "weights": {"up": "_@e _ _", "down": "_@e _ _"},
    "keep": "d",
}


def sent_experts() -> nn.Module:
    return distir.local_map(SentExperts(), **SENT, sends="2*8*b*s*d")


def detached_experts() -> nn.Module:
    return distir.local_map(_Detached(), **SENT)


def split_block() -> nn.Module:
    return distir.local_map(
        SplitBlock(),
        rule="b s d -> b s d",
        weights={"up": "_ _@t", "down": "_@t _"},
        keep="d",
    )


def by_schedule(s: Any) -> None:
    s["blocks.*"].opaque("b s d -> b s d", keep="d")


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "opaque": opaque_experts,
    "schedule": OwnExperts,
    "sent": sent_experts,
    "detached": detached_experts,
    "split": split_block,
}


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    ids, labels = (torch.randint(0, WORDS, (8, 6)) for _ in range(2))
    return ids, labels


def opaque_run(
    kind: str, options: dict[str, Any], own_loss: bool, is_outside: bool = False
) -> tuple[float, float, list[str]]:
    """
    Trains a model for five steps, beside PyTorch on one process. With `is_outside`, the
    loss is computed here, of this process's part of the outputs. Returns the largest
    relative difference of losses and parameters, that of outputs in evaluation, and the
    names in the state dictionary.
    """
    torch.manual_seed(0)
    model, plain = (Model(MAKERS[kind]).double() for _ in range(2))
    plain.load_state_dict(model.state_dict())
    ids, labels = batch()
    if kind == "schedule":
        options = {**options, "schedule": by_schedule}
    loss: Any = cross_entropy if own_loss else "cross_entropy"
    loss = None if is_outside else loss
    parallel = distir.parallelize(model, (ids,), loss=loss, **options)

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(parallel.data_ranks)[parallel.data_rank]

    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    optimizers = [
        torch.optim.SGD(each.parameters(), lr=0.5) for each in (parallel, plain)
    ]
    for _ in range(5):
        if is_outside:
            value = cross_entropy(parallel(own(ids)), own(labels))
            mean = parallel.mean_of_parts(value)
        else:
            value = mean = parallel(own(ids), own(labels))
        losses = value, cross_entropy(plain(ids), labels)
        pairs.append((mean, losses[1]))
        for value, optimizer in zip(losses, optimizers, strict=True):
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    known = dict(plain.named_parameters())
    for name, value in parallel.named_parameters():
        pairs.append((value.full_tensor(), known[name]))  # pyright: ignore
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    parallel.eval()
    with torch.no_grad():
        output = parallel(own(ids)) - own(plain(ids))
    return apart, float(output.abs().max()), sorted(parallel.state_dict())


def refused_run(kind: str, options: dict[str, Any]) -> str:
    """Returns the error of a training, or "" if there is none."""
    try:
        opaque_run(kind, options, False)
    except distir.DistIRError as error:
        return str(error)
    return ""


class Noise(nn.Module):
    """Multiplies a number with a dropout of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(torch.ones_like(x) * self.number, 0.5, self.training)


class NoiseModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.noise = distir.opaque(Noise(), rule="b s -> b s")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.noise(x) * x).mean()


def noise_run(options: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns the loss and the gradient of two steps, and the loss in evaluation."""
    x = torch.arange(1.0, 65).reshape(4, 16)
    parallel = distir.parallelize(NoiseModel(), (x,), **options)
    own = x.chunk(parallel.data_ranks)[parallel.data_rank]
    found: list[tuple[float, float]] = []
    for _ in range(2):
        loss = parallel(own)
        loss.backward()
        number = next(parallel.parameters())
        assert number.grad is not None
        found.append((float(loss), float(number.grad.full_tensor())))  # pyright: ignore
        number.grad = None
    parallel.eval()
    return [*found, (float(parallel(own)), 0.0)]
