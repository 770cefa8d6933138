"""`simulate`: predicts the time and memory of a distributed program on its cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.hardware import load_cluster
from distir.interpreters.simulator import report, simulate, write_html
from distir.interpreters.simulator.options import SimulationOptions
from distir.passes.options import DistIRPass
from distir.transforms.expert_shards import assume_imbalance


@dataclass(frozen=True)
class SimulatePass(SimulationOptions, DistIRPass):
    """
    Simulates the program and prints the report on stderr. The program does not change.

    - `cluster`: a built-in cluster or a cluster file, instead of the program's own
      cluster;
    - `devices`: the number of devices to which the given cluster is scaled;
    - `profile`: the speeds that devices reach in practice: a built-in profile, a file
      or `auto`, one for each kind of device (see docs/profiles.md);
    - `expert_imbalance`: the assumed load of the busiest device of expert parallelism,
      as a multiple of the mean load;
    - `flat`: simulates every op on every device; the result is the same;
    - `trace`, `json`, `html`: files for the timeline, the numbers and a report.
    """

    name = "simulate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        cluster = load_cluster(self.cluster, self.devices) if self.cluster else None
        if self.expert_imbalance is not None:
            op = op.clone()
            assume_imbalance(op, self.expert_imbalance)
        simulation = simulate(op, cluster, flat=self.flat, profiles=self.profile)
        if self.trace is not None:
            simulation.write_trace(self.trace)
        if self.json is not None:
            simulation.write_json(self.json)
        if self.html is not None:
            write_html(simulation, self.html, "program")
        print(report(simulation), file=sys.stderr)
