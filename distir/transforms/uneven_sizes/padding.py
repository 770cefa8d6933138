"""
Pads dimensions of parameters with zeros, so that a mesh axis can split them. A
vocabulary of 50257 words over two devices becomes one of 50258, and the last row of the
embedding is zeros. Ops that take the padded dimension keep the zeros: products with
zeros are zeros and add nothing to sums, and updates of optimizers keep zeros. Logits of
added classes become minus infinity before a loss, so that the loss and its gradient are
the same as without padding. If an op is not known to keep zeros, the padding is removed
before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist_attributes import ENTRIES
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import PERMUTATIONS, SUMS, ZEROS_OF_ANY
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.gradients.rule import GradientBuilder
from distir.program import argument_roles
from distir.sharding.rule import rule_for
from distir.transforms.uneven_sizes.zero_padding import ZeroPadder, zeros_through
from distir.transforms.uneven_sizes.zero_runs import PassedZeros, Zeros

_KEEP_ZEROS = PERMUTATIONS | ZEROS_OF_ANY | SUMS | {"onnx.Cast", "onnx.Neg"}
"""The ops through which padding is followed if they take the whole padded dimension."""


class DimensionPadder(ZeroPadder):
    """
    Pads dimensions of parameters of a program, in place. `dims` maps the index of each
    argument to the dimension to pad. All these dimensions have the same size, and
    `size` is their size after padding.
    """

    def __init__(self, function: FuncOp, dims: Mapping[int, int], size: int):
        super().__init__([function], function)
        self.size = size
        self.ways: dict[Operation, PassedZeros] = {}
        """
        The ops that work on the padded dimension, with the padding of operands and
        results.
        """
        self.masked: dict[SSAValue, SSAValue] = {}
        """
        The padded logits with minus infinity for added classes, by the original logits.
        """
        args = function.args
        self.before = shape_of(args[next(iter(dims))].type)[next(iter(dims.values()))]
        self.zeros.update({args[i]: self._at(dim) for i, dim in dims.items()})
        for op in function.body.block.ops:
            if not isinstance(op, ReturnOp) and any(
                v in self.zeros for v in op.operands
            ):
                self._follow(op)

    def _at(self, dim: int) -> Zeros:
        """Returns the padding at the end of the dimension `dim`."""
        return Zeros(dim, ((self.before, self.size - self.before),))

    def is_of_use(self) -> bool:
        """Whether all uses of the parameters can work on the padded dimension."""
        return all(
            use.operation in self.ways or isinstance(use.operation, ReturnOp)
            for value in self.zeros
            if isinstance(value, BlockArgument)
            for use in value.uses
        )

    # Which values are padded

    def way(self, op: Operation) -> PassedZeros | None:
        return self.ways.get(op)

    def _follow(self, op: Operation) -> None:
        """
        Determines whether `op` can work on the padded dimension, and which results of
        `op` are then padded.
        """
        given = [self.zeros.get(v) for v in op.operands]
        dims = {i: zeros.dim for i, zeros in enumerate(given) if zeros is not None}
        way: PassedZeros | None = None
        match op:
            case CrossEntropyOp():
                if dims == {0: len(shape_of(op.logits.type)) - 1}:
                    way = PassedZeros(given, [None] * len(op.results))
            case CrossEntropyGradOp():
                if dims == {1: len(shape_of(op.logits.type)) - 1}:
                    way = PassedZeros(given, [given[1]])
            case GatherGradOp():
                if dims == {2: op.dimension}:
                    way = PassedZeros(given, [given[2]])
            case OnnxOp() if op.name == "onnx.Gather":
                axis = op.attribute("axis") % len(shape_of(op.operands[0].type))
                if dims == {0: axis}:
                    way = PassedZeros(given, [None])
            case SquareSumOp():
                way = PassedZeros(given, [None] * len(op.results))
            case UpdateOp():
                way = self._way_of_update(op, set(dims.values()))
            case _ if op.name in _KEEP_ZEROS:
                index = next(iter(dims))
                way = zeros_through(op, False, index, self._at(dims[index]))
                if way is not None and not self._is_alike(way, given):
                    way = None
            case _:
                pass
        if way is not None:
            self.ways[op] = way
            for value, zeros in zip(op.results, way.results, strict=True):
                if zeros is not None:
                    self.zeros[value] = zeros

    @staticmethod
    def _is_alike(way: PassedZeros, given: Sequence[Zeros | None]) -> bool:
        """
        Whether all padding in `way` is at the end of the dimension, and agrees with
        `given`, the known padding of the operands.
        """
        everywhere = [z for side in way for z in side if z is not None]
        return len({zeros.runs for zeros in everywhere}) == 1 and all(
            zeros in (None, own) for zeros, own in zip(given, way.operands, strict=True)
        )

    def _way_of_update(self, op: UpdateOp, dims: Collection[int]) -> PassedZeros | None:
        """
        Returns the padding of the operands and results of `op`, the update of a padded
        parameter. Returns None if the update cannot work on padded tensors. The states
        of the update must have no other use.
        """
        parameter, gradient, *states = op.tensors
        if (
            not op.IS_WHOLE
            or len(dims) != 1
            or any(
                value not in self.zeros and not self._is_state(value, op)
                for value in (parameter, *states)
            )
        ):
            return None
        zeros = self._at(*dims)
        self.zeros.update({v: zeros for v in op.tensors if v is not gradient})
        return PassedZeros(
            [zeros if v in op.tensors else None for v in op.operands],
            [zeros] * len(op.results),
        )

    @staticmethod
    def _is_state(value: SSAValue, op: UpdateOp) -> bool:
        """Whether `value` is an argument that only the update `op` uses."""
        return isinstance(value, BlockArgument) and all(
            use.operation is op for use in value.uses
        )

    # What they become

    def adapt(
        self,
        op: Operation,
        operands: list[SSAValue],
        way: PassedZeros,
        build: GradientBuilder,
    ) -> None:
        match op:
            case CrossEntropyOp():
                operands[0] = self._masked(op.logits, operands[0], build)
            case CrossEntropyGradOp():
                operands[1] = self._masked(op.logits, operands[1], build)
            case GatherGradOp():
                operands[1] = self._from_start(operands[1], build)
            case OnnxOp() if op.name == "onnx.Gather":
                operands[1] = self._from_start(operands[1], build)
            case _:
                pass

    def finish(self, op: Operation, new: Operation, build: GradientBuilder) -> None:
        if isinstance(op, CrossEntropyOp):
            new.attributes[ENTRIES] = ENTRIES.attr(self.before)

    def _from_start(self, indices: SSAValue, build: GradientBuilder) -> SSAValue:
        """
        Returns `indices` with each negative index, which counts from the end, replaced
        by the same index counted from the start.
        """
        assert isinstance(indices.type, TensorType)
        count = build.scalar(self.before, indices)
        found = build.onnx("Mod", indices, count)
        assert isinstance(found.owner, Operation)
        found.owner.attributes[ENTRIES] = ENTRIES.attr(self.before)
        return found

    def _masked(
        self, logits: SSAValue, new: SSAValue, build: GradientBuilder
    ) -> SSAValue:
        """
        Returns the padded logits `new` with minus infinity for the added classes. The
        infinities are added as a vector, like the bias of a matrix product.
        """
        known = self.masked.get(logits)
        if known is not None:
            return known
        places = build.onnx(
            "Range",
            *(build.constant(np.array(n, np.int64)) for n in (0, self.size, 1)),
        )
        is_class = build.onnx(
            "Less", places, build.constant(np.array(self.before, np.int64))
        )
        zero, low = build.scalar(0.0, new), build.scalar(-np.inf, new)
        found = build.onnx("Add", new, build.onnx("Where", is_class, zero, low))
        self.masked[logits] = found
        return found


def class_dimensions(function: FuncOp) -> dict[int, int]:
    """
    Returns the dimension of the vocabulary in each parameter that has one, by argument
    index. In parameters that compute the logits of a cross-entropy, this is the
    dimension of the classes; in tables that integers look up, it is the dimension of
    the same size. Returns an empty dictionary if losses have different numbers of
    classes.
    """
    found: dict[int, int] = {}
    pending = [
        (op.logits, len(shape_of(op.logits.type)) - 1)
        for op in function.body.block.ops
        if isinstance(op, CrossEntropyOp)
    ]
    sizes = {shape_of(value.type)[dim] for value, dim in pending}
    roles = argument_roles(function)
    while pending:
        value, dim = pending.pop()
        if isinstance(value, BlockArgument):
            if roles[value.index] == "parameter":
                found[value.index] = dim
            continue
        op = value.owner
        if isinstance(op, Operation) and op.name in _KEEP_ZEROS:
            rule = rule_for(op)
            factors = rule.results[0][dim]
            pending += [
                (operand, dims.index(factors))
                for operand, dims in zip(op.operands, rule.operands, strict=True)
                if len(factors) == 1 and factors in dims
            ]
    for op in function.body.block.ops:
        if isinstance(op, OnnxOp) and op.name == "onnx.Gather":
            table = op.operands[0]
            axis = op.attribute("axis") % len(shape_of(table.type))
            if (
                isinstance(table, BlockArgument)
                and roles[table.index] == "parameter"
                and shape_of(table.type)[axis] in sizes
            ):
                found.setdefault(table.index, axis)
    return found if len(sizes) == 1 else {}
