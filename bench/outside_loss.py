"""
What a loss that the script computes costs beside one in the program: a GPT-2 with 4 layers of
width 256 on 2 gloo ranks of this machine, one thread each.

    python bench/outside_loss.py [--words 5000] [--layers 4] [--steps 7]

For each plan it prints the median seconds of a step of both, in turns in the same processes, and
the largest number of bytes of live tensors in a step of each, parameters and gradients included
(the slowest and the largest of the ranks). With t it also does so for outputs that stay split
(`sharded_outputs=True`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

RANKS = 2
BATCH, LENGTH = 8, 128
PLANS: list[dict[str, Any]] = [dict(d=2), dict(t=2), dict(d=2, zero=3)]


def rank(words: int, layers: int, steps: int) -> None:
    """Runs on each rank: prints seconds and bytes of each plan as a line of JSON."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from transformers import GPT2Config, GPT2LMHeadModel

    import distir
    from distir.launch.memory_rank import LiveStorages

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def model() -> Any:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=words,
            n_layer=layers,
            n_embd=256,
            n_head=8,
            n_positions=LENGTH,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        return GPT2LMHeadModel(config)

    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(words, (2, BATCH, LENGTH), generator=generator)
    for plan in PLANS:
        inside = distir.parallelize(
            model(), (ids,), loss="cross_entropy", check="off", **plan
        ).train()
        outside = distir.parallelize(model(), (ids,), check="off", **plan).train()
        own = ids.chunk(inside.data_ranks)[inside.data_rank]
        target = labels.chunk(inside.data_ranks)[inside.data_rank]

        def step_inside(inside: Any = inside, own: Any = own, y: Any = target) -> None:
            inside.zero_grad()
            inside(own, y).backward()

        def step_outside(
            outside: Any = outside, own: Any = own, y: Any = target
        ) -> None:
            outside.zero_grad()
            # A variable for the logits would keep them until the end of the backward.
            F.cross_entropy(outside(own).logits.flatten(0, 1), y.flatten()).backward()

        kinds: dict[str, tuple[Any, Callable[[], None]]] = {
            "inside": (inside, step_inside),
            "outside": (outside, step_outside),
        }
        if "t" in plan:
            split = distir.parallelize(
                model(), (ids,), check="off", sharded_outputs=True, **plan
            ).train()

            def step_split(split: Any = split, own: Any = own, y: Any = target) -> None:
                split.zero_grad()
                split.cross_entropy(split(own).logits, y).backward()

            kinds["split"] = split, step_split
        seconds: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(steps + 2):
            for name, (_, step) in kinds.items():
                dist.barrier()
                start = time.perf_counter()
                step()
                dist.barrier()
                seconds[name].append(time.perf_counter() - start)
        found: dict[str, Any] = {"plan": plan}
        for name, (module, step) in kinds.items():
            module.zero_grad()
            storages = LiveStorages("")
            for tensor in (*module.parameters(), *module.buffers()):
                storages.note(tensor)
            with storages:
                step()
            found[name] = statistics.median(seconds[name][2:]), storages.peak
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, found)
        if dist.get_rank() == 0:
            print(json.dumps(every), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=5000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=7)
    given = parser.parse_args()
    if "RANK" in os.environ:
        rank(given.words, given.layers, given.steps)
        return
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"),
                *(str(RANKS), "--master-port", "29533", __file__, *sys.argv[1:]),
            ],
            env={**os.environ, "DISTIR_CACHE": cache, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    for plan, own in zip(PLANS, rows, strict=True):
        text = " ".join(f"{name}={value}" for name, value in plan.items())
        worst = {
            kind: [
                max(column) for column in zip(*(row[kind] for row in own), strict=True)
            ]
            for kind in own[0]
            if kind != "plan"
        }
        seconds, peak = worst["inside"]
        for kind, (own_seconds, own_peak) in worst.items():
            print(
                f"{text:12} {kind:7} step {own_seconds:.3f} s "
                f"({own_seconds / seconds:.2f}), peak {own_peak / 1e6:.0f} MB "
                f"({own_peak / peak:.2f})"
            )


if __name__ == "__main__":
    main()
