"""
What a training script that moves to `distir.parallelize` gains and loses beside PyTorch's
own wrappers, on gloo ranks of this machine with one thread each.

    python bench/beside_torch.py [--model gpt llama] [--ranks 2 4] [--only DDP FSDP2]

Each row of the table is one wrapper: `DistributedDataParallel`, `fully_shard` of each layer
(FSDP2) and `parallelize_module`, with the same plan of `parallelize` beside it. Both train
with fused AdamW and must come to the same losses.

- Lines: the lines of `APPLY` that the script has more than one for one process.
- Start: processor seconds of a rank from the start of Python to the end of the first step,
  the largest of the ranks, with an empty cache and again. Imports, of torch and
  transformers too, are part of it. The comparison of the import with the module is
  switched off, and what it takes is said apart.
- Step: the median of 7 blocks of steps, in turns in the same processes, until the slowest
  rank is done; the ratio is the median of those of neighbouring blocks.
- Peak: the most bytes of live storages on a rank in a step, with parameters, gradients and
  the optimizer's states.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from report import table

BLOCKS = 7
COMPARED = 2
"""The number of blocks at whose ends the losses of the two sides are compared."""
WORDS, LENGTH, BATCH = 2048, 64, 2  # the batch of one rank

APPLY: dict[str, tuple[str, str]] = {
    "DDP": (
        """\
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
sampler = DistributedSampler(dataset)
""",
        """\
model = distir.parallelize(model, (words,), d=n, overlap=True)
sampler = model.sampler(dataset)
""",
    ),
    "FSDP2": (
        """\
for layer in layers:
    fully_shard(layer)
fully_shard(model)
sampler = DistributedSampler(dataset)
""",
        """\
model = distir.parallelize(model, (words,), d=n, zero=3, overlap=True)
sampler = model.sampler(dataset)
""",
    ),
    "parallelize_module, gpt": (
        """\
mesh = init_device_mesh("cpu", (n,))
plan = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
plan["model.decoder.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
for i in range(len(layers)):
    at = f"model.decoder.layers.{i}"
    for name in ("q_proj", "k_proj", "v_proj"):
        plan[f"{at}.self_attn.{name}"] = ColwiseParallel()
    plan[f"{at}.self_attn.out_proj"] = RowwiseParallel()
    plan[f"{at}.fc1"], plan[f"{at}.fc2"] = ColwiseParallel(), RowwiseParallel()
parallelize_module(model, mesh, plan)
""",
        """\
model = distir.parallelize(model, (words,), loss="cross_entropy", t=n)
loss = model(words, labels)
""",
    ),
    "parallelize_module, llama": (
        """\
mesh = init_device_mesh("cpu", (n,))
plan = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
for i in range(len(layers)):
    at = f"model.layers.{i}"
    for name in ("q_proj", "k_proj", "v_proj"):
        plan[f"{at}.self_attn.{name}"] = ColwiseParallel()
    plan[f"{at}.self_attn.o_proj"] = RowwiseParallel()
    for name in ("gate_proj", "up_proj"):
        plan[f"{at}.mlp.{name}"] = ColwiseParallel()
    plan[f"{at}.mlp.down_proj"] = RowwiseParallel()
parallelize_module(model, mesh, plan)
""",
        """\
model = distir.parallelize(model, (words,), loss="cross_entropy", t=n)
loss = model(words, labels)
""",
    ),
}
"""The lines of a script that change, by wrapper: PyTorch's, and ours."""

ROWS = ("DDP", "FSDP2", "parallelize_module")
SIDES = ("torch", "distir")


def lines_of(row: str, model: str) -> tuple[int, int]:
    """Returns the number of lines that change in a script: with PyTorch and with ours."""
    theirs, ours = APPLY.get(row) or APPLY[f"{row}, {model}"]
    return len(theirs.splitlines()), len(ours.splitlines())


def built(kind: str) -> tuple[Any, list[Any]]:
    """Returns a model with 4 layers of width 256, and its layers."""
    import torch

    torch.manual_seed(0)
    if kind == "gpt":
        from transformers import OPTConfig, OPTForCausalLM

        model: Any = OPTForCausalLM(
            OPTConfig(
                vocab_size=WORDS,
                hidden_size=256,
                word_embed_proj_dim=256,
                num_hidden_layers=4,
                num_attention_heads=8,
                ffn_dim=1024,
                max_position_embeddings=LENGTH,
                dropout=0.0,
                use_cache=False,
                tie_word_embeddings=False,
            )
        )
        return model.train(), list(model.model.decoder.layers)
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )
    return model.train(), list(model.model.layers)


def training(kind: str, row: str, side: str, check: str) -> tuple[Any, ...]:
    """
    Returns the wrapped model, its optimizer, and a function that runs a step and returns the
    loss of this rank.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    n, rank = dist.get_world_size(), dist.get_rank()
    model, layers = built(kind)
    splits_batch = row != "parallelize_module"
    generator = torch.Generator().manual_seed(1)
    count = BATCH * n if splits_batch else BATCH
    words = torch.randint(WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(WORDS, (count, LENGTH), generator=generator)
    lines = (APPLY.get(row) or APPLY[f"{row}, {kind}"])[SIDES.index(side)]
    names: dict[str, Any] = dict(model=model, layers=layers, words=words, n=n)
    if side == "distir":
        import distir

        def parallelize(*args: Any, **options: Any) -> Any:
            return distir.parallelize(*args, check=check, **options)

        names["distir"] = argparse.Namespace(parallelize=parallelize)
    elif row == "DDP":
        names["DistributedDataParallel"] = torch.nn.parallel.DistributedDataParallel
    elif row == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        names["fully_shard"] = fully_shard
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        found = (ColwiseParallel, RowwiseParallel, Replicate)
        names |= {each.__name__: each for each in found}
        names |= dict(
            init_device_mesh=init_device_mesh, parallelize_module=parallelize_module
        )
    kept = [li for li in lines.splitlines() if not li.startswith(("sampler", "loss"))]
    exec("\n".join(kept), names)
    parallel = names["model"]
    own, target = words, labels
    if splits_batch:
        own, target = words.chunk(n)[rank], labels.chunk(n)[rank]
    optimizer = optimizers(list(parallel.parameters()))
    has_loss = side == "distir" and not splits_batch

    def step() -> Any:
        if has_loss:
            loss = parallel(own, target)
        else:
            logits = parallel(own).logits
            loss = cross_entropy(logits.flatten(0, 1), target.flatten())
            del logits
        loss.backward()
        for each in optimizer:
            each.step()
            each.zero_grad()
        return loss.detach()

    return parallel, optimizer, step


def optimizers(parameters: list[Any]) -> list[Any]:
    """Fused AdamW, one for DTensors and one for tensors, which it does not mix."""
    import torch
    from torch.distributed.tensor import DTensor

    kinds = [
        [p for p in parameters if isinstance(p, DTensor)],
        [p for p in parameters if not isinstance(p, DTensor)],
    ]
    return [torch.optim.AdamW(each, lr=1e-4, fused=True) for each in kinds if each]


def peak_of(model: Any, optimizer: Sequence[Any], step: Callable[[], Any]) -> int:
    """
    Returns the largest number of bytes of live storages in a step. They are added up after
    each operator, as FSDP2 changes the size of its storages.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    known: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(values: Any) -> int:
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                known.add(getattr(leaf, "_local_tensor", leaf).untyped_storage())
        return sum(storage.nbytes() for storage in known)

    class Peak(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.most = max(self.most, note(result))
            return result

    note([*model.parameters(), *model.buffers()])
    note([list(state.values()) for each in optimizer for state in each.state.values()])
    with Peak() as peak:
        step()
    return peak.most


def run_steps(kind: str, row: str, steps: int) -> dict[str, Any]:
    """Times the two sides in turns. Runs on each rank."""
    import torch.distributed as dist

    sides = {side: training(kind, row, side, "off") for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    losses: dict[str, list[float]] = {side: [] for side in SIDES}
    for block in range(BLOCKS + 1):  # the first one warms up
        for side in SIDES if block % 2 else reversed(SIDES):
            dist.barrier()
            start = time.perf_counter()
            value = 0.0
            for _ in range(steps):
                value = sides[side][2]()
            dist.barrier()
            if block:
                seconds[side].append((time.perf_counter() - start) / steps)
            losses[side].append(float(value))
    peaks = {side: peak_of(*sides[side]) for side in SIDES}
    return {"seconds": seconds, "losses": losses, "peaks": peaks}


def run_start(kind: str, row: str, side: str, check: str) -> dict[str, Any]:
    """Runs the first step. Runs on each rank."""
    _, _, step = training(kind, row, side, check)
    step()
    return {"cpu": time.process_time()}


def rank(arguments: argparse.Namespace) -> None:
    """Runs on each rank; rank 0 prints what all found as a line of JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kind, row = arguments.model[0], arguments.only[0]
    if arguments.side:
        found = run_start(kind, row, arguments.side, arguments.check)
    else:
        found = run_steps(kind, row, arguments.steps)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print("FOUND", json.dumps(every), flush=True)
    dist.barrier()
    os._exit(0)


def spawned(ranks: int, cache: str, *given: str) -> list[dict[str, Any]]:
    """Starts this script on so many ranks; returns what each found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    command += [str(ranks), "--master-port", str(port), __file__, "--rank", *given]
    environment = {
        **{n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"},
        "DISTIR_CACHE": cache,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=900
    )
    lines = [li for li in done.stdout.splitlines() if li.startswith("FOUND ")]
    if done.returncode or not lines:
        sys.exit(f"the ranks failed: {' '.join(given)}")
    return json.loads(lines[0].removeprefix("FOUND "))


def start_of(kind: str, row: str, ranks: int) -> list[float]:
    """
    Returns the processor seconds of starts: PyTorch's, our first, our second, and a first one
    that compares the import with the module.
    """

    def one(side: str, cache: str, check: str = "off") -> float:
        given = ["--model", kind, "--only", row, "--side", side, "--check", check]
        return max(found["cpu"] for found in spawned(ranks, cache, *given))

    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        theirs = one("torch", cache)
        first, second = one("distir", cache), one("distir", cache)
        return [theirs, first, second, one("distir", other, "import")]


def row_of(kind: str, row: str, ranks: int, steps: int) -> list[str]:
    """Measures a row of the table. Exits if the two sides come to other losses."""
    with tempfile.TemporaryDirectory() as cache:
        given = ["--model", kind, "--only", row, "--steps", str(steps)]
        found = spawned(ranks, cache, *given)
    for each in found:
        # Later, differences in rounding have grown too much.
        first = (each["losses"][side][:COMPARED] for side in SIDES)
        pairs = zip(*first, strict=True)
        if any(abs(a - b) > 2e-4 * abs(a) for a, b in pairs):
            sys.exit(f"{kind}, {row}: the losses differ: {each['losses']}")
    blocks = {
        side: [max(b) for b in zip(*(e["seconds"][side] for e in found), strict=True)]
        for side in SIDES
    }
    pairs = zip(blocks["distir"], blocks["torch"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    step = {side: statistics.median(blocks[side]) * 1e3 for side in SIDES}
    peak = {side: max(e["peaks"][side] for e in found) / 1e6 for side in SIDES}
    theirs, first, second, checked = start_of(kind, row, ranks)
    lines = lines_of(row, kind)
    return [
        f"{kind}, {ranks} ranks",
        row,
        f"{lines[0]}, {lines[1]}",
        f"{theirs:.1f}",
        f"{first:.1f} ({first / theirs:.2f})",
        f"{second:.1f} ({second / theirs:.2f})",
        f"{checked - first:.1f}",
        f"{step['torch']:.0f}",
        f"{step['distir']:.0f} ({ratio:.2f})",
        f"{peak['torch']:.1f}",
        f"{peak['distir']:.1f} ({peak['distir'] / peak['torch']:.2f})",
    ]


HEAD = [
    *("model", "beside", "lines: its, ours", "start, s", "our first", "second"),
    *("the check", "step, ms", "ours", "peak, MB", "ours"),
]


def main() -> None:
    """Measures the rows that are asked for and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="*", default=["gpt", "llama"])
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--steps", type=int, default=5, help="steps of a block")
    for hidden in ("--side", "--check"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments)
        return
    rows: list[list[str]] = []
    for kind in arguments.model:
        for ranks in arguments.ranks:
            for row in arguments.only:
                rows.append(row_of(kind, row, ranks, arguments.steps))
                print(table(HEAD, rows[-1:]).splitlines()[-1], flush=True)
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
