"""Training scripts of Accelerate, on one process and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, IterableDataset

from distir.parallel.parallelize import parallelize
from support.parallel_shapes import message_of, part
from support.trainer_models import (
    BATCH,
    Chain,
    Sentences,
    apart,
    example,
    parallel_chain,
    under_torchrun,
    values,
)

COUNT, STEPS = 43, 2
"""Samples, the last batch of which has three; batches of an optimizer's step."""


class Stream(IterableDataset[Any]):
    """The samples one after the other, without numbers."""

    def __iter__(self) -> Any:
        data = Sentences(COUNT)
        return (data[i] for i in range(COUNT))


def loader(parts: int, kind: str) -> DataLoader[Any]:
    if kind == "stream":
        return DataLoader(Stream(), BATCH // parts)
    torch.manual_seed(5)
    return DataLoader(Sentences(COUNT), BATCH // parts, shuffle=kind == "shuffled")


def script(accelerator: Any, module: Any, parts: int, kind: str) -> dict[str, Any]:
    """Two epochs, with accumulation, clipping, a schedule and an evaluation."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 12 * parts)
    module, optimizer, scheduler, train, valid = accelerator.prepare(
        module,
        optimizer,
        scheduler,
        loader(parts, kind),
        DataLoader(Sentences(13, seed=1), BATCH // parts),
    )
    losses: list[float] = []
    norms: list[float] = []
    for _ in range(2):
        module.train()
        for batch in train:
            with accelerator.accumulate(module):
                output = module(**batch)
                loss = output["loss"] if isinstance(output, dict) else output
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(module.parameters(), 0.3)
                    norms.append(float(norm))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    module.eval()
    guesses: list[torch.Tensor] = []
    with torch.no_grad():
        for batch in valid:
            output = module(**batch)
            guesses.append(accelerator.gather_for_metrics(output["logits"]))
            labels = accelerator.gather_for_metrics(batch["labels"])
            assert len(labels) == len(guesses[-1])
    return {
        "losses": losses,
        "norms": norms,
        "guesses": torch.cat(guesses).numpy(),
        "rate": scheduler.get_last_lr()[0],
        "values": values(module),
        "total": float(accelerator.reduce(torch.tensor(1.0), "sum")),
    }


def trained_plainly(kind: str) -> dict[str, Any]:
    from accelerate import Accelerator

    return script(
        Accelerator(cpu=True, gradient_accumulation_steps=STEPS), Chain(), 1, kind
    )


def trained(options: dict[str, Any], kind: str) -> dict[str, Any]:
    under_torchrun()
    from distir.trainers import Accelerator

    module = parallel_chain(options)
    accelerator = Accelerator(gradient_accumulation_steps=STEPS)
    return script(accelerator, module, module.data_ranks, kind) | {
        "parts": module.data_ranks
    }


def resumed(options: dict[str, Any], other: dict[str, Any], folder: Path) -> Any:
    """Losses of steps after a state was saved, and after it was loaded under another plan."""
    under_torchrun()
    from distir.trainers import Accelerator

    found: list[list[float]] = []
    for plan in (options, other):
        accelerator = Accelerator()
        module = parallel_chain(plan)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        module, optimizer, data = accelerator.prepare(
            module, optimizer, loader(module.data_ranks, "ordered")
        )
        batches = list(data)

        def steps(batches: list[Any], module: Any, optimizer: Any) -> list[float]:
            losses: list[float] = []
            for batch in batches:
                optimizer.zero_grad()
                loss = module(**batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        if not found:
            steps(batches[:2], module, optimizer)
            accelerator.save_state(str(folder))
            accelerator.save_model(module, str(folder / "whole"))
            accelerator.wait_for_everyone()
            whole = load_file(folder / "whole" / "model.safetensors")
            assert apart(values(module), {n: t.numpy() for n, t in whole.items()}) == 0
        else:
            accelerator.load_state(str(folder))
        found.append(steps(batches[2:4], module, optimizer))
    return found


def in_16_bits() -> dict[str, float]:
    """Losses of a batch in f32, under `torch.autocast`, and as Accelerate prepares it."""
    under_torchrun()
    from distir.trainers import Accelerator

    module = parallelize(Chain().float(), (), example(), d=2).train()
    own = {n: part(module, x) for n, x in example().items()}
    found = {"f32": module(**own).item()}
    with torch.autocast("cpu", torch.bfloat16):
        found["autocast"] = module(**own).item()
    Accelerator(mixed_precision="bf16").prepare(module)
    found["prepared"] = module(**own).item()
    return found


def refused() -> dict[str, str]:
    """The messages for what Accelerate cannot do with a parallel module."""
    under_torchrun()
    import accelerate
    from accelerate.state import AcceleratorState

    from distir.trainers import Accelerator

    found: dict[str, str] = {}
    found["fp16"] = message_of(lambda: Accelerator(mixed_precision="fp16"))
    AcceleratorState._reset_state(reset_partial_state=True)
    theirs = accelerate.Accelerator(cpu=True)
    module = parallel_chain(dict(t=2))
    found["theirs"] = message_of(lambda: theirs.prepare(module))
    ours = Accelerator()
    found["data first"] = message_of(lambda: ours.prepare(loader(1, "ordered")))
    found["module"] = message_of(lambda: ours.prepare(torch.nn.Linear(2, 2)))
    split = Accelerator(
        dataloader_config=accelerate.DataLoaderConfiguration(split_batches=True)
    )
    found["split"] = message_of(lambda: split.prepare(module, loader(1, "ordered")))
    sampled = DataLoader(
        Sentences(8), 2, sampler=module.sampler(Sentences(8), shuffle=False)
    )
    found["sampler"] = message_of(lambda: ours.prepare(module, sampled))
    data = example()
    apart = data | {"input_ids": data["input_ids"].roll(module._program.rank, 0)}
    found["apart"] = message_of(lambda: module(**apart))
    named = parallelize(torch.nn.Linear(4, 4), (torch.randn(8, 4),), loss="mse", t=2)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(named._program.rank))
    found["apart in floats"] = message_of(lambda: named(x, x))
    return found
