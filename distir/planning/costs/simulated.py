"""A cost model that uses the simulator's own cost functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Operation

from distir.dialects.device import ClusterOp
from distir.dialects.dist import Layout, with_layout
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_of,
)
from distir.interpreters.simulator.engine.device_map import (
    DeviceMap,
    NotUniform,
    UniformDeviceMap,
)
from distir.interpreters.simulator.engine.transfers import exchange_of, transfers_of
from distir.interpreters.simulator.profiles.profile import Profile
from distir.interpreters.simulator.work import Work
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.strategies import LayoutStrategy
from distir.sharding.mesh import Mesh
from distir.sharding.reshard import ReshardStep
from distir.sharding.rule import Rule, rule_for
from distir.transforms.resharding import op_of_step


class SimulatedCosts(CostModel):
    """
    The cost model of a mesh on a cluster. A cost is in seconds of the slowest device.
    The cost functions of the simulator compute the costs of ops, and the costs of the
    collectives that `lower-reshard` makes. `profiles` hold measured speeds of devices.
    """

    def __init__(
        self, mesh: Mesh, cluster: ClusterOp, profiles: Sequence[Profile] = ()
    ):
        super().__init__(mesh)
        hardware = Hardware.of(cluster, profiles)
        if max(mesh.devices) >= len(hardware.kinds):
            raise DistIRError(
                f"mesh @{mesh.name} uses device {max(mesh.devices)}, but cluster "
                f"@{hardware.name} has only {len(hardware.kinds)} devices"
            )
        self.kinds = hardware.distinct_kinds(mesh.devices)
        meshes, names = {mesh.name: mesh}, [mesh.name]
        try:
            self.device_map: DeviceMap = UniformDeviceMap(meshes, names, hardware)
        except NotUniform:
            self.device_map = DeviceMap(meshes, names, hardware)
        self._steps: dict[tuple[str, tuple[str, ...], int, int], float] = {}

    def op(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> float:
        """
        Returns the seconds of an op of the sequential program on the slowest device.
        The communication inside the op while it computes is included.
        """
        seconds = max(c.seconds for c in self._costs(op, rule, strategy))
        exchange = exchange_of(op, strategy.operands, self.device_map)
        if exchange is not None:
            seconds += float(np.max(exchange.seconds))
        return seconds

    def workspace(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> int:
        """
        Returns the bytes of temporary memory that an op needs while it runs, besides
        its operands and results.
        """
        return max(c.workspace for c in self._costs(op, rule, strategy))

    def _costs(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> list[Cost]:
        """Returns the cost of an op on each kind of device."""
        work = Work(rule, self._parts(rule, strategy.operands) if rule.flops else {})
        sizes = (
            self._sizes(op.operands, strategy.operands),
            self._sizes(op.results, strategy.results),
        )
        return [cost_of(CostContext(op, kind, work, *sizes)) for kind in self.kinds]

    def step(
        self, type_: TensorType[Attribute], before: Layout, step: ReshardStep
    ) -> float:
        """
        Returns the seconds of the collective that `lower-reshard` makes for `step`.
        """
        sizes = self.bytes(type_, before), self.bytes(type_, step.layout)
        key = (step.kind, step.axes, *sizes)
        if key not in self._steps:
            source = Block(arg_types=[with_layout(type_, before)]).args[0]
            self._steps[key] = self._communication(op_of_step(source, step))
        return self._steps[key]

    def _communication(self, op: Operation) -> float:
        transfers = transfers_of(op, self.device_map)
        if transfers is not None:
            return sum(float(np.max(t.seconds)) for t in transfers)
        read, written = (
            tuple(self.device_map.bytes_of(v, op) for v in values)
            for values in (op.operands, op.results)
        )
        work = Work(rule_for(op), {})
        contexts = (CostContext(op, kind, work, read, written) for kind in self.kinds)
        return max(cost_of(context).seconds for context in contexts)
