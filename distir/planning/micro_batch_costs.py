"""A cost model for programs whose batch is split into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block

from distir.dialects.device import ClusterOp
from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.onnx import operator
from distir.interpreters.simulator.profiles.profile import Profile
from distir.pipelining import PipelineSchedule, in_flight_per_rank
from distir.planning.simulated_costs import SimulatedCosts
from distir.planning.strategies import Strategy
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import (
    PartialPlacement,
    ReplicatedPlacement,
    SplitPlacement,
    placement_in,
)
from distir.sharding.rule import rule_for
from distir.transforms.pipelines.over_time import (
    micro_batch_type,
    whole_type,
    without_time,
)


@dataclass(frozen=True)
class Shares:
    """
    The fraction of a program's values that each device of a pipeline holds.

    - `of_all`: of parameters, gradients and states, which the ranks divide between them;
    - `of_micro_batch`: of the values of one micro-batch, which the ranks divide too but
      keep for all micro-batches that are under way.

    A rank holds as much as the others only if the stages are balanced, which the search of
    layouts cannot know; the simulator has the last word.
    """

    of_all: float = 1.0
    of_micro_batch: float = 1.0

    @staticmethod
    def of(schedule: PipelineSchedule) -> Shares:
        """
        Returns the shares under a schedule, on the rank that keeps the most micro-batches.
        """
        return Shares(
            1 / schedule.ranks, max(in_flight_per_rank(schedule)) / schedule.stages
        )


class MicroBatchCosts(SimulatedCosts):
    """
    The cost model of a mesh whose first axis is the micro-batch axis.

    An op or a change of layout costs what it costs for one micro-batch; the graph counts
    how many of them there are. Combining the micro-batches costs what `pipeline` makes of
    it: terms of a sum are added one by one, or parts are joined, both on each device by
    itself; then the whole value is brought to its layout. Sends between stages are free
    here.
    """

    def __init__(
        self,
        mesh: Mesh,
        cluster: ClusterOp,
        shares: Shares | None = None,
        profiles: Sequence[Profile] = (),
    ):
        devices = Mesh(mesh.name, mesh.axes[1:], mesh.devices[: _size(mesh)])
        super().__init__(devices, cluster, profiles)
        self.mesh = mesh
        self.shares = shares or Shares()

    def held(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the bytes of a device's memory that a value takes, for all micro-batches
        under way.
        """
        is_split = TIME_AXIS in layout.split_axes
        share = self.shares.of_micro_batch if is_split else self.shares.of_all
        return share * self.bytes(type_, layout)

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the seconds of dividing an argument that holds the whole batch into
        micro-batches.
        """
        divides = TIME_AXIS in layout.split_axes and self.mesh.size(TIME_AXIS) > 1
        if not divides or not isinstance(type_, TensorType):
            return 0.0
        return self._joining("Concat", type_, without_time(layout))

    def _reshard(
        self, type_: TensorType[Attribute], before: Layout, after: Layout
    ) -> float:
        now, then = placement_in(before, TIME_AXIS), placement_in(after, TIME_AXIS)
        if now == then:
            part = self._part(type_, before)
            return super()._reshard(part, without_time(before), without_time(after))
        match now, then:
            case PartialPlacement(), ReplicatedPlacement.REPLICATED:
                start = without_time(before)
                adding = self._joining("Add", type_, start)
                return adding * (self.mesh.size(TIME_AXIS) - 1) + super()._reshard(
                    type_, start, after
                )
            case SplitPlacement(), ReplicatedPlacement.REPLICATED:
                whole = whole_type(
                    with_layout(type_, before), self.mesh, self.mesh.name
                )
                start = layout_of(whole)
                assert start is not None
                return self._joining("Concat", type_, start) + super()._reshard(
                    type_, start, after
                )
            case ReplicatedPlacement.REPLICATED, SplitPlacement():
                # The dimension is gathered on every device, which then takes its part.
                together = before.with_dim(then.dim, (), type_.get_num_dims())
                part, end = self._part(type_, after), without_time(after)
                return super()._reshard(type_, before, together) + super()._reshard(
                    part, together, end
                )
            case _:
                return inf

    def _part(
        self, type_: TensorType[Attribute], layout: Layout
    ) -> TensorType[Attribute]:
        """Returns the type of one micro-batch of a value, on all devices."""
        part = micro_batch_type(with_layout(type_, layout), self.mesh, self.mesh.name)
        assert isinstance(part, TensorType)
        return TensorType(type_.element_type, part.get_shape())

    def _joining(
        self, name: str, type_: TensorType[Attribute], layout: Layout
    ) -> float:
        """
        Returns the seconds of adding up values of that type, or of joining all parts of
        one.
        """
        count, attributes = (2, {}) if name == "Add" else (1, {"axis": 0})
        values = Block(arg_types=[type_] * count).args
        op = operator(name).build_op(list(values), [type_], attributes)
        strategy = Strategy((), (layout,) * count, (layout,))
        return self.op(op, rule_for(op), strategy)


def _size(mesh: Mesh) -> int:
    """Returns the number of devices of a mesh."""
    return len(mesh.devices) // mesh.size(TIME_AXIS)


def costs_on(
    mesh: Mesh,
    cluster: ClusterOp,
    shares: Shares | None = None,
    profiles: Sequence[Profile] = (),
) -> SimulatedCosts:
    """
    Returns the simulated costs on a mesh of a cluster. If the mesh's first axis is the
    micro-batch axis, they are those of micro-batches, in a pipeline whose devices hold
    `shares`. Raises DistIRError.
    """
    if mesh.has_time:
        return MicroBatchCosts(mesh, cluster, shares, profiles)
    return SimulatedCosts(mesh, cluster, profiles)
