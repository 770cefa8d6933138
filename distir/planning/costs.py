"""What strategies and changes of layout cost, as searches ask for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import Layout
from distir.dialects.onnx_values import bytes_per_element
from distir.interpreters.simulator.costs.op_costs import VIEWS
from distir.planning.strategies import LayoutStrategy
from distir.sharding.layout import layout_problem, local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.reshard import Planner, ReshardStep
from distir.sharding.rule import Rule, factor_shards


class CostModel(ABC):
    """
    What ops and changes of layout cost each device of a mesh, in a `unit` of its own, and what
    memory they take, in bytes. `scale` times a cost is a number that solvers cannot take
    for a rounding error.

    A subclass says what an op costs (`op`), and one collective (`step`); which collectives a
    change of layout takes, and what values occupy, is the same for all.
    """

    unit: ClassVar[str] = "s"
    scale: ClassVar[float] = 1e9

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._bytes: dict[tuple[int, Layout], int] = {}
        self._reshards: dict[tuple[int, Layout, Layout], float] = {}
        self._plans: dict[
            tuple[Layout, Layout, int | tuple[int, ...]], Sequence[ReshardStep] | None
        ] = {}
        # One after the other, changes to one layout are asked for.
        self._planner: Planner | None = None
        # Types are known by their ids, as it takes long to hash them, and so have to stay.
        self._seen: list[Attribute] = []

    @abstractmethod
    def op(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> float:
        """The cost of an op that follows this strategy."""

    @abstractmethod
    def step(
        self, type_: TensorType[Attribute], before: Layout, step: ReshardStep
    ) -> float:
        """The cost of one collective on a value of that (sequential) type."""

    def reshard(self, type_: Attribute, before: Layout, after: Layout) -> float:
        """
        The cost of bringing a value of that (sequential) type from one layout to
        another, by the steps that `lower-reshard` takes; infinite where no
        communication does that.
        """
        if before == after or not isinstance(type_, TensorType):
            return 0.0
        key = (id(type_), before, after)
        if key not in self._reshards:
            self._seen.append(type_)
            self._reshards[key] = self._reshard(type_, before, after)
        return self._reshards[key]

    def bytes(self, type_: Attribute, layout: Layout) -> int:
        """The bytes that a value of that (sequential) type takes on each device."""
        key = (id(type_), layout)
        if key not in self._bytes:
            self._seen.append(type_)
            size = 0
            if isinstance(type_, TensorType):
                shape = local_shape(type_.get_shape(), layout, self.mesh)
                size = ceil(prod(shape) * bytes_per_element(type_.element_type))
            self._bytes[key] = size
        return self._bytes[key]

    def _sizes(
        self, values: Iterable[SSAValue], layouts: Sequence[Layout]
    ) -> tuple[int, ...]:
        return tuple(
            self.bytes(v.type, x) for v, x in zip(values, layouts, strict=True)
        )

    def held(self, type_: Attribute, layout: Layout) -> float:
        """
        Bytes that a value of that (sequential) type takes of a device's memory while it
        lives: those of each micro-batch that is under way, or its share of a device if the
        devices of a pipeline divide values between them.
        """
        return self.bytes(type_, layout)

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """Until an argument that comes like that is there as ops take it."""
        return 0.0

    def workspace(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> int:
        """Bytes that an op needs besides its operands and results while it runs."""
        return 0

    def is_view(self, op: Operation) -> bool:
        """Whether an op's result is its first operand's memory."""
        return op.name in VIEWS

    def _parts(self, rule: Rule, operands: Sequence[Layout]) -> dict[int, int]:
        """Into how many parts each of the factors of an op is split."""
        axes: dict[int, set[str]] = {}
        for layout, dims in zip(operands, rule.operands, strict=True):
            for d, dim in enumerate(dims):
                split = factor_shards(layout.dim(d), dim, rule, self.mesh) or {}
                for factor, shards in split.items():
                    axes.setdefault(factor, set()).update(s.axis for s in shards)
        return {f: prod(self.mesh.size(a) for a in split) for f, split in axes.items()}

    def _reshard(
        self, type_: TensorType[Attribute], before: Layout, after: Layout
    ) -> float:
        steps = self._plan(type_.get_shape(), before, after)
        if steps is None:
            return inf
        total, layout = 0.0, before
        for step in steps:
            total += self.step(type_, layout, step)
            layout = step.layout
        return total

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
