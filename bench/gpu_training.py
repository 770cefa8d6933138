"""
`distir.parallelize` beside PyTorch's own training of GPT-2 on one GPU: the section `training`
of `make gpu`.

Both sides take the same batches in the same process, one after the other, with fused AdamW;
`ways` are what a user changes: mixed precision, dropout, recomputation, micro-batches. A ratio
is that of the medians of the time of a step. The losses of step 4 must agree.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from report import table
from torch import nn

import distir

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Way:
    """
    A way to train: with `autocast` around the call or options of `parallelize`, with the
    losses' relative difference that its precision allows. By hand it is `autocast` where
    `dtype` is an option, `torch.compile` where `compiled` is, checkpoints of the layers where
    `checkpoint` is, and a loop over parts of the batch where `k` is.
    """

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dropout: float = 0.0
    autocast: bool = False
    agreement: float = 2e-3


WAYS = {
    "f32": Way(agreement=1e-4),
    'dtype="bf16"': Way({"dtype": "bf16"}),
    'dtype="bf16", dropout 0.1': Way({"dtype": "bf16"}, 0.1, agreement=1e-2),
    'dtype="bf16", checkpoint="full"': Way({"dtype": "bf16", "checkpoint": "full"}),
    'dtype="bf16", k=4': Way({"dtype": "bf16", "k": 4}),
    "under `torch.autocast`": Way(autocast=True),
    'float8="tensor"': Way({"dtype": "bf16", "float8": "tensor"}, agreement=1e-2),
    'dtype="bf16", compiled': Way({"dtype": "bf16", "compiled": True}),
    'dtype="bf16", dropout 0.1, compiled': Way(
        {"dtype": "bf16", "compiled": True}, 0.1, agreement=1e-2
    ),
    'float8="tensor", compiled': Way(
        {"dtype": "bf16", "float8": "tensor", "compiled": True}, agreement=1e-2
    ),
    'float8="row", compiled': Way(
        {"dtype": "bf16", "float8": "row", "compiled": True}, agreement=1e-2
    ),
}
MIXED = ("dtype", "float8")
COMPARED = 4
"""The step whose losses are compared; later, differences in rounding have grown too much."""


@dataclass(frozen=True)
class Trained:
    """Seconds of a step, largest bytes of memory and the loss of step `COMPARED` of a run."""

    step_s: float
    peak: int
    loss: float


def gpt2(dropout: float, small: bool) -> nn.Module:
    """Returns GPT-2 (124M) with the same weights each time, or a small one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    drops: dict[str, Any] = dict(
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout
    )
    size: dict[str, Any] = {}
    if small:
        size = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=256)
    ends: dict[str, Any] = dict(bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **drops, **size, **ends))


def batch(device: torch.device, small: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns words and the words that follow them."""
    torch.manual_seed(1)
    shape, vocab = ((4, 16), 256) if small else ((8, 512), 50257)
    words = torch.randint(0, vocab, (2, *shape)).to(device)
    return words[0], words[1]


def timed(device: torch.device, step: Step, steps: int) -> Trained:
    """Runs a step again and again, the first three to warm up."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    times: list[float] = []
    losses: list[torch.Tensor] = []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step().detach())
        if on_gpu:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
    return Trained(median(times[3:]), peak, float(losses[COMPARED - 1]))


def by_hand(way: Way, device: torch.device, small: bool, steps: int) -> Trained:
    """Trains as PyTorch's users do on one device."""
    model = gpt2(way.dropout, small).to(device).train()
    words, labels = batch(device, small)
    mixed = way.autocast or any(name in way.options for name in MIXED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if "checkpoint" in way.options:
        model.gradient_checkpointing_enable()
    run: Any = torch.compile(model) if "compiled" in way.options else model
    parts = way.options.get("k", 1)

    def step() -> torch.Tensor:
        total = torch.zeros((), device=device)
        for own, targets in zip(words.chunk(parts), labels.chunk(parts), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                logits = run(own).logits
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return timed(device, step, steps)


def by_distir(way: Way, device: torch.device, small: bool, steps: int) -> Trained:
    """Trains the same through `distir.parallelize`."""
    model = gpt2(way.dropout, small).to(device)
    words, labels = batch(device, small)
    options: dict[str, Any] = dict(way.options)
    parallel = distir.parallelize(
        model, (words,), loss="cross_entropy", check="off", **options
    )
    parallel.train()
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=way.autocast):
            loss = parallel(words, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return timed(device, step, steps)


def beside_pytorch(small: bool, log: Callable[[str], None]) -> str:
    """Returns the table. A way whose losses disagree is named with both."""
    device = torch.device("cpu" if small else "cuda")
    steps = 5 if small else 13
    rows: list[list[str]] = []
    wrong: list[str] = []
    for name, way in WAYS.items():
        log(f"training, {name}")
        if small and {"float8", "compiled"} & way.options.keys():
            continue
        sides: list[Trained] = []
        for side in (by_hand, by_distir):
            gc.collect()
            torch.cuda.empty_cache()
            torch.compiler.reset()
            try:
                sides.append(side(way, device, small, steps))
            except RuntimeError as error:  # also those of PyTorch's compiler
                wrong.append(f"{name}: {side.__name__} fails: {error}")
                break
        if len(sides) < 2:
            continue
        theirs, ours = sides
        if abs(ours.loss - theirs.loss) > way.agreement * abs(theirs.loss):
            wrong.append(
                f"{name}: step {COMPARED} gives {ours.loss}, by hand {theirs.loss}"
            )
        rows.append(
            [
                name if "`" in name else f"`{name}`",
                f"{ours.step_s * 1e3:.1f} ms",
                f"{theirs.step_s * 1e3:.1f} ms",
                f"{ours.step_s / theirs.step_s:.2f}",
                f"{ours.peak / 1e9:.2f} GB",
                f"{theirs.peak / 1e9:.2f} GB",
            ]
        )
    head = ["way", "step", "by hand", "ours / by hand", "memory", "by hand"]
    told = "".join(f"\n- **{line}**" for line in wrong)
    return (
        "GPT-2 (124M), 8 x 512 words, fused AdamW, `distir.parallelize` in one process; by "
        "hand eager or compiled, under `torch.autocast` where types are mixed, with the checkpoints "
        "of `transformers`, and in a loop over micro-batches.\n\n"
        f"{table(head, rows)}\n{told}"
    )
