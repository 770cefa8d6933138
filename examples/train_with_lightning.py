"""
Trains the GPT-2 of train_gpt2.py with Lightning; both print the same losses.

    torchrun --nproc-per-node 4 examples/train_with_lightning.py   # d2 t2
    python examples/train_with_lightning.py --plain                # Lightning alone
"""

import argparse
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from train_gpt2 import BATCH, LENGTH, corpus, small_gpt2

import distir
from distir.trainers import DistIRStrategy


class Training(lightning.LightningModule):
    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options

    def configure_model(self) -> None:
        self.model = small_gpt2().train()
        if not self.options.plain:
            words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
            given = (), {"input_ids": words, "labels": words}
            degrees = dict(d=self.options.d, t=self.options.t)
            self.model = distir.parallelize(self.model, *given, **degrees)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        output = self.model(input_ids=batch[0], labels=batch[0])
        loss = output.loss if self.options.plain else output
        self.print(f"step {index:4}  loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"-d": 2, "-t": 2, "--steps": 50}.items():
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    parts, given = 1, dict[str, Any](devices=1, logger=False)
    if not options.plain:
        parts = options.d
        given |= dict(devices=parts * options.t, strategy=DistIRStrategy())
    trainer = lightning.Trainer(max_steps=options.steps, **given)
    trainer.fit(Training(options), DataLoader(corpus(), BATCH // parts))


if __name__ == "__main__":
    main()
