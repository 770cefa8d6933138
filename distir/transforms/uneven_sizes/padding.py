"""
Pads dimensions of parameters with zeros, so that an axis can split them.

A vocabulary of 50257 words over two devices becomes one of 50258, whose last row of the
embedding is zeros. Ops that take the larger dimension keep zeros there: products with zeros
are zeros and add nothing to sums, and updates of optimizers keep them. Logits of added
classes are minus infinity before a loss, so that the loss and its gradient are those of the
real classes. An op that is not known to keep zeros takes the dimension without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.constants import constant_of
from distir.dialects.dist_attributes import ENTRIES, PADDED, SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SUMS
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.gradients.rule import GradientBuilder
from distir.program import (
    argument_attributes,
    argument_roles,
    made_with,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.program.source_forms import padded_attribute
from distir.sharding.rule import Rule, rule_for

_KEEP_ZEROS = frozenset(
    f"onnx.{name}"
    for name in ("Cast", "Identity", "MatMul", "Mul", "Neg", "Reshape", "Transpose")
)
"""
The ops whose results are zero where one of their operands is zero, and sums of such
products.
"""


class DimensionPadder:
    """
    Pads dimensions of parameters of a program, in place. `dims` maps indices of arguments
    to the dimension to pad; all of these have the same size. `size` is the new size.
    """

    def __init__(self, function: FuncOp, dims: Mapping[int, int], size: int):
        self.function = function
        self.size = size
        self.dims: dict[SSAValue, int] = {}
        """
        The padded dimension of each value that is padded; keys are the values before the
        change.
        """
        self.kept: set[Operation] = set()
        """The ops that work on the padded dimension."""
        self.fills: dict[Operation, list[tuple[int, int]]] = {}
        """
        The operands (by index) of these ops that must be filled up with zeros, and in which
        dimension.
        """
        self.new: dict[SSAValue, SSAValue] = {}
        """The padded value for each key of `dims`."""
        self.short: dict[SSAValue, SSAValue] = {}
        """The padded values cut back to their original size, for ops that need that."""
        self.masked: dict[SSAValue, SSAValue] = {}
        """The logits in which those of added classes are minus infinity."""
        args = function.args
        self.before = shape_of(args[next(iter(dims))].type)[next(iter(dims.values()))]
        self.dims.update({args[i]: dim for i, dim in dims.items()})
        end = return_op(function)
        for op in function.body.block.ops:
            if op is not end and any(v in self.dims for v in op.operands):
                self._follow(op)

    def is_of_use(self) -> bool:
        """Whether all uses of the parameters can work on the padded dimension."""
        return all(
            use.operation in self.kept or isinstance(use.operation, ReturnOp)
            for value in self.dims
            if isinstance(value, BlockArgument)
            for use in value.uses
        )

    def pad(self) -> None:
        """Changes the program."""
        block = self.function.body.block
        end = return_op(self.function)
        shapes = {
            v.index: shape_of(v.type) for v in self.dims if isinstance(v, BlockArgument)
        }
        for value in [v for v in self.dims if isinstance(v, BlockArgument)]:
            dim = self.dims.pop(value)
            new = Rewriter.replace_value_with_new_type(value, self._type(value, dim))
            self.dims[new], self.new[new] = dim, new
        for op in list(block.ops):
            if op in self.kept:
                self._rewrite(op)
            elif op is not end:
                self._shorten(op, range(len(op.operands)))
        self._finish(end, shapes)

    # Which values are padded

    def _follow(self, op: Operation) -> None:
        """
        Determines whether an op can work on the padded dimension, and which of its results
        are padded.
        """
        given = {i: self.dims[v] for i, v in enumerate(op.operands) if v in self.dims}
        results: dict[SSAValue, int] | None = None
        match op:
            case CrossEntropyOp() if set(given) == {0}:
                results = {} if given[0] == len(shape_of(op.logits.type)) - 1 else None
            case CrossEntropyGradOp() if set(given) == {1}:
                last = len(shape_of(op.logits.type)) - 1
                results = {op.dlogits: last} if given[1] == last else None
            case GatherGradOp() if set(given) == {2}:
                is_table = given[2] == op.dimension
                results = {op.ddata: op.dimension} if is_table else None
            case OnnxOp() if op.name == "onnx.Gather":
                axis = op.attribute("axis") % len(shape_of(op.operands[0].type))
                results = {} if given == {0: axis} else None
            case UpdateOp():
                results = self._follow_update(op, given)
            case SquareSumOp():
                results = {}
            case _ if op.name in _KEEP_ZEROS or op.name in SUMS:
                results = self._follow_factor(op, given)
            case _:
                pass
        if results is not None:
            self.kept.add(op)
            self.dims.update(results)

    def _follow_update(
        self, op: UpdateOp, given: Mapping[int, int]
    ) -> dict[SSAValue, int] | None:
        """
        Returns the padded results of an update of a padded parameter, whose states must
        have no other use; None if it cannot be padded.
        """
        dims = set(given.values())
        _, gradient, *states = op.tensors
        fits = len(dims) == 1 and op.operands[0] in self.dims | self._states(op)
        if not fits or any(
            state not in self.dims and state not in self._states(op) for state in states
        ):
            return None
        (dim,) = dims
        for value in op.tensors:
            if value is not gradient:
                self.dims[value] = dim
        return dict.fromkeys(op.results, dim)

    def _states(self, op: UpdateOp) -> dict[SSAValue, int]:
        """Returns the arguments that are states of an update and have no other use."""
        return {
            value: 0
            for value in op.tensors
            if isinstance(value, BlockArgument)
            and all(use.operation is op for use in value.uses)
        }

    def _follow_factor(
        self, op: Operation, given: Mapping[int, int]
    ) -> dict[SSAValue, int] | None:
        """
        Returns the padded results of an op whose sharding rule has the dimension as a
        factor; None if it cannot be padded.
        """
        rule = rule_for(op)
        factor = self._factor(rule, given)
        if factor is None:
            return None
        if op.name in SUMS and any(
            factor not in {f for dim in dims for f in dim}
            for i, dims in enumerate(rule.operands)
            if op.name != "onnx.Gemm" or (i == 2 and factor in rule.result_factors)
        ):
            return None
        if op.name == "onnx.Reshape" and constant_of(op.operands[1]) is None:
            return None
        self.fills[op] = [
            (i, dims.index((factor,)))
            for i, dims in enumerate(rule.operands)
            if i not in given and (factor,) in dims
        ]
        return {
            result: dims.index((factor,))
            for result, dims in zip(op.results, rule.results, strict=True)
            if (factor,) in dims
        }

    @staticmethod
    def _factor(rule: Rule, given: Mapping[int, int]) -> int | None:
        """
        Returns the factor that all of these dimensions of operands consist of; None if
        there is none, or if other dimensions combine it with other factors.
        """
        found = {rule.operands[i][dim] for i, dim in given.items()}
        if len(found) != 1 or len(next(iter(found))) != 1:
            return None
        ((factor,),) = found
        dims = (d for own in (*rule.operands, *rule.results) for d in own)
        return None if any(factor in d and len(d) > 1 for d in dims) else factor

    # What they become

    def _rewrite(self, op: Operation) -> None:
        """Replaces an op by the same op on padded values."""
        build = self._build(op)
        operands = [self.new.get(v, v) for v in op.operands]
        attributes: dict[str, Attribute] = {}
        match op:
            case CrossEntropyOp():
                operands[0] = self._masked(op.logits, build)
                attributes[ENTRIES] = ENTRIES.attr(self.before)
            case CrossEntropyGradOp():
                operands[1] = self._masked(op.logits, build)
            case OnnxOp() if op.name == "onnx.Gather":
                operands[1] = self._from_start(operands[1], build)
            case GatherGradOp():
                operands[1] = self._from_start(operands[1], build)
            case OnnxOp() if op.name == "onnx.Reshape":
                (dim,) = (self.dims[r] for r in op.results)
                sizes = list(shape_of(op.results[0].type))
                sizes[dim] = self.size
                operands[1] = build.integers(sizes)
            case UpdateOp():
                dim = self.dims[op.results[0]]
                operands[1] = self._filled(op.operands[1], dim, build)
            case SquareSumOp():
                pass
            case _:
                for i, dim in self.fills[op]:
                    operands[i] = self._filled(op.operands[i], dim, build)
        types = [
            self._type(r, self.dims[r]) if r in self.dims else r.type
            for r in op.results
        ]
        new = made_with(op, operands, types)
        new.attributes.update(attributes)
        build.add(new)
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
            if old in self.dims:
                self.new[old] = result
            else:
                old.replace_all_uses_with(result)

    def _filled(self, value: SSAValue, dim: int, build: GradientBuilder) -> SSAValue:
        """Returns a value filled up with zeros at the end of a dimension."""
        if value in self.dims:
            return self.new[value]
        sizes = shape_of(value.type)
        ends = [0] * len(sizes)
        ends[dim] = self.size - self.before
        return build.onnx("Pad", value, build.integers([0] * len(sizes) + ends))

    def _from_start(self, indices: SSAValue, build: GradientBuilder) -> SSAValue:
        """
        Returns indices that count from the start, for indices that may count from the end.
        """
        assert isinstance(indices.type, TensorType)
        count = build.scalar(self.before, indices)
        found = build.onnx("Mod", indices, count)
        assert isinstance(found.owner, Operation)
        found.owner.attributes[ENTRIES] = ENTRIES.attr(self.before)
        return found

    def _masked(self, logits: SSAValue, build: GradientBuilder) -> SSAValue:
        """
        Returns logits with minus infinity for added classes. They are added as a vector, as
        the bias of a product is.
        """
        known = self.masked.get(logits)
        if known is not None:
            return known
        new = self.new[logits]
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

    def _shorten(self, op: Operation, indices: Sequence[int]) -> None:
        """Gives an op its padded operands at these indices without their padding."""
        for i in indices:
            value = op.operands[i]
            if value in self.dims:
                if value not in self.short:
                    build, dim = self._build(op), self.dims[value]
                    bounds = [build.integers([n]) for n in (0, self.before, dim)]
                    self.short[value] = build.onnx("Slice", self.new[value], *bounds)
                op.operands[i] = self.short[value]

    def _finish(self, end: ReturnOp, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """
        Returns padded values for the results that update padded arguments, and sets the
        types of the program.
        """
        function = self.function
        updates = updated_arguments(function)
        padded = {i: a for i, a in updates.items() if a in shapes}
        kept = {i for i in padded if end.operands[i] in self.dims}
        self._shorten(end, [i for i in range(len(end.operands)) if i not in kept])
        for i in padded:
            value, dim = end.operands[i], self.dims[function.args[padded[i]]]
            end.operands[i] = self._filled(value, dim, self._build(end))
        arguments, results = argument_attributes(function), result_attributes(function)
        for i, shape in shapes.items():
            arguments[i][PADDED] = padded_attribute(shape)
        for i, argument in padded.items():
            results[i][PADDED] = padded_attribute(shapes[argument])
        set_argument_attributes(function, arguments)
        set_result_attributes(function, results)
        for op in reversed(list(function.body.block.ops)):
            if op in self.kept:
                Rewriter.erase_op(op)
        function.update_function_type()

    def _type(self, value: SSAValue, dim: int) -> TensorType[Any]:
        """Returns the type of a value with a larger dimension."""
        assert isinstance(value.type, TensorType)
        sizes = list(value.type.get_shape())
        sizes[dim] = self.size
        return TensorType(value.type.element_type, sizes)

    def _build(self, before: Operation) -> GradientBuilder:
        """Returns a builder that inserts ops before an op."""
        block = before.parent_block()
        assert isinstance(block, Block)

        def insert(op: Operation) -> None:
            block.insert_op_before(op, before)

        return GradientBuilder(insert, before.attributes.get(SCOPE))


def class_dimensions(function: FuncOp) -> dict[int, int]:
    """
    Returns, by argument index, the dimension of the classes in the parameters that make the
    classes of a cross-entropy, and the dimension of that size in tables that integers look
    up: a vocabulary.
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
        if isinstance(op, Operation) and (op.name in _KEEP_ZEROS or op.name in SUMS):
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
