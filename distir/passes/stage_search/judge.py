"""What a division is worth: the simulation of the pipeline that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.interpreters.cost import Simulation, simulate
from distir.passes.lower_reshard import LowerReshardPass
from distir.passes.pipeline import PipelinePass
from distir.passes.pipelines.stages import mark, take_marks


@dataclass(frozen=True)
class Judge:
    """Simulates pipelines that `pipeline` makes of copies of a program."""

    ctx: Context
    module: ModuleOp
    pipeline: PipelinePass

    def simulate(self, stages: Mapping[Operation, int]) -> Simulation:
        """The pipeline whose forward ops are on these stages. Raises DistIRError."""
        mark(stages)
        copy = self.module.clone()
        take_marks(stages)
        self.pipeline.apply(self.ctx, copy)
        LowerReshardPass().apply(self.ctx, copy)
        return simulate(copy)
