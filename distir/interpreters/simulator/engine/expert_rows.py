"""
The rows of experts that a device is expected to hold, compute with and send.

The types of a program have room for the worst case, in which all tokens choose the
experts of one device. If no token is dropped, the simulator counts fewer rows: those of
the busiest device, at the imbalance that grouped products assume. Software whose
buffers are as long as the tokens that arrive behaves like this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import (
    CombineWeightsGradOp,
    GroupedOp,
    RoutedRowsOp,
    rows_of,
)
from distir.sharding.mesh import Mesh


@dataclass(frozen=True)
class ExpertRows:
    """
    The rows of a mixture of experts that drops no token. `taken` is the mean fraction
    of the rows that are not empty, and `imbalance` the load of the busiest device as a
    multiple of the mean load. `group_limit` is empty, or the number of groups of
    experts, the number of groups of one token, and the number of a token's experts.
    """

    taken: float
    imbalance: float
    group_limit: tuple[int, ...] = ()

    def share(self, value: SSAValue, meshes: Mapping[str, Mesh]) -> float:
        """
        Returns the fraction of the rows of `value` that are not empty on the busiest
        device. If a device holds the rows of all shards, this is the mean fraction.
        """
        layout = layout_of(value)
        shards = layout.dim(0) if layout is not None else ()
        parts = prod(meshes[layout.mesh].size(s.axis) for s in shards) if layout else 1
        return min(1.0, self.taken * self.imbalance) if parts > 1 else self.taken


def expert_rows(function: FuncOp) -> dict[SSAValue, ExpertRows]:
    """
    Maps values of a function to the rows of experts that they hold, if some of these
    rows are always empty. The values are operands and results of grouped products, and
    values that are computed row by row from or into such rows.
    """
    following = _Following()
    weights: list[CombineWeightsGradOp] = []
    for block in function.body.blocks:
        for op in block.ops:
            if isinstance(op, GroupedOp):
                following.begin(op)
            elif isinstance(op, CombineWeightsGradOp):
                weights.append(op)
    if following.rows:
        following.run()
        for op in weights:
            if op.slots in following.slots:
                following.add(op.x, following.slots[op.slots])
        following.run()
    return following.rows


class _Following:
    """
    Finds the values of a function that hold rows of experts. `slots` maps each tensor
    that holds the row numbers of the tokens' choices to these rows.
    """

    def __init__(self):
        self.rows: dict[SSAValue, ExpertRows] = {}
        self.slots: dict[SSAValue, ExpertRows] = {}
        self._pending: list[SSAValue] = []

    def begin(self, op: GroupedOp) -> None:
        """Adds the rows of a grouped product, unless none of its rows can be empty."""
        shards, _, places = rows_of(op.rows)
        taken = op.taken_of(shards, places) / (shards * places)
        if op.imbalance is not None and taken < 1:
            limit = () if op.group_limit is None else op.group_limit.get_values()
            load = op.imbalance.value.data
            self.add(op.rows, ExpertRows(taken, load, tuple(map(int, limit))))

    def add(self, value: SSAValue, rows: ExpertRows) -> None:
        """
        Adds a value. The next `run` adds the values that are computed row by row from
        it.
        """
        if value not in self.rows:
            self.rows[value] = rows
            self._pending.append(value)

    def run(self) -> None:
        """Adds all values that are computed from or into known rows, row by row."""
        while self._pending:
            value = self._pending.pop()
            around = [use.operation for use in value.uses]
            if isinstance(value.owner, Operation):
                around.append(value.owner)
            for op in around:
                if isinstance(op, RoutedRowsOp):
                    self.slots[op.slots] = self.rows[value]
                for other in _with_rows(op, rows_of(value)):
                    self.add(other, self.rows[value])


def _with_rows(op: Operation, rows: tuple[int, int, int]) -> Iterator[SSAValue]:
    """
    Yields the operands and results of `op` that have `rows` as their first dimensions.
    """
    if isinstance(op, CallOp):
        return  # the called function is looked at by itself
    for value in (*op.operands, *op.results):
        if isinstance(value.type, TensorType) and shape_of(value)[:3] == rows:
            yield value
