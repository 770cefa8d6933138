"""
Trains the GPT-2 of train_gpt2.py with transformers' Trainer.

    torchrun --nproc-per-node 4 examples/train_with_trainer.py   # d2 t2
    python examples/train_with_trainer.py --plain                # transformers alone

Both print the same losses.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from train_gpt2 import BATCH, LENGTH, corpus, small_gpt2
from transformers import TrainingArguments

import distir
from distir.trainers import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", type=int, default=2, help="data-parallel degree")
    parser.add_argument("-t", type=int, default=2, help="tensor-parallel degree")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plain", action="store_true", help="transformers alone")
    options = parser.parse_args()

    model: Any = small_gpt2().train()
    kind: Any = transformers.Trainer
    if not options.plain:
        words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        example = {"input_ids": words, "labels": words}
        model = distir.parallelize(model, (), example, d=options.d, t=options.t)
        kind = Trainer

    arguments = TrainingArguments(
        output_dir="trained",
        per_device_train_batch_size=BATCH // getattr(model, "data_ranks", 1),
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    data = [{"input_ids": words, "labels": words} for words, _ in corpus()]
    trainer = kind(model=model, args=arguments, train_dataset=data)
    trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row and trainer.is_world_process_zero():
            print(f"step {row['step']:4}  loss {row['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
