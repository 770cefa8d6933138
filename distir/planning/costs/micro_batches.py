"""A cost model for programs whose batch is split into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block

from distir.dialects.device import ClusterOp
from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.onnx import operator
from distir.interpreters.simulator.profiles.profile import Profile
from distir.pipelining import PipelineSchedule, in_flight_per_rank
from distir.planning.costs.rank_links import RankLink
from distir.planning.costs.simulated import SimulatedCosts
from distir.planning.graph.strategies import Strategy
from distir.planning.stages.graph import estimated_step
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

_SMALL = 0.01
"""
The seconds of sends, as a fraction of the seconds of work, at which the price of sends
is computed.
"""


@dataclass(frozen=True)
class Shares:
    """
    The fraction of a program's values that each device of a pipeline holds.

    - `of_all`: the fraction of parameters, gradients and states, which the ranks of the
      pipeline divide among themselves;
    - `of_micro_batch`: the fraction of the values of one micro-batch, times the number
      of micro-batches for which the device keeps these values.

    The shares are exact only if the stages are balanced. The layout search cannot know
    this, so the simulator judges the memory in the end.
    """

    of_all: float = 1.0
    of_micro_batch: float = 1.0

    @staticmethod
    def of(schedule: PipelineSchedule) -> Shares:
        """
        Returns the shares under a schedule, on the rank that keeps the most
        micro-batches.
        """
        return Shares(
            1 / schedule.ranks, max(in_flight_per_rank(schedule)) / schedule.stages
        )


class MicroBatchCosts(SimulatedCosts):
    """
    The cost model of a mesh whose first axis is the micro-batch axis.

    The cost of an op or a reshard is the cost for one micro-batch; the layout graph
    multiplies it by the number of micro-batches. Combining the micro-batches costs as
    much as the ops that `pipeline` makes to combine them. On each device, terms of a
    sum are added one by one, and parts are concatenated. Then the whole value is
    resharded.

    In a pipeline (`schedule`), costs are sums over all stages, and each device holds
    its `Shares`. The price of a send is the time by which the send lengthens the step
    (`price_of_sends`).
    """

    def __init__(
        self,
        mesh: Mesh,
        cluster: ClusterOp,
        schedule: PipelineSchedule | None = None,
        profiles: Sequence[Profile] = (),
        *,
        blocking_sends: bool = False,
    ):
        size = _size(mesh)
        devices = Mesh(mesh.name, mesh.axes[1:], mesh.devices[:size])
        super().__init__(devices, cluster, profiles)
        self.mesh = mesh
        self.shares, self.price, ranks = Shares(), 0.0, 1
        if schedule is not None:
            self.shares, ranks = Shares.of(schedule), schedule.ranks
            self.price = price_of_sends(schedule, blocking=blocking_sends)
        self.link = RankLink.slowest(self.device_map.hardware, ranks, size)

    def held(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the bytes of a device's memory that a value takes, for all micro-batches
        under way.
        """
        is_split = TIME_AXIS in layout.split_axes
        share = self.shares.of_micro_batch if is_split else self.shares.of_all
        return share * self.bytes(type_, layout)

    def send(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the cost of sending a value from each device of a rank to a device of
        the next rank. The cost is given in seconds of work: this much work lengthens
        the step as much as the send does. `layout` says whether the value is of one
        micro-batch or of all.
        """
        return self.price * self.link.seconds(self.bytes(type_, layout))

    def saved_by_splitting(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the seconds by which a send would be cheaper if the value were split
        over all devices of a rank.
        """
        sent, axes = self.bytes(type_, layout), layout.split_axes
        split = prod(n for axis, n in self.mesh.axes[1:] if axis in axes)
        least = sent * split / _size(self.mesh)
        return self.price * (self.link.seconds(sent) - self.link.seconds(least))

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the seconds of dividing an argument that holds the whole batch into
        micro-batches. Returns 0 if `layout` does not split the argument into
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
        """
        Returns the type of one micro-batch of a value. Its sizes are global, not per
        device.
        """
        part = micro_batch_type(with_layout(type_, layout), self.mesh, self.mesh.name)
        assert isinstance(part, TensorType)
        return TensorType(type_.element_type, part.get_shape())

    def _joining(
        self, name: str, type_: TensorType[Attribute], layout: Layout
    ) -> float:
        """
        Returns the seconds of one op that combines micro-batches. The op `name` is
        `Add`, which adds two values of type `type_`, or `Concat`, which joins all parts
        of a value of that type.
        """
        count, attributes = (2, {}) if name == "Add" else (1, {"axis": 0})
        values = Block(arg_types=[type_] * count).args
        op = operator(name).build_op(list(values), [type_], attributes)
        strategy = Strategy((), (layout,) * count, (layout,))
        return self.op(op, rule_for(op), strategy)


def _size(mesh: Mesh) -> int:
    """Returns the number of devices of a mesh; the micro-batch axis is not counted."""
    return len(mesh.devices) // mesh.size(TIME_AXIS)


def price_of_sends(schedule: PipelineSchedule, *, blocking: bool = False) -> float:
    """
    Returns the price of one second of sends between ranks, in seconds of work: this
    much work lengthens a step as much as a second of sends does. Assumes that sends and
    work are spread evenly over the ranks.

    Devices work while sends are under way, and wait only for the messages that they
    need. The price therefore depends on the schedule. In a long 1F1B schedule it is
    nearly 1, because micro-batches wait for each other's messages in turn. In GPipe
    devices wait only for the first and the last messages. If `blocking`, a send takes
    the time of two ranks and the price is 2. With a single rank the price is 0.
    """
    if schedule.ranks == 1:
        return 0.0
    if blocking:
        return 2.0
    stages, batches = schedule.stages, schedule.micro_batches
    forward = np.full(stages, float(batches))
    backward = np.zeros(stages) if schedule.forward_only else 2 * forward
    phases = {"forward": forward, "backward": backward, "once": np.zeros(stages)}
    work = float((forward + backward).sum())
    sends = _SMALL * work
    without, with_them = (
        estimated_step(schedule, phases, seconds) for seconds in (0.0, sends)
    )
    return (with_them - without) / sends * work / without


def costs_on(
    mesh: Mesh,
    cluster: ClusterOp,
    schedule: PipelineSchedule | None = None,
    profiles: Sequence[Profile] = (),
    *,
    blocking_sends: bool = False,
) -> SimulatedCosts:
    """
    Returns the cost model of a mesh on a cluster, in seconds of the simulator. If the
    first mesh axis is the micro-batch axis, the result is the cost model for
    micro-batches, in a pipeline if `schedule` is given. Raises DistIRError if the mesh
    does not fit the cluster.
    """
    if mesh.has_time:
        return MicroBatchCosts(
            mesh, cluster, schedule, profiles, blocking_sends=blocking_sends
        )
    return SimulatedCosts(mesh, cluster, profiles)
