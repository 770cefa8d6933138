"""
Steps of an MLP without biases on one V100 PCIe in f32: the notebook of DistIR's authors
(github.com/microsoft/dist-ir, notebooks/euromlsys21_results.ipynb). Forward and backward,
no optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context

from distir.frontends.models.basic import build_mlp
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from measured.clusters import GPUS, cluster
from measured.rows import Row

GPU, PROFILE = "v100_pcie_32gb", "V100"


@dataclass(frozen=True)
class Step:
    """Predicts one row."""

    layers: int
    width: int
    batch: int

    def __call__(self) -> float:
        module = build_mlp(self.layers, self.width, self.batch)
        DifferentiatePass(loss="mse", optimizer="none").apply(Context(), module)
        return simulate(module, cluster(GPU, 1), profiles=(PROFILE,)).step_time_s


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `mlp_single_gpu.json` on one GPU."""
    return [
        Row(
            f"{r['n_layers']} layers of {r['hidden_dim']}, batch {r['batch_size']}",
            r["measured_ms"] / 1e3,
            6 * r["n_layers"] * r["hidden_dim"] ** 2 * r["batch_size"]
            / GPUS[GPU].peak_f32,
            Step(r["n_layers"], r["hidden_dim"], r["batch_size"]),
        )
        for r in data["records"]
        if r["world_size"] == 1
    ]  # fmt: skip
