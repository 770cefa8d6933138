"""
How long a training script waits for `distir.parallelize` before its first step: GPT-2 (12
layers, 124 million parameters) at d2 t2 on 4 gloo ranks of this machine.

    python bench/parallelize_start.py [--agents 2] [--layers 12] [--profile start.prof]

It starts the ranks twice with one empty cache: the first start compiles, the second reads what
the first has kept. Each time it prints the seconds between the call and the module (wall clock of the
slowest rank), the processor time of rank 0 and of all ranks in them, and how many ranks compiled. With
two agents, torchrun stands for two machines, each with a cache of its own. Goals on an idle machine: 15 s, and
5 s the second time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS = 4
BATCH, LENGTH = 8, 128


def rank(layers: int, profile: str) -> None:
    """Runs on each rank: prints how long `parallelize` took as a line of JSON."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel

    import distir
    from distir.parallel import compilation

    torch.set_num_threads(1)
    node = int(os.environ.get("GROUP_RANK", "0"))
    os.environ["DISTIR_CACHE"] = f"{os.environ['DISTIR_CACHE']}/node{node}"
    dist.init_process_group("gloo")
    compiled: list[str] = []
    package = compilation._package  # pyright: ignore[reportPrivateUsage]

    def counted(*args: Any) -> Any:
        compiled.append("a package")
        return package(*args)

    compilation._package = counted  # pyright: ignore[reportPrivateUsage]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
    words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    dist.barrier()
    recorder = cProfile.Profile()
    if profile and dist.get_rank() == 0:
        recorder.enable()
    wall, cpu = time.perf_counter(), time.process_time()
    distir.parallelize(model, (words,), loss="cross_entropy", d=2, t=2)
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    if profile and dist.get_rank() == 0:
        recorder.disable()
        recorder.dump_stats(profile)
    found["compiled"] = len(compiled)
    every: list[Any] = [None] * RANKS
    dist.all_gather_object(every, found)
    if dist.get_rank() == 0:
        print("START", json.dumps(every), flush=True)
    dist.barrier()
    os._exit(0)


def start(arguments: argparse.Namespace, cache: str, profile: str) -> dict[str, float]:
    """Starts the ranks; returns what they took."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    agents = arguments.agents
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(agents)]
    command += ["--nproc-per-node", str(RANKS // agents), "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", __file__, "--rank"]
    command += ["--layers", str(arguments.layers), "--profile", profile]
    environment = {
        **os.environ,
        "DISTIR_CACHE": cache,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    begun = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(agents)
    ]
    text = "".join(process.communicate(timeout=600)[0] for process in begun)
    if any(process.returncode for process in begun):
        sys.exit("a rank failed")
    line = next(li for li in text.splitlines() if li.startswith("START "))
    ranks = json.loads(line.removeprefix("START "))
    return {
        "wall": max(r["wall"] for r in ranks),
        "rank 0": ranks[0]["cpu"],
        "all": sum(r["cpu"] for r in ranks),
        "compiled": sum(r["compiled"] for r in ranks),
    }


def main() -> None:
    """Starts twice and prints both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, choices=(1, 2), default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--profile", default="", help="a file of cProfile, of rank 0")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.layers, arguments.profile)
    with tempfile.TemporaryDirectory() as cache:
        for name, goal in (("first", 15), ("second", 5)):
            found = start(arguments, cache, arguments.profile if goal == 15 else "")
            print(
                f"{name} start: {found['wall']:.1f} s (goal {goal}); processor time "
                f"{found['rank 0']:.1f} s on rank 0, {found['all']:.1f} s on all; "
                f"{found['compiled']:.0f} ranks compiled",
                flush=True,
            )
            Path(cache).mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
