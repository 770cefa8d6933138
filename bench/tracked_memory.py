"""
The simulated peak of memory beside the peak that PyTorch's own trackers count:

    python bench/tracked_memory.py [--only 'fsdp*']

Each row trains a model for two steps of AdamW in plain PyTorch and asks for the peak of the
second: `FSDPMemTracker` for `fully_shard` of each layer and of the model, on rank 0 of 8 in a
fake process group, and `MemTracker` for one device and for `DistributedDataParallel` on 2 gloo
ranks. All tensors are on CPU. Beside it is the simulated peak of the program that is imported
from the same module, with the profile `A100-pytorch`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from report import table

LENGTH = 512


@dataclass(frozen=True)
class Configuration:
    """
    A row: the wrapper (`plain`, `ddp` or `fsdp`), the model (`gpt` or `llama`), and its sizes.
    `batch` is the number of sequences of a device, `checkpoint` says whether each layer is computed
    again in the backward, `loss` is the type to which logits are cast for the loss, `views` whether
    gradients are views of DDP's buckets (`gradient_as_bucket_view`), and `mixed` whether FSDP
    gathers parameters of 32 bits in bf16 and reduces gradients in 32 (`MixedPrecisionPolicy`). The
    program of the latter has parameters in bf16, copies in 32 bits, and gradients in 32.
    """

    name: str
    wrapper: str
    model: str = "gpt"
    layers: int = 4
    width: int = 512
    words: int = 4096
    batch: int = 2
    dtype: str = "float32"
    checkpoint: bool = False
    loss: str = "float32"
    views: bool = False
    mixed: bool = False

    @property
    def devices(self) -> int:
        return {"plain": 1, "ddp": 2, "fsdp": 8}[self.wrapper]


CONFIGURATIONS = [
    Configuration("plain", "plain"),
    Configuration("ddp", "ddp"),
    Configuration("ddp, views of buckets", "ddp", views=True),
    Configuration("ddp, many words", "ddp", words=32768),
    Configuration("ddp, 12 layers", "ddp", layers=12, batch=1),
    Configuration(
        "ddp, 12 layers, checkpoint", "ddp", layers=12, batch=1, checkpoint=True
    ),
    Configuration("ddp, bf16", "ddp", dtype="bfloat16"),
    Configuration("ddp, LLaMA", "ddp", model="llama", words=32000),
    Configuration("ddp, width 1024", "ddp", width=1024, batch=1),
    Configuration("fsdp", "fsdp"),
    Configuration("fsdp, width 1024", "fsdp", width=1024, batch=1),
    Configuration("fsdp, many words", "fsdp", words=32768),
    Configuration("fsdp, checkpoint", "fsdp", checkpoint=True),
    Configuration("fsdp, many words, checkpoint", "fsdp", words=32768, checkpoint=True),
    Configuration("fsdp, 12 layers", "fsdp", layers=12, batch=1),
    Configuration("fsdp, batch 8", "fsdp", layers=2, batch=8),
    Configuration("fsdp, bf16", "fsdp", words=32768, dtype="bfloat16"),
    Configuration("fsdp, mixed precision", "fsdp", words=32768, mixed=True),
    Configuration(
        "fsdp, loss in bf16", "fsdp", words=32768, dtype="bfloat16", loss="bfloat16"
    ),
    Configuration("plain, LLaMA", "plain", model="llama", words=32000),
    Configuration(
        "fsdp, LLaMA, checkpoint", "fsdp", "llama", words=32000, checkpoint=True
    ),
    Configuration("fsdp, LLaMA", "fsdp", model="llama", words=32000),
]


def built(row: Configuration) -> Any:
    """Returns the model of a row, which returns the loss of its words and labels."""
    import torch
    from torch import nn
    from torch.nn import functional

    width, heads = row.width, row.width // 64

    def loss(logits: Any, labels: Any) -> Any:
        logits = logits.to(getattr(torch, row.loss)).flatten(0, 1)
        return functional.cross_entropy(logits, labels.flatten())

    if row.model == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=row.words,
            hidden_size=width,
            intermediate_size=width * 43 // 16,
            num_hidden_layers=row.layers,
            num_attention_heads=heads,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )

        class Llama(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.llama = LlamaForCausalLM(config)
                self.layers = self.llama.model.layers

            def forward(self, words: Any, labels: Any) -> Any:
                return loss(self.llama(input_ids=words).logits, labels)

        return Llama().to(getattr(torch, row.dtype))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.proj = (
                nn.Linear(width, width) for _ in range(4)
            )
            self.c_fc = nn.Linear(width, 4 * width)
            self.c_proj = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            h = self.ln_1(x)
            q, k, v = (
                made(h).unflatten(-1, (heads, -1)).transpose(1, 2)
                for made in (self.query, self.key, self.value)
            )
            h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(h.transpose(1, 2).flatten(2))
            h = functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
            return x + self.c_proj(h)

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(row.words, width)
            self.wpe = nn.Embedding(LENGTH, width)
            self.layers = nn.ModuleList(Block() for _ in range(row.layers))
            self.ln_f = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, row.words, bias=False)

        def forward(self, words: Any, labels: Any) -> Any:
            x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
            for layer in self.layers:
                x = layer(x)
            return loss(self.lm_head(self.ln_f(x)), labels)

    return Gpt().to(getattr(torch, row.dtype))


def tracked(row: Configuration, rank: int, store: str) -> int:
    """Trains on this rank, and returns the peak bytes that the tracker counted."""
    import torch
    import torch.distributed as dist
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        checkpoint_wrapper,
    )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    if row.wrapper == "ddp":
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=row.devices
        )
    else:
        dist.init_process_group(
            "fake", rank=rank, world_size=row.devices, store=FakeStore()
        )
    model = built(row)
    if row.checkpoint:
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    if row.wrapper == "fsdp":
        kinds = (torch.bfloat16, torch.float32) if row.mixed else (None, None)
        policy = MixedPrecisionPolicy(*kinds, cast_forward_inputs=False)
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif row.wrapper == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=row.views)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    words = torch.zeros(row.batch, LENGTH, dtype=torch.long)
    labels = words.clone()
    if row.wrapper == "fsdp":
        tracker: Any = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((words, labels))
    else:
        tracker = MemTracker()
        tracker.track_external(model, optimizer, words, labels)
    with tracker:
        for step in range(2):
            loss = model(words, labels)
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            if not step:
                tracker.reset_mod_stats()
    peak: dict[Any, dict[Any, int]] = tracker.get_tracker_snapshot("peak")
    dist.destroy_process_group()
    return max(kinds["Total"] for kinds in peak.values())


def theirs(row: Configuration) -> int:
    """Returns the peak bytes of a row in processes of its own, that of rank 0."""
    ranks = row.devices if row.wrapper == "ddp" else 1
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), store, row.name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{row.name}: a rank failed")
    return json.loads(printed[0].splitlines()[-1])


def ours(row: Configuration) -> int:
    """Returns the peak bytes that the simulator predicts for a row."""
    import torch

    import distir

    words = torch.zeros(row.batch * row.devices, LENGTH, dtype=torch.long)
    model = built(row).to(torch.bfloat16) if row.mixed else built(row)
    program = distir.import_model(
        model,
        (words, words.clone()),
        training=True,
        optimizer="adamw",
        # PyTorch's AdamW keeps its states in the type of the parameters, and no copies of these.
        master_weights=row.mixed,
        gradient_dtype="f32" if row.mixed else "parameter",
        loss="none",
        check=False,
    )
    options: dict[str, Any] = {}
    if row.wrapper == "fsdp":
        options = {"zero": 3, "overlap": True}
    if row.checkpoint:
        options["checkpoint"] = "whole"
    found = distir.simulate(
        program,
        cluster="dgx-a100",
        devices=row.devices,
        d=row.devices,
        profile="A100-pytorch",
        **options,
    )
    return max(found.simulation.peak_memory_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank, store, name = arguments.rank
        (row,) = (row for row in CONFIGURATIONS if row.name == name)
        print(tracked(row, int(rank), store))
        return
    rows: list[list[str]] = []
    for row in CONFIGURATIONS:
        if fnmatch(row.name, arguments.only):
            real, simulated = theirs(row), ours(row)
            error = simulated / real - 1
            sizes = [f"{size / 1e6:.1f} MB" for size in (real, simulated)]
            rows.append([row.name, *sizes, f"{error:+.1%}"])
            print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    print(table(["run", "tracked", "simulated", "error"], rows))


if __name__ == "__main__":
    main()
