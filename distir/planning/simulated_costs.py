"""What ops and changes of layout cost, by the simulator's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Operation

from distir.dialects.device import ClusterOp
from distir.dialects.dist import Layout, with_layout
from distir.dialects.onnx_values import bytes_per_element
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.costs.op_costs import (
    VIEWS,
    Cost,
    CostContext,
    cost_of,
)
from distir.interpreters.simulator.engine.device_map import (
    DeviceMap,
    NotUniform,
    UniformDeviceMap,
)
from distir.interpreters.simulator.engine.transfers import transfers_of
from distir.interpreters.simulator.profiles.profile import Profile
from distir.interpreters.simulator.work import Work
from distir.sharding.layout import layout_problem, local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.reshard import Planner, ReshardStep
from distir.sharding.rule import Rule, factor_shards, rule_for
from distir.transforms.resharding import op_of_step


class SimulatedCosts:
    """
    `CostModel` of a mesh on a cluster: the seconds of the slowest device, from the functions
    that the simulator asks and the collectives that `lower-reshard` makes. `profiles` say
    what devices reach in practice.
    """

    def __init__(
        self, mesh: Mesh, cluster: ClusterOp, profiles: Sequence[Profile] = ()
    ):
        self.mesh = mesh
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
        self._bytes: dict[tuple[int, Layout], int] = {}
        self._reshards: dict[tuple[int, Layout, Layout], float] = {}
        self._plans: dict[
            tuple[Layout, Layout, int | tuple[int, ...]], Sequence[ReshardStep] | None
        ] = {}
        # One after the other, changes to one layout are asked for.
        self._planner: Planner | None = None
        self._steps: dict[tuple[str, tuple[str, ...], int, int], float] = {}
        # Types are known by their ids, as it takes long to hash them, and so have to stay.
        self._seen: list[Attribute] = []

    def bytes(self, type_: Attribute, layout: Layout) -> int:
        """Bytes of a value on each device."""
        key = (id(type_), layout)
        if key not in self._bytes:
            self._seen.append(type_)
            size = 0
            if isinstance(type_, TensorType):
                shape = local_shape(type_.get_shape(), layout, self.mesh)
                size = ceil(prod(shape) * bytes_per_element(type_.element_type))
            self._bytes[key] = size
        return self._bytes[key]

    def held(self, type_: Attribute, layout: Layout) -> float:
        """Bytes of a value on each device: there is one of it."""
        return self.bytes(type_, layout)

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """Arguments are there from the beginning."""
        return 0.0

    def op(
        self,
        op: Operation,
        rule: Rule,
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> float:
        """Seconds of an op of the sequential program on each device."""
        return max(c.seconds for c in self._costs(op, rule, operands, results))

    def workspace(
        self,
        op: Operation,
        rule: Rule,
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> int:
        """Bytes that an op needs besides its operands and results while it runs."""
        return max(c.workspace for c in self._costs(op, rule, operands, results))

    def is_view(self, op: Operation) -> bool:
        """Whether an op's result is its first operand's memory."""
        return op.name in VIEWS

    def _costs(
        self,
        op: Operation,
        rule: Rule,
        operands: Sequence[Layout],
        results: Sequence[Layout],
    ) -> list[Cost]:
        """What an op under these layouts costs, on each kind of device of the cluster."""
        work = Work(rule, self._parts(rule, operands) if rule.flops else {})
        sizes = [
            tuple(self.bytes(v.type, x) for v, x in zip(values, layouts, strict=True))
            for values, layouts in ((op.operands, operands), (op.results, results))
        ]
        return [cost_of(CostContext(op, kind, work, *sizes)) for kind in self.kinds]

    def _parts(self, rule: Rule, operands: Sequence[Layout]) -> dict[int, int]:
        """Into how many parts each of the factors of an op is split."""
        axes: dict[int, set[str]] = {}
        for layout, dims in zip(operands, rule.operands, strict=True):
            for d, dim in enumerate(dims):
                split = factor_shards(layout.dim(d), dim, rule, self.mesh) or {}
                for factor, shards in split.items():
                    axes.setdefault(factor, set()).update(s.axis for s in shards)
        return {f: prod(self.mesh.size(a) for a in split) for f, split in axes.items()}

    def reshard(self, type_: Attribute, before: Layout, after: Layout) -> float:
        """Seconds of the ops that `lower-reshard` makes of it; infinite if it cannot."""
        if before == after or not isinstance(type_, TensorType):
            return 0.0
        key = (id(type_), before, after)
        if key not in self._reshards:
            self._seen.append(type_)
            self._reshards[key] = self._reshard(type_, before, after)
        return self._reshards[key]

    def _reshard(
        self, type_: TensorType[Attribute], before: Layout, after: Layout
    ) -> float:
        steps = self._plan(type_.get_shape(), before, after)
        if steps is None:
            return inf
        seconds, layout = 0.0, before
        for step in steps:
            sizes = self.bytes(type_, layout), self.bytes(type_, step.layout)
            key = (step.kind, step.axes, *sizes)
            if key not in self._steps:
                source = Block(arg_types=[with_layout(type_, layout)]).args[0]
                self._steps[key] = self._communication(op_of_step(source, step))
            seconds += self._steps[key]
            layout = step.layout
        return seconds

    def _plan(
        self, shape: tuple[int, ...], before: Layout, after: Layout
    ) -> Sequence[ReshardStep] | None:
        """
        The steps of a change of layout; None if there are none. Without run lengths they
        are the same for all shapes that can have the layouts, as all sizes are fractions of
        the whole.
        """
        shards = (s for layout in (before, after) for dim in layout.dims for s in dim)
        runs = any(s.run is not None for s in shards)
        key = (before, after, shape if runs else len(shape))
        if key not in self._plans:
            planner = self._planner
            if planner is None or (planner.after, planner.shape) != (after, shape):
                if layout_problem(shape, after, self.mesh) is not None:
                    self._plans[key] = None
                    return None
                planner = self._planner = Planner(after, shape, self.mesh)
            self._plans[key] = planner.find(before)
        return self._plans[key]

    def _communication(self, op: Operation) -> float:
        transfers = transfers_of(op, self.device_map)
        if transfers is not None:
            return sum(float(np.max(t.seconds)) for t in transfers)
        sizes = [
            tuple(self.device_map.bytes_of(v, op) for v in values)
            for values in (op.operands, op.results)
        ]
        work = Work(rule_for(op), {})
        contexts = (CostContext(op, kind, work, *sizes) for kind in self.kinds)
        return max(cost_of(context).seconds for context in contexts)
