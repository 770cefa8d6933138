"""What was measured of a machine, as a profile and as a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.interpreters.cost.profiles import Profile
from distir.lowering.calibration.fit import LinkFit, Residual, Sample
from distir.lowering.calibration.samples import Figures

LINK = "link"
SEND = "send"


@dataclass(frozen=True)
class Machine:
    """
    A machine of `devices` equal devices of kind `device`, as it was measured: `ops` by
    element type and name, with the `samples` that they explain; `links` by kind of
    communication between two devices (empty for a single device); `memory` in bytes per
    device. `conditions` say how it was measured.
    """

    name: str
    device: str
    devices: int
    memory: int
    ops: Figures
    samples: Mapping[str, Sequence[Sample]]
    links: Mapping[str, LinkFit]
    residuals: Sequence[Residual]
    conditions: str

    @property
    def memory_bandwidth(self) -> float:
        """Bytes/s of the fastest large op that only moves them."""
        moving = [
            s.moved / s.seconds
            for name in ("onnx.Add", "onnx.Relu")
            for s in self.samples[name]
            if s.seconds > 0
        ]
        return max(moving)

    @property
    def peak_flops(self) -> float:
        """FLOP/s of the fastest product that was measured."""
        return max(
            s.flops / s.seconds
            for samples in self.samples.values()
            for s in samples
            if s.flops and s.seconds > 0
        )

    def cluster(self) -> ClusterOp:
        """The machine as a `device.cluster`, with the best rates that were measured."""
        kind = KindOp(
            self.device,
            range(self.devices),
            memory=self.memory,
            memory_bandwidth=self.memory_bandwidth,
            peak_flops={"default": self.peak_flops},
            launch_latency=min(
                f.overhead for t in self.ops.values() for f in t.values()
            ),
        )
        links: list[LinkOp] = []
        if self.links:
            send = self.links[SEND]
            links = [
                LinkOp(
                    LINK,
                    self.devices,
                    bandwidth=self.link_bandwidth,
                    latency=send.overhead,
                )
            ]
        return ClusterOp(self.name, [kind], links)

    @property
    def link_bandwidth(self) -> float:
        """Bytes/s of large messages."""
        return 1 / self.links[SEND].per_byte

    def cluster_text(self) -> str:
        """The `.mlir` file of the cluster."""
        return f"// {self.conditions}\n{self.cluster()}\n"

    def profile_json(self) -> dict[str, Any]:
        """The profile, as `Profile.parse` reads it."""
        by_name = {r.name: str(r) for r in self.residuals}
        ops = {
            element: {
                n: f.to_json(f"measured: {by_name[n]}")
                for n, f in sorted(table.items())
            }
            for element, table in self.ops.items()
        }
        return {
            "description": self.conditions,
            "device": self.device,
            "compute": {"default": self._classes()},
            "dispatch": {
                "op": 0.0,
                "collective": 0.0,
                "source": "part of every figure",
            },
            "links": {} if not self.links else {LINK: self._link(by_name)},
            "ops": ops,
        }

    def profile(self) -> Profile:
        """The profile itself."""
        return Profile.parse(self.name, json.loads(json.dumps(self.profile_json())))

    def _classes(self) -> dict[str, Any]:
        """Curves for ops that were not measured, as the plainest one of their class."""
        table = next(t for t in self.ops.values() if "onnx.Add" in t)
        add, product = table["onnx.Add"], table["onnx.MatMul"]
        per_byte = add.per_byte + add.beyond_cache
        moving = {
            "bandwidth": 1 / (per_byte * self.memory_bandwidth),
            "overhead": add.overhead,
        }
        computing = {
            "bandwidth": moving["bandwidth"],
            "efficiency": 1 / (product.per_flop * self.peak_flops),
            "overhead": product.overhead,
        }
        return {
            "elementwise": {**moving, "source": "as onnx.Add"},
            "contraction": {**computing, "source": "as onnx.MatMul"},
        }

    def _link(self, sources: Mapping[str, str]) -> dict[str, Any]:
        """
        Figures by kind of communication. With two devices, a ring moves half of the buffer
        once (all-gather, reduce-scatter, all-to-all) or twice (all-reduce).
        """
        moved = {"all_reduce": 1.0, SEND: 1.0}
        kinds = {
            kind: {
                "bandwidth": moved.get(kind, 0.5)
                / (fit.per_byte * self.link_bandwidth),
                "overhead": fit.overhead,
                "latency": 0.0,
                "source": f"measured: {sources[kind]}",
            }
            for kind, fit in self.links.items()
        }
        return {**kinds[SEND], "kinds": kinds}
