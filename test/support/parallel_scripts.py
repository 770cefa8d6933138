"""Training scripts that tests run on several ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from distir.parallel.parallel_module import ParallelModule
from distir.parallel.parallelize import parallelize

BATCH, LENGTH, WORDS = 8, 8, 32

Options = dict[str, Any]


def tiny_gpt(dropout: float = 0.0, layers: int = 2) -> nn.Module:
    """
    Returns a GPT-2; its fused projections are split in runs, its head is tied.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers,
            n_embd=32,
            n_head=4,
            vocab_size=WORDS,
            n_positions=LENGTH,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the global batch of a step: tokens, and the tokens that follow them."""
    generator = torch.Generator().manual_seed(step)
    shape = (BATCH, LENGTH)
    return (
        torch.randint(0, WORDS, shape, generator=generator),
        torch.randint(0, WORDS, shape, generator=generator),
    )


def own_part(parallel: ParallelModule, whole: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a batch."""
    return whole.tensor_split(parallel.data_ranks)[parallel.data_rank]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all of a tensor, of which this rank may have a part."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cross_entropy(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """
    Returns the cross-entropy of Hugging Face's outputs or of logits, whatever their
    dimensions.
    """
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def oddly_laid_out(module: nn.Module) -> list[str]:
    """
    Returns the parameters whose gradients lie in memory in another order, which optimizers
    that are fused take for an error on GPUs.
    """
    strides = {
        name: [_own(x).stride() for x in (parameter, parameter.grad)]
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return [name for name, (own, given) in strides.items() if own != given]


def _own(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def train(
    module: nn.Module,
    loss: Callable[[int], torch.Tensor],
    clip: Callable[[float], torch.Tensor],
    steps: range,
) -> list[tuple[float, float]]:
    """
    Trains with AdamW and a cosine schedule; returns the loss and the norm of the gradients
    of each step.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    found: list[tuple[float, float]] = []
    for step in steps:
        value = loss(step)
        value.backward()
        assert not oddly_laid_out(module)
        norm = clip(0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        found.append((value.item(), norm.item()))
    return found


def train_plainly(module: nn.Module, steps: range) -> list[tuple[float, float]]:
    """Trains with PyTorch alone, on the whole batch."""

    def loss(step: int) -> torch.Tensor:
        words, labels = batch(step)
        return cross_entropy(module(words), labels)

    module.train()
    parameters = list(module.parameters())
    return train(module, loss, lambda n: nn.utils.clip_grad_norm_(parameters, n), steps)


def train_parallel(parallel: ParallelModule, steps: range) -> list[tuple[float, float]]:
    """Trains as a script on each rank does."""

    def loss(step: int) -> torch.Tensor:
        return parallel(*(own_part(parallel, part) for part in batch(step)))

    parallel.train()
    return train(parallel, loss, parallel.clip_grad_norm_, steps)


def worst_difference(parallel: ParallelModule, plain: nn.Module) -> float:
    """Returns the largest difference of a parameter's element on this rank."""
    reference = dict(plain.named_parameters())
    return max(
        (whole(parameter) - reference[name]).abs().max().item()
        for name, parameter in parallel.named_parameters()
    )


def tiny_llama(layers: int = 2) -> nn.Module:
    """Returns a LLaMA without a tied head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=layers,
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=WORDS,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


def meta_run(
    options: Options, fake: bool = False
) -> dict[str, list[tuple[float, float]]]:
    """
    Trains a model whose parameters have no values, on the meta device or `fake` ones, in
    parallel, and one that begins with the values that these are given with plain PyTorch;
    returns losses and norms of gradients.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() if fake else torch.device("meta"):
        module = tiny_llama(layers=1)
    words, _ = batch(0)
    parallel = parallelize(module, (words,), loss=cross_entropy, seed=3, **options)
    assert all(not parameter.is_meta for parameter in parallel.parameters())
    plain = tiny_llama(layers=1)
    plain.load_state_dict({n: whole(p) for n, p in parallel.named_parameters()})
    found = train_parallel(parallel, range(2))
    expected = train_plainly(plain, range(2))
    if options:
        parallel.eval()
        assert torch.isfinite(parallel(own_part(parallel, words)).logits).all()
    return {"found": found, "expected": expected}


def meta_buffer(options: Options) -> str:
    """Returns the error about statistics on the meta device."""
    from distir.errors import DistIRError

    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    try:
        parallelize(module, (torch.ones(4, 4),), loss="mse", **options)
    except DistIRError as error:
        return str(error)
    return ""


def training_run(
    options: Options, layers: int = 2, evaluates: bool = True
) -> dict[str, Any]:
    """
    Trains GPT-2 in parallel and on one process and, if asked to, evaluates it afterwards,
    which compiles another package; returns what a test compares.
    """
    model, plain = tiny_gpt(layers=layers), tiny_gpt(layers=layers)
    words, _ = batch(0)
    parallel = parallelize(model, (words,), loss="cross_entropy", **options)
    steps = range(3)
    found = train_parallel(parallel, steps)
    expected = train_plainly(plain, steps)
    names = [name for name, _ in parallel.named_parameters()]
    result: dict[str, Any] = {
        "found": found,
        "expected": expected,
        "parameters": worst_difference(parallel, plain),
        "names": names,
        "all names": [name for name, _ in plain.named_parameters()],
        "all bytes": sum(p.nbytes for p in plain.parameters()),
        "bytes": sum(
            p.to_local().nbytes for p in parallel.parameters() if isinstance(p, DTensor)
        ),
    }
    if evaluates:
        parallel.eval()
        plain.eval()
        with torch.no_grad():
            output = parallel(own_part(parallel, words))
            logits = own_part(parallel, plain(words).logits)
        result["output"] = (output.logits - logits).abs().max().item()
        result["kind"] = type(output).__name__
    return result


def dropout_run(options: Options) -> list[tuple[float, float]]:
    """Trains GPT-2 with dropout."""
    words, _ = batch(0)
    module = tiny_gpt(0.5, layers=1)
    parallel = parallelize(module, (words,), loss="cross_entropy", **options)
    return train_parallel(parallel, range(2))


class Frozen(nn.Module):
    """
    A convolution that is not trained, batch normalisation, and a head that is trained.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Conv2d(3, 4, 3).requires_grad_(False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, images: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Returns two numbers for each image."""
        found = torch.relu(self.norm(self.backbone(images)))
        return self.head(found.mean((2, 3))) * scale


def mean_of_absolutes(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """A loss that is a Python function."""
    return (output - wanted).abs().mean()


def frozen_run(options: Options) -> dict[str, Any]:
    """Trains `Frozen` in parallel and on one process, with a loss that is a function."""
    model, plain = Frozen(), Frozen().train()
    images, wanted = torch.randn(BATCH, 3, 6, 6), torch.randn(BATCH, 2)
    dist.broadcast(images, 0)
    dist.broadcast(wanted, 0)
    kwargs = {"scale": 2.0}
    parallel = parallelize(model, (images,), kwargs, loss=mean_of_absolutes, **options)
    parallel.train()
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    found: list[float] = []
    expected_losses: list[float] = []
    for _ in range(2):
        parts = (own_part(parallel, t) for t in (images, wanted))
        found.append(parallel.step(*parts, scale=2.0).item())
        loss = mean_of_absolutes(plain(images, scale=2.0), wanted)
        loss.backward()
        expected_losses.append(loss.item())
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    state, expected = parallel.state_dict(), plain.state_dict()
    parallel.eval()
    plain.eval()
    output = parallel(own_part(parallel, images), scale=2.0)
    return {
        "found": found,
        "expected": expected_losses,
        "names": set(state),
        "all names": set(expected),
        "state": max(
            (whole(state[n]).double() - expected[n].double()).abs().max().item()
            for n in state
        ),
        "backbone": all(
            torch.equal(whole(state[n]), Frozen().state_dict()[n])
            for n in state
            if n.startswith("backbone")
        ),
        "output": (output - own_part(parallel, plain(images, scale=2.0)))
        .abs()
        .max()
        .item(),
    }


def samples(options: Options, count: int) -> list[int]:
    """Returns which samples of a dataset a rank sees in an epoch, whatever the model."""
    rows = torch.ones(BATCH, 4)
    parallel = parallelize(nn.Linear(4, 4), (rows,), loss="mse", **options)
    dataset = torch.utils.data.TensorDataset(torch.arange(count))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=2, sampler=parallel.sampler(dataset, seed=1)
    )
    return [int(sample) for (part,) in loader for sample in part]


def _optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with three groups; a stage has no member of one of them."""
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "vectors": [], "words": []}
    for name, parameter in module.named_parameters():
        if "wte" in name or "wpe" in name:
            groups["words"].append(parameter)
        else:
            groups["vectors" if parameter.ndim < 2 else "matrices"].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups["matrices"], "weight_decay": 0.2},
            {"params": groups["words"], "lr": 3e-3},
            {"params": groups["vectors"], "weight_decay": 0.0, "lr": 2e-3},
        ],
        lr=1e-3,
        eps=1e-4,
    )


def _step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor
) -> float:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _parallel_step(
    parallel: ParallelModule, optimizer: torch.optim.Optimizer, step: int
) -> float:
    parts = (own_part(parallel, part) for part in batch(step))
    return _step(parallel, optimizer, parallel(*parts))


def saved(options: Options, folder: Path) -> list[float]:
    """
    Trains, saves a checkpoint of the parameters and the optimizer's states, and returns the
    losses of two more steps.
    """
    words, _ = batch(0)
    parallel = parallelize(
        tiny_gpt(layers=1), (words,), loss="cross_entropy", **options
    )
    optimizer = _optimizer(parallel.train())
    for step in range(2):
        _parallel_step(parallel, optimizer, step)
    for group in optimizer.param_groups:  # as a schedule changes them
        group["lr"] *= 0.5
    model, states = get_state_dict(parallel, optimizer)
    content = {"model": model, "optimizer": states}
    state_dict_saver.save(content, checkpoint_id=folder)
    return [_parallel_step(parallel, optimizer, step) for step in range(2, 4)]


def resumed(options: Options, folder: Path) -> list[float]:
    """
    Reads the checkpoint under another plan, and returns the losses of these two steps.
    """
    words, _ = batch(0)
    source = tiny_gpt(layers=1)
    for parameter in source.parameters():
        parameter.data.zero_()
    parallel = parallelize(source, (words,), loss="cross_entropy", **options)
    optimizer = _optimizer(parallel.train())
    model, states = get_state_dict(parallel, optimizer)
    state_dict_loader.load({"model": model, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(parallel, optimizer, model_state_dict=model, optim_state_dict=states)
    return [_parallel_step(parallel, optimizer, step) for step in range(2, 4)]


def resumed_plainly(folder: Path) -> list[float]:
    """Reads the checkpoint into Hugging Face's own model, and returns these losses."""
    module = tiny_gpt(layers=1)
    for parameter in module.parameters():
        parameter.data.zero_()
    optimizer = _optimizer(module.train())
    model, states = get_state_dict(module, optimizer)
    state_dict_loader.load({"model": model, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(module, optimizer, model_state_dict=model, optim_state_dict=states)
    found: list[float] = []
    for step in range(2, 4):
        words, labels = batch(step)
        found.append(_step(module, optimizer, cross_entropy(module(words), labels)))
    return found


def refusals() -> list[str]:
    """Returns the errors for calls that are impossible."""
    from distir.errors import DistIRError

    words, labels = batch(0)
    small = functools.partial(tiny_gpt, layers=1)
    parallel = parallelize(small(), (words,), loss="cross_entropy", d=2).train()
    found: list[str] = []
    half, own = own_part(parallel, words), own_part(parallel, labels)
    calls: list[Callable[[], Any]] = [
        lambda: parallelize(small(), (words,), loss="cross_entropy", d=4),
        lambda: parallelize(small(), (words,), d=2),
        lambda: parallel(words, labels),
        lambda: parallel(half[:3], own[:3]),
        lambda: parallel(half[:, :4], own),
        lambda: parallel(half.int(), own),
        lambda: parallel(half, own, attention_mask=torch.ones_like(half)),
        lambda: parallel(half),
        lambda: parallel(input_ids=half, labels=own),
        lambda: parallelize(small(), (words,), loss="crossentropy", d=2),
    ]
    for call in calls:
        try:
            call()
            found.append("nothing")
        except DistIRError as error:
            found.append(str(error))
    return found


def planned_refusals(folder: Path) -> list[str]:
    """Returns the errors for plans, in files of a folder, that do not fit."""
    from distir.errors import DistIRError

    words, _ = batch(0)
    plan = folder / "plan.json"
    given: list[Options] = [
        dict(plan=plan, t=2, cluster="dgx2"),
        dict(plan=plan),
        dict(plan=folder / "model.json"),
        dict(plan=folder / "nowhere.json"),
    ]
    found: list[str] = []
    for options in given:
        try:
            module = tiny_gpt(layers=1)
            parallelize(module, (words,), loss="cross_entropy", **options)
            found.append("nothing")
        except DistIRError as error:
            found.append(str(error))
    return found
