"""
The program of each rank of `bench/against_torch.py`: a package and the same by hand take
turns in the same processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "test")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support.aten_calls import AtenCalls  # noqa: E402
from torch_by_hand import BY_HAND, Step  # noqa: E402
from torch_models import MODELS, Benched  # noqa: E402

from distir.launch.timing_rank import Ranks, load_package  # noqa: E402

AGREEMENT = 2e-4
"""
The relative difference allowed between the losses of the two after some steps of AdamW.
"""

COMPARED = 10
"""
The number of steps whose losses are compared; later, differences in rounding have grown too
much.
"""


def generated(
    folder: Path, benched: Benched, processes: int, rank: int, device: torch.device
) -> Step:
    """
    Returns a step of the package, starting from the model's weights; updates stay in this
    process.
    """
    program, runtime, _ = load_package(str(folder), "generated")
    meshes = {n: runtime.ProcessMesh(s, device.type) for n, s in program.MESHES.items()}
    own = program.RANKS[rank]
    body = own.program(meshes, own.numbers)
    given, labels = benched.inputs_and_labels(processes)
    sources = [load_file(folder / "weights.safetensors")]
    held: list[torch.Tensor | float] = []
    places: dict[str, int] = {}
    for index in own.program.arguments:
        spec = program.ARGUMENTS[index]
        mesh = program.MESHES.get(spec.mesh)
        if spec.role == "setting":
            value = spec.default
        elif spec.role == "state" and spec.name not in sources[0]:
            shape = runtime.local_shape(spec, mesh)
            value = torch.zeros(shape, dtype=spec.dtype)
        else:
            batch = {"input": given, "label": labels}.get(spec.role)
            source = sources if batch is None else [{spec.name: batch}]
            value = runtime.argument(spec, mesh, rank, source).to(device, copy=True)
        places[spec.name] = len(held)
        held.append(value)

    def step() -> torch.Tensor | None:
        with torch.inference_mode():
            results = runtime.results_of(body, held)
        kept = None
        for index, value in zip(own.program.results, results, strict=True):
            updated = program.RESULTS[index].updates
            if updated:
                held[places[updated]] = value
            else:
                kept = value
        return kept

    return step


def mean_over_ranks(value: torch.Tensor | None, ranks: Ranks) -> float:
    """Returns the mean of a step's value over the ranks that have one."""
    found = torch.zeros(2, dtype=torch.float64)
    if value is not None:
        found[0], found[1] = value.double().mean(), 1.0
    if ranks.size > 1:
        dist.all_reduce(found)
    return float(found[0] / found[1])


def timed(step: Step, ranks: Ranks) -> tuple[float, float, torch.Tensor | None]:
    """
    Returns the seconds of a step until the last rank is done, the processor seconds on all
    ranks, and the step's value.
    """
    ranks.start()
    start, cpu = time.perf_counter(), time.process_time()
    value = step()
    ranks.synchronise()
    spent = time.perf_counter() - start
    worked = torch.tensor([time.process_time() - cpu], dtype=torch.float64)
    if ranks.size > 1:
        dist.all_reduce(worked)
    return ranks.largest([spent])[0], float(worked), value


def calls_of(step: Step) -> dict[str, int]:
    """Returns the ATen calls of a step on this rank, without views, by their names."""
    with AtenCalls() as calls:
        step()
    return calls.counts


def measured(job: dict[str, Any], rank: int, device: torch.device) -> dict[str, Any]:
    """Returns the times of the two sides, step after step, and the calls that they make."""
    benched, processes = MODELS[job["model"]], job["processes"]
    ranks = Ranks(rank, processes, device)
    # By the row: the data-parallel ones have a batch for each process.
    batches = job["batches"]
    sides = {
        "generated": generated(Path(job["folder"]), benched, batches, rank, device),
        "by hand": BY_HAND[job["row"]](benched),
    }
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for turn in range(job["warm_up"] + job["samples"]):
        values: dict[str, float] = {}
        order = list(sides) if turn % 2 else list(reversed(sides))
        for side in order:
            wall, cpu, value = timed(sides[side], ranks)
            values[side] = mean_over_ranks(value, ranks)
            if turn >= job["warm_up"]:
                found[side].append((wall, cpu))
        mine, theirs = values["generated"], values["by hand"]
        if turn < COMPARED and abs(mine - theirs) > AGREEMENT * max(abs(theirs), 1e-2):
            sys.exit(
                f"error: step {turn + 1} of the package gives {mine}, by hand {theirs}"
            )
    return {
        "times": found,
        "calls": {side: calls_of(step) for side, step in sides.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--init-method", required=True)
    options = parser.parse_args()
    job = json.loads(Path(options.job).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    rank, device = int(os.environ["RANK"]), torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    dist.init_process_group(
        options.backend,
        init_method=options.init_method,
        rank=rank,
        world_size=job["processes"],
    )
    outcome = measured(job, rank, device)
    if rank == 0:
        Path(job["output"]).write_text(json.dumps(outcome), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
