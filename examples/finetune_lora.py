"""
Finetunes adapters (LoRA, with peft) of a small GPT-2 whose own weights stay as they are.

    pip install 'distir[examples]'
    torchrun --nproc-per-node 4 examples/train_gpt2.py --save checkpoint
    torchrun --nproc-per-node 4 examples/finetune_lora.py --base checkpoint --save adapters
    python examples/finetune_lora.py --base checkpoint --plain   # PyTorch alone, one process

Both print the same losses. Weights that require no gradient have none, and no states of the
optimizer: `distir.parallelize` trains what the module says. The adapters are saved as peft
saves them: `peft.PeftModel.from_pretrained(model, "adapters")` reads them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint import state_dict_loader
from torch.utils.data import DataLoader
from train_gpt2 import BATCH, LENGTH, corpus, forever, small_gpt2

import distir

try:
    from peft import LoraConfig, get_peft_model
except ModuleNotFoundError:
    raise SystemExit(
        "the adapters are those of peft: pip install 'distir[examples]'"
    ) from None


def adapted(model: nn.Module, rank: int) -> Any:
    """The model with adapters on its projections of queries, keys and values, all else frozen."""
    torch.manual_seed(1)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return get_peft_model(model, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="a checkpoint of train_gpt2.py")
    parser.add_argument("-d", type=int, default=2, help="data-parallel degree")
    parser.add_argument("--rank", type=int, default=4, help="of the adapters")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    parser.add_argument("--save", type=Path, help="folder for the adapters at the end")
    options = parser.parse_args()

    base = small_gpt2()
    if options.base is not None:
        state = {"model": base.state_dict()}
        state_dict_loader.load(state, checkpoint_id=options.base, no_dist=True)
    dataset, model = corpus(), adapted(base, options.rank)
    if options.plain:
        ranks, sampler, parallel = 1, None, None
    else:
        torch.distributed.init_process_group("gloo")
        words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        world = torch.distributed.get_world_size()
        parallel = distir.parallelize(
            model,
            (words,),
            loss="cross_entropy",
            d=options.d,
            t=world // options.d,
        )
        ranks = parallel.data_ranks
        sampler = parallel.sampler(dataset, shuffle=False)
    trained = parallel or model
    trained.train()
    adapters = {n: p for n, p in trained.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(adapters.values(), lr=1e-2)
    loader = DataLoader(dataset, BATCH // ranks, sampler=sampler, drop_last=True)
    speaks = options.plain or torch.distributed.get_rank() == 0
    if speaks:
        count = sum(p.numel() for p in adapters.values())
        print(f"{count} numbers of {len(adapters)} adapters are trained")
    batches = zip(range(options.steps), forever(loader), strict=False)
    for step, (words, labels) in batches:
        if parallel is not None:
            loss = parallel(words, labels)
        else:
            loss = F.cross_entropy(model(words).logits.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if speaks and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step:4}  loss {loss.item():.4f}", flush=True)
    if options.save is not None:
        if parallel is not None:
            whole = {name: part.full_tensor() for name, part in adapters.items()}
            model.load_state_dict(whole, strict=False)
        if speaks:
            model.save_pretrained(options.save)
    if parallel is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
