"""The simulated seconds of each op of a program in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation

from distir.dialects.dist_attributes import SCOPE
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CommunicationStep,
    CompiledFunction,
    CompiledStep,
    ComputationStep,
)
from distir.pipelining import ScheduleOptions
from distir.program import entry_function, scope_of
from distir.transforms.pipelines.pipeline import make_pipeline
from distir.transforms.pipelines.structure import Structure
from distir.transforms.resharding import lower_reshards


@dataclass(frozen=True)
class OpCosts:
    """
    The costs of the ops of a program.

    - `seconds`: the seconds of each op of the entry function in a step, for all
      micro-batches together, on the devices of the first pipeline rank; communication
      within a stage is included;
    - `hardware`: the cluster.
    """

    seconds: Mapping[Operation, float]
    hardware: Hardware

    @staticmethod
    def of(module: ModuleOp, structure: Structure, mesh: str = "") -> OpCosts:
        """
        Simulates the program that `structure` describes, and returns the costs of its
        ops. `mesh` replaces sizes of the program's mesh, such as `d=2,t=1`; if empty,
        the program's own mesh is used. The simulated program is a copy of `module` as a
        pipeline of one stage. Raises DistIRError if that pipeline cannot be made or
        simulated.
        """
        ops = [op for op in structure.ops if not isinstance(op, ReturnOp)]
        copy = module.clone()
        for i, op in enumerate(entry_function(copy).body.block.ops):
            op.attributes[SCOPE] = SCOPE.attr(f"op {i}")
        schedule = "gpipe" if structure.backward else "forward"
        sizes = (mesh,) if mesh else ()
        make_pipeline(copy, ScheduleOptions(schedule=schedule, stage_meshes=sizes))
        lower_reshards(copy)
        run = simulate(copy).run
        known = {f"op {i}": op for i, op in enumerate(ops)}
        seconds = dict.fromkeys(ops, 0.0)
        _Totals(known, seconds).add(run.compiled)
        return OpCosts(seconds, run.device_map.hardware)


class _Totals:
    """Sums the seconds of the simulator's steps for each op of the original program."""

    def __init__(self, known: Mapping[str, Operation], seconds: dict[Operation, float]):
        self._known = known
        self._seconds = seconds
        self._of_plans: dict[CompiledFunction, float] = {}
        self._calls: dict[CompiledFunction, list[tuple[Operation, float]]] = {}

    def add(self, plan: CompiledFunction) -> None:
        """
        Adds the seconds of the steps of a function. A callee is counted once for each
        call.
        """
        for op, seconds in self._by_op(plan):
            self._seconds[op] += seconds

    def _by_op(self, plan: CompiledFunction) -> Sequence[tuple[Operation, float]]:
        if plan not in self._calls:
            found: dict[Operation, float] = {}
            for step in plan.steps:
                op = self._known.get(scope_of(step.op))
                if op is not None:
                    found[op] = found.get(op, 0.0) + self._of_step(step)
                elif isinstance(step, CallStep):
                    for inner, seconds in self._by_op(step.callee):
                        found[inner] = found.get(inner, 0.0) + seconds
            self._calls[plan] = list(found.items())
        return self._calls[plan]

    def _of_step(self, step: CompiledStep) -> float:
        """Returns the seconds of a step on the device that takes longest."""
        if isinstance(step, CallStep):
            return self._of_plan(step.callee)
        if isinstance(step, CommunicationStep):
            return sum(float(np.max(t.seconds)) for t in step.transfers)
        assert isinstance(step, ComputationStep)
        return float(np.max(step.seconds))

    def _of_plan(self, plan: CompiledFunction) -> float:
        if plan not in self._of_plans:
            self._of_plans[plan] = sum(self._of_step(s) for s in plan.steps)
        return self._of_plans[plan]
