"""
The purpose of a mesh axis, and a program's own requests about the use of the axis.

Many plans cost equally little work and communication. The purpose of the axis decides
between these plans. An axis may be for splitting the inputs; the parameters then
follow. Or an axis may be for splitting parameters; the activations then follow from
contractions with parameters. `AxisPolicy` holds this purpose, and the program's own
requests: constraints (`dist.constrain`), and sums that are reduced late
(`dist.reduce_late`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.dialects.dist_attributes import REDUCE_LATE
from distir.dialects.train_ops.experts import GroupedOp
from distir.planning.axes.axis_op import AxisProgram
from distir.planning.axes.runs import RunLengths
from distir.planning.graph.strategies import SplitFactor
from distir.sharding.placement import Placement, SplitPlacement, placement_in

Splits = dict[SSAValue, set[SplitPlacement]]


class AxisPolicy:
    """
    The purpose of one mesh axis.

    - `program`: the view of the program for this axis;
    - `split_parameters`: whether parameters, and values computed from parameters and
      constants only, may start a split. On a data axis, only a split input, label or
      annotated parameter may start a split;
    - `is_forward`: whether the program is the forward pass of a training step. The
      backward pass will follow the layouts of the parameters;
    - `leaves_split`: whether results may leave the program split at no cost. Otherwise
      the plan pays for gathering the results that the axis splits.
    """

    def __init__(
        self,
        program: AxisProgram,
        *,
        split_parameters: bool,
        is_forward: bool,
        leaves_split: bool = False,
    ):
        self.program = program
        self.split_parameters = split_parameters
        self.is_forward = is_forward
        self.leaves_split = leaves_split
        self._late: dict[str, set[SSAValue]] = {}

    @cached_property
    def hints(self) -> Splits:
        """
        The block-cyclic splits of each value that its consumers could use without
        communication. They are found by following the contiguous splits of each op
        backwards along the sharding rules. For example, the columns of a fused QKV
        matrix get the split by heads in this way.
        """
        if not self.split_parameters:
            return {}
        program = self.program
        functions = program.functions.values()
        return RunLengths(functions, program.info, backwards=True).splits

    @cached_property
    def requested(self) -> Splits:
        """
        The splits of each value that a later `dist.constrain` requests. They are
        followed backwards through ops that are not contractions, and across calls. An
        op may cut its operands into parts if its result is requested in parts.
        """
        requested = Splits()
        if any(
            type(op) is ConstrainOp
            for function in self.program.functions.values()
            for op in function.body.block.ops
        ):
            self._collect(self.program.entry.sym_name.data, (), requested)
        return requested

    def _collect(
        self, name: str, results: Sequence[set[SplitPlacement]], requested: Splits
    ) -> list[set[SplitPlacement]]:
        """
        Adds the requested splits of the values of function `name` to `requested`.
        `results` holds the splits requested for the function's results, and is empty
        for the entry function. Returns the splits requested for the function's
        arguments.
        """
        block = self.program.functions[name].body.block
        for op in reversed(list(block.ops)):
            if type(op) is ReturnOp:
                for value, requests in zip(
                    op.operands[: len(results)], results, strict=True
                ):
                    requested.setdefault(value, set()).update(requests)
            elif type(op) is CallOp:
                inner = self._collect(
                    op.callee.string_value(),
                    [requested.get(r, set()) for r in op.results],
                    requested,
                )
                for value, requests in zip(op.operands, inner, strict=True):
                    requested.setdefault(value, set()).update(requests)
            elif type(op) is ConstrainOp:
                # A sum that is scattered where it ends is no reason to compute its parts.
                if REDUCE_LATE in op.attributes:
                    continue
                target = placement_in(op.layout.data, self.program.axis)
                if op.fixes(self.program.axis) and isinstance(target, SplitPlacement):
                    requested.setdefault(op.source, set()).add(target)
            elif any(r in requested for r in op.results):
                self._carry(op, requested)
        return [requested.get(arg, set()) for arg in block.args]

    def _carry(self, op: Operation, requested: Splits) -> None:
        info = self.program.info(op)
        if info.rule.flops:
            return
        for split in self.hinted(op, requested):
            strategy = info.strategy(split)
            if strategy is None:
                continue
            for value, p in zip(op.operands, strategy.operands, strict=True):
                if isinstance(p, SplitPlacement):
                    requested.setdefault(value, set()).add(p)

    def asked_rows(self, op: Operation) -> Placement | None:
        """
        Returns the placement that a `dist.constrain` op requests on this axis for the
        rows of `op`, a product of experts. The product works on the rows where the
        request puts them: tokens are sent to experts, and experts are never sent to
        tokens. Returns None if `op` is not such a product or no request exists.
        """
        if not isinstance(op, GroupedOp):
            return None
        source = op.operands[0].owner
        if not isinstance(source, ConstrainOp) or not source.fixes(self.program.axis):
            return None
        return placement_in(source.layout.data, self.program.axis)

    def late(self, name: str) -> set[SSAValue]:
        """
        Returns the values of function `name` whose partial sums are reduced late. These
        are the operands of ops marked with `dist.reduce_late`, and the values from
        which linear ops alone lead to one of these operands.
        """
        if name not in self._late:
            found = self._late[name] = set[SSAValue]()
            for op in reversed(list(self.program.functions[name].body.block.ops)):
                asked = REDUCE_LATE in op.attributes
                if not asked and not any(r in found for r in op.results):
                    continue
                for linear in self.program.info(op).rule.linear:
                    if len(linear.operands) == 1:
                        (index,) = linear.operands
                        value = op.operands[index]
                        # With another use, the sum may be needed at once.
                        if value.has_one_use():
                            found.add(value)
        return self._late[name]

    def hinted(
        self, op: Operation, hints: Mapping[SSAValue, set[SplitPlacement]]
    ) -> Iterable[SplitFactor]:
        """
        Yields the factors of `op`, with run lengths (block sizes), whose split gives a
        result a placement that `hints` suggests. `hints` has the suggested placements
        of each value.
        """
        info = self.program.info(op)
        for index, result in enumerate(op.results):
            for placement in hints.get(result, ()):
                found = info.factor_of(True, index, placement)
                if found is not None:
                    yield found
