"""
NCCL all-reduces in one node: vTrain's traces (github.com/VIA-Research/vTrain,
trace/{a100,v100}). The A100s are behind NVSwitch; the V100s behave like a DGX-1, whose
devices have links to some of the others only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from measured.clusters import GPUS, cluster
from measured.programs import seconds
from measured.rows import Row

DEVICES = {"a100": ("a100_sxm_80gb", "A100"), "v100": ("v100_sxm2_16gb", "V100-dgx1")}

_PROGRAM = """
device.mesh @m on @cluster <d = {n}> [0 to {n}]
func.func @main(%x: tensor<{size}xi8, #dist.layout<@m, [{{}}], partial sum {{d}}>>)
    -> tensor<{size}xi8, #dist.layout<@m, [{{}}]>> {{
  %y = collective.all_reduce %x over [d] : tensor<{size}xi8, #dist.layout<@m, [{{}}], partial sum {{d}}>>
    -> tensor<{size}xi8, #dist.layout<@m, [{{}}]>>
  func.return %y : tensor<{size}xi8, #dist.layout<@m, [{{}}]>>
}}
"""


@dataclass(frozen=True)
class AllReduce:
    """Predicts one row."""

    gpu: str
    ranks: int
    size: int

    def __call__(self) -> float:
        name, profile = DEVICES[self.gpu]
        text = _PROGRAM.format(n=self.ranks, size=self.size)
        return seconds(text, cluster(name, 8), profile)


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of `nccl_allreduce_*.json`."""
    rows: list[Row] = []
    for record in data["records"]:
        r = dict(zip(data["columns"], record, strict=True))
        n, size = r["n_ranks"], r["size_bytes"]
        link = GPUS[DEVICES[r["gpu"]][0]].nvlink
        rows.append(
            Row(
                f"{r['gpu']} ranks={n} bytes={size}",
                r["time_out_of_place_us"] / 1e6,
                2 * (n - 1) / n * size / link,
                AllReduce(r["gpu"], n, size),
            )
        )
    return rows
