"""
The grids of DistIR's evaluation (section 5): `python bench/search.py [MODEL ...]` prints how
long each search takes on all cores, in wall and in CPU seconds, and the best configuration
for each size of the batch.

World size 16; every d x t x p = 16; one micro-batch without a pipeline, 2 to 128 with one; 16
V100 with 32 GB; f16, inference. GPT-2: sequences of 8, batches of 2^7 to 2^20 (1035
configurations); MLP: one batch (75 configurations).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from distir.frontends.builders import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.passes.search import Outcome, Space, ranked, run
from distir.passes.search.programs import replace_cluster
from distir.passes.search.runner import available_cores

GPT_BATCHES = tuple(2**n for n in range(7, 21))
MLP_BATCHES = (2**13,)
WORLD_SIZE = 16


@dataclass(frozen=True)
class Model:
    """A model of the paper's Table 1; makes its program for a size of the batch."""

    name: str
    layers: int
    d_model: int
    heads: int = 0
    target_s: float = 60.0

    def __call__(self, batch: int) -> ModuleOp:
        if self.heads:
            module = build_gpt(
                self.layers, self.d_model, self.heads, 50257, batch, 8, "f16"
            )
        else:
            module = build_mlp(self.layers, self.d_model, batch, "f16")
        replace_cluster(module, load_cluster("dgx2", WORLD_SIZE))
        return module

    @property
    def batches(self) -> tuple[int, ...]:
        """The sizes of the batch in the paper."""
        return GPT_BATCHES if self.heads else MLP_BATCHES


MODELS = (
    Model("mlp-16", 16, 8192, target_s=5),
    Model("mlp-64", 64, 16384, target_s=5),
    Model("mlp-96", 96, 32768, target_s=5),
    Model("gpt-1.6b", 24, 2048, 16),
    Model("gpt-13b", 40, 5120, 40),
    Model("gpt-175b", 96, 12288, 96),
)


def search(model: Model, jobs: int) -> None:
    """Searches a model's grid and prints what it took and found."""
    space = Space(model.batches, trains=False, devices=WORLD_SIZE)
    configurations = space.configurations()
    wall, cpu = time.perf_counter(), _cpu_seconds()
    outcomes = [o for some in run(model, configurations, jobs) for o in some]
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    print(
        f"{model.name}: {len(configurations)} configurations in {wall:.1f} s on "
        f"{jobs} processes, {cpu:.1f} CPU seconds (target {model.target_s:g} s)",
        flush=True,
    )
    for batch in model.batches:
        print(f"  batch {batch:8}: {_best(outcomes, batch)}", flush=True)


def _best(outcomes: list[Outcome], batch: int) -> str:
    best = ranked(o for o in outcomes if o.configuration.batch == batch)
    if not best:
        return "nothing fits"
    c = best[0].configuration
    return (
        f"d={c.d} t={c.t} p={c.p} k={c.k}, {best[0].throughput_samples_per_s:.6g} "
        f"samples/s, {best[0].peak_memory_bytes / 1e9:.3g} GB"
    )


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    import resource

    usage = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--jobs", type=int, default=available_cores())
    arguments = parser.parse_args()
    for model in MODELS:
        if not arguments.models or model.name in arguments.models:
            search(model, arguments.jobs)


if __name__ == "__main__":
    main()
