"""
Plans the training of LLaMA-3 70B on 64 H100s from its configuration alone, and says how fast
it would be: no weights, no GPU, nothing to download.

    python examples/plan_llama_70b.py                   # searches: layouts, stages, ZeRO, ...
    python examples/plan_llama_70b.py --model 405b --devices 16384 --batch 2048 -d 128 -t 8 -p 16 -k 16

With degrees it distributes and simulates that one plan instead of searching.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import distir

MODELS = {
    "70b": (80, 64, 8192, 28672),
    "405b": (126, 128, 16384, 53248),
    "tiny": (4, 8, 64, 128),
}
"""Layers, heads, width and width of the MLPs: the sizes of the models of the LLaMA-3 family, and of one to try the script with."""


def llama(name: str) -> torch.nn.Module:
    """The model on the meta device, in bf16: shapes without values."""
    layers, heads, width, wide = MODELS[name]
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        use_cache=False,
    )
    with torch.device("meta"):
        module: Any = LlamaForCausalLM(config)
    return module.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, default="70b")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument(
        "--time-limit", type=float, help="seconds of the search (default: any)"
    )
    parser.add_argument("--save", type=Path, help="where to write the plan")
    for degree in "dtpk":
        parser.add_argument(f"-{degree}", type=int)
    options = parser.parse_args()

    def told(what: str) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20
        print(
            f"[{time.perf_counter() - start:.0f} s, {seconds:.0f} s of CPU, "
            f"{memory:.1f} GiB] {what}",
            flush=True,
        )

    start = time.perf_counter()
    words = torch.zeros(options.batch, options.seq, dtype=torch.int64, device="meta")
    module = llama(options.model)
    step = distir.import_model(module, (words,), training=True, loss="cross_entropy")
    told(
        f"imported {sum(p.numel() for p in module.parameters()) / 1e9:.1f} B parameters"
    )
    degrees = {n: d for n in "dtpk" if (d := getattr(options, n)) is not None}
    if degrees:
        plan = None
        dist = distir.distribute(
            step,
            cluster="dgx-h100",
            devices=options.devices,
            zero=1,
            checkpoint="full",
            **degrees,
        )
    else:
        plan = distir.search(
            step,
            cluster="dgx-h100",
            devices=options.devices,
            auto=True,
            time_limit=options.time_limit,
            jobs=1,
        )
        told(f"searched: {plan}")
        print(plan.explain())
        dist = distir.distribute(step, plan=plan)
    told(str(distir.simulate(dist)))
    if plan is not None and options.save is not None:
        plan.save(options.save)


if __name__ == "__main__":
    main()
