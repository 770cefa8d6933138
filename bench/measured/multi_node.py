"""
GPT-10B on 16, 32 and 64 V100 of 32 GB by Megatron-LM (t = 8, p = 2) and by DeepSpeed's ZeRO 3:
Figure 8 of Slapo (Chen et al., ASPLOS 2024; github.com/awslabs/slapo, benchmark/plot/multi_node.py).

Nodes of 8 with NVLink and 100 Gb/s between them; the global batch is 256, sequences have 1,024
tokens, all layers are run again, and every micro-batch of ZeRO 3 scatters its gradients
(DeepSpeed, deepspeed/runtime/zero/stage3.py). The number of micro-batches is not given: it is the one with
which a step is predicted to be the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distir.hardware import load_cluster
from measured.clusters import GPUS
from measured.rows import Row
from measured.training import Model, Parallelism, simulated

MODEL = Model(48, 4096, 32, 50304, 1024)
BATCH = 256


@dataclass(frozen=True)
class Fastest:
    """Predicts the seconds of the fastest of some ways to run a step."""

    ways: tuple[Parallelism, ...]
    profile: str

    def __call__(self) -> float:
        return min(
            simulated(
                MODEL, BATCH, way, load_cluster("v100-roce", way.devices), self.profile
            ).step_time_s
            for way in self.ways
        )


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `multi_node.json`, without those of Slapo's own schedules."""
    rows: list[Row] = []
    for i, gpus in enumerate(data["gpus"]):
        megatron = [
            Parallelism(d=gpus // 16, t=8, p=2, k=k, checkpoint="whole")
            for k in (16, 32)
        ]
        zero = [Parallelism(d=gpus, zero=3, k=k, checkpoint="whole") for k in (1, 2)]
        flops = MODEL.flops(BATCH, recompute=True)
        ideal = flops / (gpus * GPUS["v100_sxm2_32gb"].peak)
        for system, ways, profile in (
            ("megatron", megatron, "V100-megatron"),
            ("deepspeed", zero, "V100"),
        ):
            seconds = BATCH / data[system][i]
            fastest = Fastest(tuple(ways), profile)
            rows.append(Row(f"{system} on {gpus}", seconds, ideal, fastest))
    return rows
