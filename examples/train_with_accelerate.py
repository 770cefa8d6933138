"""
Trains the GPT-2 of train_gpt2.py with Accelerate, two batches for each step of the optimizer.

    torchrun --nproc-per-node 4 examples/train_with_accelerate.py   # d2 t2
    python examples/train_with_accelerate.py --plain                # Accelerate alone

Both print the same losses.
"""

from __future__ import annotations

import argparse
from typing import Any

import accelerate
import torch
from torch.utils.data import DataLoader
from train_gpt2 import BATCH, LENGTH, corpus, small_gpt2

import distir
from distir.trainers import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", type=int, default=2, help="data-parallel degree")
    parser.add_argument("-t", type=int, default=2, help="tensor-parallel degree")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plain", action="store_true", help="Accelerate alone")
    options = parser.parse_args()

    model: Any = small_gpt2().train()
    kind: Any = accelerate.Accelerator
    if not options.plain:
        words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        example = {"input_ids": words, "labels": words}
        model = distir.parallelize(model, (), example, d=options.d, t=options.t)
        kind = Accelerator

    cpu = not torch.cuda.is_available()
    accelerator = kind(cpu=cpu, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(corpus(), BATCH // getattr(model, "data_ranks", 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (words, _) in zip(range(options.steps), loader, strict=False):
        with accelerator.accumulate(model):
            output = model(input_ids=words, labels=words)
            loss = output.loss if options.plain else output
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"step {step:4}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
