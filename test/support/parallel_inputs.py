"""What calls of parallel modules may be given, which tests run on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, cross_entropy, own_part, whole

CLASSES = 8


def rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and labels of `Layers`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (8, CLASSES)
    return torch.randn(shape, generator=generator), torch.randn(
        shape, generator=generator
    )


def own_parts(parallel: ParallelModule, batch: Any) -> Any:
    """Returns this rank's part of a batch of tensors in containers."""
    return tree_map_only(torch.Tensor, partial(own_part, parallel), batch)


class Layers(nn.Module):
    """Layers that a pipeline can divide, the first of which may be frozen."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(CLASSES, CLASSES) for _ in range(4))
        self.layers[0].requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def difference(module: ParallelModule, plain: nn.Module) -> float:
    """
    Returns the largest difference of a gradient's element on this rank; infinite where only
    one of the two modules has a gradient.
    """
    found = 0.0
    for name, parameter in module.named_parameters():
        own, expected = parameter.grad, plain.get_parameter(name).grad
        if own is None or expected is None:
            found = max(found, 0.0 if own is expected else float("inf"))
        else:
            found = max(found, (whole(own) - expected).abs().max().item())
    return found


def apart(found: torch.Tensor | None, expected: torch.Tensor) -> float:
    """Returns the largest difference of an element; infinite for no tensor."""
    if found is None:
        return float("inf")
    return (found - expected).abs().max().item()


def frozen_and_not(options: Options) -> list[tuple[float, float, float]]:
    """
    Calls a module whose first layer was frozen when it was parallelized: so, with it, with
    the last alone, with an input that requires gradients, with that alone, and as in the
    beginning. Returns for each the losses and the differences of gradients from PyTorch's.
    """
    x, y = rows()
    plain = Layers(frozen=True)
    parallel = parallelize(Layers(frozen=True), (x,), loss="mse", **options).train()
    # Whether a parameter is trained, by its name, and whether the input is.
    cases: list[tuple[Callable[[str], bool], bool]] = [
        (lambda name: "layers.0" not in name, False),
        (lambda name: True, False),
        (lambda name: "layers.3" in name, False),
        (lambda name: "bias" in name, True),
        (lambda name: False, True),
        (lambda name: "layers.0" not in name, False),
    ]
    results: list[tuple[float, float, float]] = []
    for is_trained, with_input in cases:
        for module in (plain, parallel):
            module.zero_grad()
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(is_trained(name))
        given = x.clone().requires_grad_(with_input)
        own = own_part(parallel, x).clone().requires_grad_(with_input)
        expected = F.mse_loss(plain(given), y)
        (2 * expected).backward()
        loss = parallel(own, own_part(parallel, y))
        (2 * loss).backward()
        worst = difference(parallel, plain)
        if given.grad is not None:
            worst = max(worst, apart(own.grad, own_part(parallel, given.grad)))
        results.append((loss.item(), expected.item(), worst))
    return results


class Prompted(nn.Module):
    """Attention to a prompt that is the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, prompt: torch.Tensor) -> torch.Tensor:
        both = torch.cat([prompt.expand(len(x), -1, -1), x], 1)
        scores = x @ self.key(both).transpose(1, 2)
        return scores.softmax(-1) @ self.value(both)


def prompted_run(options: Options) -> dict[str, float]:
    """
    Tunes a prompt and an encoder in front of a frozen module. Returns the largest differences
    of their gradients from PyTorch's, of which each rank of the encoder has a term.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, 4, generator=generator)
    y = torch.randn(4, 4, 4, generator=generator)
    start = torch.randn(1, 2, 4, generator=generator)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    module = Prompted().requires_grad_(False)
    plain = Prompted().requires_grad_(False)
    example = {"prompt": nn.Parameter(start)}
    parallel = parallelize(module, (x,), example, loss="mse", **options)
    for is_ours in (True, False):
        torch.manual_seed(1)
        encoder, prompt = nn.Linear(4, 4), nn.Parameter(start.clone())
        if is_ours:
            own = encoder(own_part(parallel, x))
            parallel(own, own_part(parallel, y), prompt=prompt).backward()
        else:
            F.mse_loss(plain(encoder(x), prompt=prompt), y).backward()
        assert encoder.weight.grad is not None and prompt.grad is not None
        found.append((encoder.weight.grad, prompt.grad))
    (ours, prompts), (theirs, expected) = found
    parts = [torch.empty_like(ours) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, ours)
    copies = len(parts) // parallel.data_ranks
    return {
        "encoder": apart(torch.stack(parts).sum(0) / copies, theirs),
        "prompt": apart(prompts, expected),
    }


class TwoInputs(nn.Module):
    """A model of language with its labels as an argument, and other inputs in containers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(
        self, ids: torch.Tensor, others: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.embedding(ids)) * others["scale"][0]
        logits = logits - others["scale"][1] + others["shift"]
        labels = others["labels"]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def aliased_run(options: Options) -> list[tuple[float, float]]:
    """
    Parallelizes with one tensor, and with views of one, at several places. Returns the
    losses of calls with different tensors, and PyTorch's.
    """
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(CLASSES, (2, 8, 5), generator=generator)
    a, b, c = torch.randn(3, 8, 5, CLASSES, generator=generator)
    results: list[tuple[float, float]] = []
    longer = torch.zeros(8, 6, CLASSES)
    views = longer[:, :-1], longer[:, 1:]
    plain = TwoInputs()
    for scale, shift in (((a, a), a), (views, views[0])):
        others = {"scale": scale, "shift": shift, "labels": ids}
        parallel = parallelize(TwoInputs(), (ids, others), **options).train()
        given: Any = {"scale": (a, b), "shift": c, "labels": labels}
        own = own_parts(parallel, given)
        loss = parallel(own_part(parallel, ids), own)
        results.append((loss.item(), plain(ids, given)[0].item()))
    return results


def swapped_run() -> tuple[float, float]:
    """Returns losses where named arguments are in another order than in the signature."""

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (output - labels).square().mean()

    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, a: torch.Tensor, b: torch.Tensor) -> Any:
            return layer(x) * a - b

    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    module = Named()
    module.layer = layer
    x, a, b, y = torch.randn(4, 8, 4)
    parallel = parallelize(module, (x,), {"b": b, "a": a}, loss=loss).train()
    return parallel(x, y, a=a, b=b).item(), loss(module(x, a=a, b=b), y).item()


def padded_labels(shape: tuple[int, ...]) -> torch.Tensor:
    """Returns labels of which some, more on the first ranks, do not count."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, shape, generator=generator)
    labels[0], labels[1, ::2], labels[-1, 0] = -100, -100, -100
    return labels


def negative_likelihood(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns a cross-entropy as its own formula."""
    return F.nll_loss(output.log_softmax(-1).flatten(0, 1), labels.flatten())


def smoothed(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns a cross-entropy with all that PyTorch's can be given."""
    return F.cross_entropy(
        output.flatten(0, 1),
        labels.flatten(),
        weight=torch.linspace(0.5, 1.5, CLASSES),
        label_smoothing=0.1,
        ignore_index=-100,
    )


LOSSES: dict[str, Any] = {
    "cross_entropy": "cross_entropy",
    "function": cross_entropy,
    "nll": negative_likelihood,
    "smoothed": smoothed,
}


def padded_run(name: str, options: Options) -> tuple[float, float, float]:
    """
    Returns a loss of labels some of which are -100, PyTorch's, and the largest difference of
    a gradient's element.
    """
    shape = (8, 4)
    x = torch.randn(*shape, CLASSES, generator=torch.Generator().manual_seed(0))
    y = padded_labels(shape)
    plain, loss = Layers(), LOSSES[name]
    parallel = parallelize(Layers(), (x,), loss=loss, **options).train()
    found = parallel(own_part(parallel, x), own_part(parallel, y))
    found.backward()
    theirs = LOSSES["function"] if name == "cross_entropy" else loss
    (expected := theirs(plain(x), y)).backward()
    return found.item(), expected.item(), difference(parallel, plain)


def several_labels(output: torch.Tensor, labels: Mapping[str, Any]) -> torch.Tensor:
    """Returns a loss of labels in containers."""
    weights, targets = labels["both"]
    each = F.binary_cross_entropy_with_logits(output[:, 0], targets, reduction="none")
    classes = F.cross_entropy(output[:, 1:], labels["classes"])
    return (each * weights).mean() + classes


def first_column(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the binary cross-entropy of the first column."""
    return F.binary_cross_entropy_with_logits(output[:, 0], labels)


def labelled_run(options: Options) -> list[tuple[float, float, float]]:
    """
    Returns losses of labels of several structures, PyTorch's, and the largest differences of
    gradients.
    """
    x, y = rows()
    targets, classes = (y[:, 0] > 0).float(), torch.arange(8) % (CLASSES - 1)
    several = {"both": (y[:, 1].abs(), targets), "classes": classes}
    flags = targets.bool()

    def of_flags(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.where(labels[:, None], output, -output).square().mean() + (
            torch.where(labels, output[:, 0], 0.0).mean()
        )

    cases: list[tuple[Any, Any, Any]] = [
        (first_column, targets, None),
        (several_labels, several, several),
        (of_flags, flags, flags),
    ]
    results: list[tuple[float, float, float]] = []
    for loss, labels, example in cases:
        plain = Layers()
        parallel = parallelize(
            Layers(), (x,), loss=loss, labels=example, **options
        ).train()
        own = own_parts(parallel, labels)
        (found := parallel(own_part(parallel, x), own)).backward()
        (expected := loss(plain(x), labels)).backward()
        results.append((found.item(), expected.item(), difference(parallel, plain)))
    return results


def told_run() -> list[str]:
    """Returns the errors of calls that cannot be."""
    x, y = rows()
    module = Layers()

    def told(run: Callable[[], Any]) -> str:
        try:
            run()
        except DistIRError as error:
            return str(error)
        return "no error"

    def nothing(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return output

    both = (y, y)
    parallel = parallelize(
        module, (x,), loss=lambda o, y: F.mse_loss(o, y[0] + y[1]), labels=both
    ).train()
    asked = x.clone().requires_grad_()
    output = parallel.eval()(asked)
    parallel.train()
    return [
        told(lambda: parallel(x, y)),
        told(lambda: parallelize(module, (x,), loss=nothing)),
        told(lambda: parallelize(module, (x,), labels=y)),
        told(lambda: parallelize(module, (x,), loss="mse", zero=1)),
        told(lambda: parallelize(module, (x,), loss="mse", sequence_parallel=True)),
        told(lambda: output.sum().backward()),
    ]


def contained_run(options: Options) -> dict[str, Any]:
    """Returns what a parallel module's list of layers is, and the names in it and in order."""
    x, _ = rows()
    parallel = parallelize(Layers(), (x,), loss="mse", **options)
    layers: Any = parallel.layers
    return {
        "is a list": isinstance(layers, torch.nn.ModuleList),
        "count": len(layers),
        "last": [name for name, _ in layers[-1].named_parameters()],
        "each": [len(list(layer.parameters())) for layer in layers],
        "names": [name for name, _ in parallel.named_parameters()],
        "all names": [name for name, _ in Layers().named_parameters()],
    }
