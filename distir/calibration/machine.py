"""A measured machine, which can be written as a profile and as a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from xdsl.printer import Printer

from distir.calibration.fit import LinkFit, OpFit, Residual
from distir.calibration.samples import OpFits
from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError
from distir.interpreters.simulator.profiles.profile import Profile

LINK = "link"
SEND = "send"
PASSING = {
    "all_reduce": 1.0,
    "all_gather": 0.5,
    "reduce_scatter": 0.5,
    "all_to_all": 0.25,
    SEND: 1.0,
}
"""
By kind of communication, the fraction of the whole tensor that each of two devices
sends. In a ring, every part passes once, and in an all-reduce twice. In an all-to-all,
half of each part stays.
"""
SUM, PRODUCT = "onnx.Add", "onnx.MatMul"


@dataclass(frozen=True)
class MeasuredMachine:
    """
    A measured machine of `devices` equal devices of kind `device`.

    `ops` holds the fitted ops, by element type and then by name. `links` holds the
    fitted figures by kind of communication between two devices, and is empty for a
    single device. `memory` is in bytes per device. `conditions` is a text that
    describes how the machine was measured.
    """

    name: str
    device: str
    devices: int
    memory: int
    ops: OpFits
    links: Mapping[str, LinkFit]
    conditions: str

    @property
    def residuals(self) -> list[Residual]:
        """The residual of each fit: of all ops, then of all kinds of communication."""
        fits = [fit for table in self.ops.values() for fit in table.values()]
        return [fit.residual for fit in (*fits, *self.links.values())]

    def disagreeing(self, tolerance: float) -> list[Residual]:
        """Returns the residuals whose mean error is larger than `tolerance`."""
        return [r for r in self.residuals if not r.mean <= tolerance]

    def without(self, left_out: Sequence[Residual]) -> MeasuredMachine:
        """
        Returns the machine without the fits whose residuals are `left_out`. Ops without
        a fit get the time of their class of ops in the profile, and kinds of
        communication without a fit get the figures of sends. Raises DistIRError if
        `left_out` contains a fit that other figures depend on: the fit of addition, of
        the matrix product or of sends.
        """
        names = {residual.name for residual in left_out}
        needed = [r for r in left_out if r.name in (SUM, PRODUCT, SEND)]
        if needed:
            shown = "; ".join(f"{r.name}: {r}" for r in needed)
            raise DistIRError(
                f"the measurements do not fit ({shown}), also when they are repeated: nothing "
                f"was written, as everything else follows from these. Most likely something "
                f"else used the machine: try again when it is idle, with more --rounds, or "
                f"accept more with --tolerance"
            )
        ops = {
            element: {name: fit for name, fit in table.items() if name not in names}
            for element, table in self.ops.items()
        }
        links = {kind: fit for kind, fit in self.links.items() if kind not in names}
        return replace(self, ops=ops, links=links)

    @property
    def memory_bandwidth(self) -> float:
        """The bytes per second of the fastest measured addition."""
        fits = [f for t in self.ops.values() for n, f in t.items() if n == SUM]
        return max(s.moved / s.seconds for fit in fits for s in fit.samples)

    @property
    def peak_flops(self) -> dict[str, float]:
        """The FLOP/s of the fastest measured matrix product, by element type."""
        return {
            element: max(s.flops / s.seconds for s in table[PRODUCT].samples)
            for element, table in self.ops.items()
            if PRODUCT in table
        }

    def cluster(self) -> ClusterOp:
        """Returns the machine as a `device.cluster` with the best measured rates."""
        peaks = self.peak_flops
        kind = KindOp(
            self.device,
            range(self.devices),
            memory=self.memory,
            memory_bandwidth=self.memory_bandwidth,
            peak_flops={**peaks, "default": min(peaks.values())},
            launch_latency=0.0,
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
        """The bytes per second of large messages between two devices."""
        return 1 / self.links[SEND].per_byte

    def cluster_text(self) -> str:
        """Returns the `.mlir` file of the cluster as text."""
        stream = StringIO()
        Printer(stream=stream).print_op(self.cluster())
        return f"// {self.conditions}\n{stream.getvalue()}\n"

    def profile_json(self) -> dict[str, Any]:
        """Returns the profile as JSON data that `Profile.parse` reads."""
        classes = {element: self._classes(element) for element in self.peak_flops}
        ops = {
            element: {name: _op_json(fit) for name, fit in sorted(table.items())}
            for element, table in self.ops.items()
        }
        return {
            "description": self.conditions,
            "device": self.device,
            "compute": {"default": next(iter(classes.values())), **classes},
            "dispatch": {
                "op": 0.0,
                "collective": 0.0,
                "source": "part of every figure",
            },
            "links": {} if not self.links else {LINK: self._link()},
            "ops": ops,
        }

    def profile(self) -> Profile:
        """Returns the machine as a profile."""
        return Profile.parse(self.name, json.loads(json.dumps(self.profile_json())))

    def _classes(self, element: str) -> dict[str, Any]:
        """
        Returns the part of the profile for ops of the element type `element` that were
        not measured, by class of ops. An elementwise op has the overhead of an
        addition, and a contraction has the overhead of a matrix product.
        """
        table = self.ops[element]
        moving = {"bandwidth": 1.0, "overhead": table[SUM].figures.overhead}
        computing = {
            "bandwidth": 1.0,
            "efficiency": 1.0,
            "overhead": table[PRODUCT].figures.overhead,
        }
        return {
            "elementwise": {**moving, "source": f"as {SUM}"},
            "contraction": {**computing, "source": f"as {PRODUCT}"},
        }

    def _link(self) -> dict[str, Any]:
        """
        Returns the profile's figures by kind of communication. Bandwidths count the
        bytes that pass the link (the buffer's bytes times the factor in `PASSING`), not
        the bytes of the buffer.
        """
        kinds = {
            kind: {
                "bandwidth": PASSING[kind] / (fit.per_byte * self.link_bandwidth),
                "overhead": fit.overhead,
                "latency": 0.0,
                "source": f"measured: {fit.residual}",
            }
            for kind, fit in self.links.items()
        }
        return {**kinds[SEND], "kinds": kinds}


def _op_json(fit: OpFit) -> dict[str, Any]:
    return fit.figures.to_json(f"measured: {fit.residual}")
