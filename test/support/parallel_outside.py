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
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize
from support.parallel_scripts import Options, own_part, whole

SAMPLES, WIDTH, CLASSES, STEPS = 8, 8, 4, 5


class Plain:
    """What a script does on one process."""

    def make(self, module: nn.Module, *args: torch.Tensor, **options: Any) -> Any:
        """Returns the module as the script uses it."""
        return module

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a batch that the script computes on."""
        return batch

    def all(self, module: Any, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the whole batch."""
        return rows

    def mean(self, value: torch.Tensor) -> float:
        """Returns the mean of a value over the ranks."""
        return value.item()


class Parallel(Plain):
    """What the same script does on each of several ranks."""

    def __init__(self, options: Options):
        self._options = options
        self._module: Any = None

    def make(self, module: nn.Module, *args: torch.Tensor, **options: Any) -> Any:
        self._module = parallelize(module, args, **self._options, **options)
        return self._module.train()

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        return own_part(self._module, batch)

    def all(self, module: Any, rows: torch.Tensor) -> torch.Tensor:
        return module.whole_batch(rows)

    def mean(self, value: torch.Tensor) -> float:
        return self._module.mean_of_parts(value).item()


Training = Callable[[Plain], tuple[list[float], list[Any]]]
"""Returns the losses of a training, and the modules that it trained."""


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


class Heads(nn.Module):
    """A module with several outputs, one of integers, and a number of the whole batch."""

    def __init__(self, has_penalty: bool = True) -> None:
        super().__init__()
        self.has_penalty = has_penalty
        self.trunk = layers(0, WIDTH, 16, 16)
        self.values, self.logits = layers(1, 16, WIDTH), layers(2, 16, CLASSES)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.trunk(x)
        logits = self.logits(hidden)
        found = {"both": (self.values(hidden), logits), "choice": logits.argmax(-1)}
        return (
            found | {"penalty": hidden.square().mean()} if self.has_penalty else found
        )


def heads_loss(output: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
    values, logits = output["both"]
    chosen = F.cross_entropy(logits, output["choice"])
    return F.mse_loss(values, target) + chosen + output.get("penalty", 0.0)


def several_outputs(side: Plain) -> tuple[list[float], list[Any]]:
    x, y = data(0), data(1)
    module = side.make(Heads(), x, loss="outside")
    optimizer, losses = sgd(module), list[float]()
    for _ in range(STEPS):
        loss = heads_loss(module(side.part(x)), side.part(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return losses, [module]


def gan(side: Plain) -> tuple[list[float], list[Any]]:
    """Two modules with an optimizer each; the second has two forwards before a backward."""
    real, noise = data(0), data(1, 3)
    generator = side.make(layers(0, 3, 16, WIDTH), noise)
    critic = side.make(layers(1, WIDTH, 16, 1), real)
    optimizers, losses = (sgd(generator), sgd(critic)), list[float]()
    for step in range(STEPS):
        fake = generator(side.part(noise + step))
        first, second = critic(side.part(real)), critic(fake.detach())
        loss = F.softplus(-first).mean() + F.softplus(second).mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        fooled = F.softplus(-critic(fake)).mean()
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        losses += [side.mean(loss), side.mean(fooled)]
    return losses, [generator, critic]


def distillation(side: Plain) -> tuple[list[float], list[Any]]:
    """A frozen teacher beside a student, which looks at all of its outputs."""
    x = data(0)
    teacher = side.make(layers(0, WIDTH, 32, CLASSES), x).eval().requires_grad_(False)
    student = side.make(layers(1, WIDTH, 8, CLASSES), x)
    optimizer, losses = sgd(student), list[float]()
    for _ in range(STEPS):
        with torch.no_grad():
            target = teacher(side.part(x)).softmax(-1)
        found = student(side.part(x)).log_softmax(-1)
        loss = F.kl_div(found, target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(side.mean(loss))
    return losses, [student]


class Actor(nn.Module):
    """A policy and the values of states."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = layers(0, WIDTH, 16, 16)
        self.policy, self.value = layers(1, 16, CLASSES), layers(2, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x)
        return self.policy(hidden), self.value(hidden)[:, 0]


def reinforcement(side: Plain) -> tuple[list[float], list[Any]]:
    """Steps of PPO: ratios to a policy before, clipped, with values and an entropy."""
    states, rewards = data(0), data(1, 1)[:, 0]
    actor = side.make(Actor(), states)
    optimizer, losses = sgd(actor), list[float]()
    for _ in range(STEPS):
        own = side.part(states)
        with torch.no_grad():
            logits, values = actor(own)
        actions = logits.argmax(-1, keepdim=True)
        before = logits.log_softmax(-1).gather(1, actions)[:, 0]
        gained = side.part(rewards) - values
        for _ in range(2):
            logits, values = actor(own)
            chances = logits.log_softmax(-1)
            ratio = (chances.gather(1, actions)[:, 0] - before).exp()
            clipped = ratio.clamp(0.9, 1.1)
            policy = -torch.minimum(ratio * gained, clipped * gained).mean()
            entropy = -(chances.exp() * chances).sum(-1).mean()
            loss = policy + F.mse_loss(values, side.part(rewards)) - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(side.mean(loss))
    return losses, [actor]


def contrastive(side: Plain) -> tuple[list[float], list[Any]]:
    """Two towers, a loss over all pairs of the batch, and a temperature of the script."""
    images, texts = data(0), data(1, 6)
    towers = (
        side.make(layers(0, WIDTH, 16, CLASSES), images),
        side.make(layers(1, 6, 16, CLASSES), texts),
    )
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([*towers[0].parameters(), *towers[1].parameters()], 0.1)
    outer, losses = torch.optim.SGD([scale], lr=0.1), list[float]()
    for _ in range(STEPS):
        both = zip(towers, (images, texts), strict=True)
        a, b = (side.all(t, F.normalize(t(side.part(x)), dim=-1)) for t, x in both)
        scores = scale.exp() * a @ b.t()
        pairs = torch.arange(SAMPLES)
        loss = F.cross_entropy(scores, pairs) + F.cross_entropy(scores.t(), pairs)
        optimizer.zero_grad()
        outer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step()
        losses += [loss.item(), scale.item()]
    return losses, list(towers)


class Prompted(nn.Module):
    """Attention to a prompt that is the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = layers(1, CLASSES, CLASSES), layers(2, CLASSES, CLASSES)

    def forward(self, x: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        both = torch.cat([prompt.expand(len(x), -1, -1), x[:, None]], 1)
        scores = x[:, None] @ self.key(both).transpose(1, 2)
        return (scores.softmax(-1) @ self.value(both))[:, 0]


def prompts(side: Plain) -> tuple[list[float], list[Any]]:
    """An encoder in front of a frozen module, and a prompt that all ranks have whole."""
    x, y = data(0), data(1, CLASSES)
    prompt = nn.Parameter(data(2, CLASSES)[None, :2].clone())
    encoder = side.make(layers(0, WIDTH, 16, CLASSES), x)
    frozen = side.make(
        Prompted().requires_grad_(False), y.clone().requires_grad_(), prompt
    )
    optimizer, outer = sgd(encoder), torch.optim.SGD([prompt], lr=0.1)
    losses: list[float] = []
    for _ in range(STEPS):
        loss = F.mse_loss(frozen(encoder(side.part(x)), prompt), side.part(y))
        optimizer.zero_grad()
        outer.zero_grad()
        loss.backward()
        optimizer.step()
        outer.step()
        losses += [side.mean(loss), prompt.sum().item()]
    return losses, [encoder]


TRAININGS: dict[str, Training] = {
    "several outputs": several_outputs,
    "gan": gan,
    "distillation": distillation,
    "reinforcement": reinforcement,
    "contrastive": contrastive,
    "prompts": prompts,
}


def apart(module: Any, plain: nn.Module) -> float:
    """The largest difference of a parameter, relative to its largest element."""
    found = 0.0
    for name, parameter in module.named_parameters():
        expected = plain.get_parameter(name).detach()
        difference = (whole(parameter) - expected).abs().max() / expected.abs().max()
        found = max(found, float(difference))
    return found


def trained(name: str, options: Options) -> dict[str, Any]:
    """Runs a training on both sides; returns the losses of both, and how far they end apart."""
    losses, modules = TRAININGS[name](Parallel(options))
    expected, plain = TRAININGS[name](Plain())
    return {
        "losses": list(zip(losses, expected, strict=True)),
        "apart": max(map(apart, modules, plain)),
    }


def stepped(options: Options) -> dict[str, Any]:
    """
    Trains by `step` with a function of the output and the target, beside PyTorch. The last
    batch has 5 rows; as under DDP, the losses of parts count alike.
    """
    x, y = data(0), data(1)
    plain = Heads(has_penalty=False)
    module = parallelize(copy.deepcopy(plain), (x,), **options).train()
    ours, theirs = sgd(module), sgd(plain)
    losses: list[tuple[float, float]] = []
    for step in range(STEPS + 1):
        if step == STEPS:
            x, y = x[:5], y[:5]
        ours.zero_grad()
        own = own_part(module, x), own_part(module, y)
        found = module.step(own[0], loss=heads_loss, target=own[1])
        ours.step()
        parts = [x.tensor_split(module.data_ranks), y.tensor_split(module.data_ranks)]
        each = [heads_loss(plain(a), b) for a, b in zip(*parts, strict=True)]
        expected = torch.stack(each).mean()
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        losses.append((found.item(), expected.item()))
    return {"losses": losses, "apart": apart(module, plain)}


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
    found["loss"] = told(lambda: module.step(own))
    return found


def refused() -> dict[str, str]:
    """Returns the messages for what a loss outside cannot be combined with."""
    x, y = data(0), data(1)
    module = layers(0, WIDTH, WIDTH)
    heads = Heads()
    parts = parallelize(module, (x,), k=2).train()
    single = layers(0, WIDTH, WIDTH).float()
    return {
        "labels": told(lambda: parallelize(module, (x,), labels=y)),
        "check": told(lambda: parallelize(module, (x,), check="step")),
        "f16": told(lambda: parallelize(single, (x.float(),), dtype="f16")),
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
