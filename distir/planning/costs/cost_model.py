"""The interface of cost models, which price strategies and reshards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import ceil, inf, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import Layout
from distir.dialects.onnx_ops.traits import VIEWS
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.planning.graph.strategies import LayoutStrategy
from distir.sharding.layout import layout_problem, local_shape
from distir.sharding.mesh import Mesh
from distir.sharding.reshard import Planner, ReshardStep
from distir.sharding.rule import BY_ITSELF, Rule, factor_shards


class CostModel(ABC):
    """
    Prices ops and reshards on each device of a mesh, in the model's own `unit`, and
    computes the memory in bytes that they need. A cost multiplied by `scale` is large
    enough that a solver does not take it for a rounding error.

    A subclass prices an op (`op`) and a single collective (`step`). The collectives of
    a reshard and the bytes of values are the same in all models.
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
        # Changes to one target layout are asked for one after the other.
        self._planner: Planner | None = None
        # Types are identified by their ids, as hashing them is slow, so they must stay
        # alive.
        self._seen: list[Attribute] = []

    @abstractmethod
    def op(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> float:
        """Returns the cost of `op` under `strategy`."""

    @abstractmethod
    def step(
        self, type_: TensorType[Attribute], before: Layout, step: ReshardStep
    ) -> float:
        """
        Returns the cost of one collective, `step`, on a value of the sequential type
        `type_` in the layout `before`.
        """

    def reshard(self, type_: Attribute, before: Layout, after: Layout) -> float:
        """
        Returns the cost of resharding a value of the sequential type `type_` from
        layout `before` to layout `after`. The cost is the sum over the steps that
        `lower-reshard` makes. Returns infinity if no steps lead to `after`.
        """
        if before == after or not isinstance(type_, TensorType):
            return 0.0
        key = (id(type_), before, after)
        if key not in self._reshards:
            self._seen.append(type_)
            self._reshards[key] = self._reshard(type_, before, after)
        return self._reshards[key]

    def bytes(self, type_: Attribute, layout: Layout) -> int:
        """
        Returns the bytes on each device of a value of the sequential type `type_` in
        `layout`.
        """
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
        Returns the bytes of a device's memory that a value of the sequential type
        `type_` takes while it lives. In models of micro-batches these are the bytes of
        all micro-batches under way. If the ranks of a pipeline divide the values among
        themselves, the result covers only the device's share.
        """
        return self.bytes(type_, layout)

    def argument(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the cost of preparing an argument in `layout` before ops can use it. The
        cost is 0 unless a subclass overrides this method.
        """
        return 0.0

    def send(self, type_: Attribute, layout: Layout) -> float:
        """
        Returns the cost of sending a value of the sequential type `type_` in `layout`
        to the next pipeline rank. The cost is 0 in models without a pipeline.
        """
        return 0.0

    def workspace(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> int:
        """
        Returns the bytes of temporary memory that an op needs while it runs, besides
        its operands and results.
        """
        return 0

    def is_view(self, op: Operation) -> bool:
        """Whether the result of an op is a view of its first operand."""
        return VIEWS.of(op)

    def _parts(self, rule: Rule, operands: Sequence[Layout]) -> dict[int, int]:
        """
        Returns the number of parts into which each factor of an op is split. Factors
        that no operand splits are left out.
        """
        axes: dict[int, set[str]] = {}
        for layout, dims in zip(operands, rule.operands, strict=True):
            for d, dim in enumerate(dims):
                split = factor_shards(layout.dim(d), dim, rule, self.mesh) or {}
                for factor, shards in split.items():
                    axes.setdefault(factor, set()).update(s.axis for s in shards)
        parts = {f: prod(self.mesh.size(a) for a in split) for f, split in axes.items()}
        if rule.own_axes:
            parts[BY_ITSELF] = rule.parts_on(self.mesh)
        return parts

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
        Returns the steps of a reshard, or None if no steps lead from `before` to
        `after`. Layouts without run lengths (block sizes) have the same steps for all
        shapes of the same rank, because all sizes are fractions of the whole; these
        steps are computed once.
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
