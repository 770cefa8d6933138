"""
What it is worth that the search of layouts counts what stages send each other: `python
bench/sends.py` prints the table of docs/internals/searched-pipelines.md.

Steps with AdamW in four stages of eight devices, 1F1B with eight micro-batches, as simulated by
data sheets. The devices of a node are those of `dgx-h100` behind a switch that sums while it
sends; between nodes there are networks of several speeds. Seconds are CPU time of the whole search.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from report import table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.pipelining import PipelineOptions
from distir.planning.distribution.meshes import add_mesh
from distir.planning.layouts.fitted import FittedSearch
from distir.planning.layouts.search import Limits

Axes = tuple[tuple[str, int], ...]

NETWORKS = (3e9, 12e9, 50e9)


def nodes(network: float) -> ClusterOp:
    """Returns four nodes of eight devices; `network` is what each device has, in bytes/s."""
    peak = {"bf16": 9.89e14, "default": 6.7e13}
    kind = KindOp(
        "H100",
        range(32),
        memory=80 * 10**9,
        memory_bandwidth=3.35e12,
        peak_flops=peak,
        launch_latency=5e-6,
    )
    switch = LinkOp(
        "switch", 8, bandwidth=4.5e11, latency=5e-6, in_fabric_reduction=True
    )
    between = LinkOp("network", 32, bandwidth=network, latency=1e-5)
    return ClusterOp("nodes", [kind], [switch, between])


def trained(module: ModuleOp, loss: str = "") -> ModuleOp:
    """Returns a training step."""
    DifferentiatePass(optimizer="adamw", **({"loss": loss} if loss else {})).apply(
        Context(), module
    )
    return module


PROGRAMS: dict[str, tuple[Callable[[], ModuleOp], Axes]] = {
    "GPT, 8 layers of 2,048, 16 x 2,048 tokens, d=2 t=4": (
        lambda: trained(build_gpt(8, 2048, 16, 50304, 16, 2048, dtype="bf16")),
        (("d", 2), ("t", 4)),
    ),
    "the same, t=8": (
        lambda: trained(build_gpt(8, 2048, 16, 50304, 16, 2048, dtype="bf16")),
        (("t", 8),),
    ),
    "MLP, 16 layers of 8,192, batch 4,096, t=8": (
        lambda: trained(build_mlp(16, 8192, 4096), "mse"),
        (("t", 8),),
    ),
}


def rows(name: str) -> list[list[str]]:
    """Returns the rows of a program, one for each network."""
    found: list[list[str]] = []
    build, axes = PROGRAMS[name]
    for network in NETWORKS:
        module, cluster = build(), nodes(network)
        first = module.body.block.first_op
        assert first is not None
        module.body.block.insert_op_before(cluster, first)
        mesh = add_mesh(module, (("k", 8), *axes), cluster)
        start = time.process_time()
        search = FittedSearch(mesh, cluster, PipelineOptions(p=4, k=8), Limits())
        plan = search.run(module)
        seconds = time.process_time() - start
        before = plan.base or plan
        cells = [f"{1e3 * each.step.seconds:.1f} ms" for each in (before, plan)]
        found.append([name, f"{network / 1e9:g} GB/s", *cells, f"{seconds:.1f}"])
    return found


if __name__ == "__main__":
    head = ["step", "network", "sends free", "sends counted", "CPU s"]
    print(table(head, [row for name in PROGRAMS for row in rows(name)]))
