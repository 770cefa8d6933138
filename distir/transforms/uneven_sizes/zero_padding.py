"""
Pads values of a program with zeros, in place. Subclasses of `ZeroPadder` choose the
values: heads of attention (`head_padding`), or a dimension that parameters share
(`padding`). The padding passes through ops that keep zeros: products with zeros are
zeros and add nothing to sums, and updates of optimizers keep zeros. If an op is not
known to keep zeros, the padding is removed before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.constants import constant_of
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SUMS, ZEROS_OF_ANY, ZEROS_OF_FIRST
from distir.dialects.tensors import element_type, shape_of
from distir.gradients.rule import GradientBuilder
from distir.program import (
    argument_attributes,
    made_with,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.program.source_forms import padded_attributes
from distir.sharding.rule import rule_for
from distir.transforms.uneven_sizes.zero_runs import PassedZeros, Zeros, passed

_OF_ALL = SUMS | {"onnx.Concat"}
"""The ops whose results are zero where all their operands are zero."""


def zeros_through(
    op: Operation, of_result: bool, index: int, zeros: Zeros
) -> PassedZeros | None:
    """
    Returns the padding of all operands and results of `op`, given the padding `zeros`
    of one value: the result with index `index` if `of_result` is set, otherwise the
    operand with index `index`. Returns None if `op` does not keep zeros, or if `op`
    cannot be built for the larger dimension.
    """
    if not ZEROS_OF_FIRST.of(op) and op.name not in ZEROS_OF_ANY | _OF_ALL:
        return None
    found = passed(rule_for(op), of_result, index, zeros)
    return found if found is not None and _keeps(op, found) else None


def _keeps(op: Operation, found: PassedZeros) -> bool:
    """
    Whether `op` can be built for the larger dimension and keeps the padding `found`:
    its results are zero where its operands are padded.
    """
    operands, results = found
    if op.name in ("onnx.Reshape", "onnx.Expand"):
        if constant_of(op.operands[1]) is None:
            return False
    elif op.name in ("onnx.Slice", "onnx.Pad", "onnx.Split"):
        cut = operands[0]
        given = op.operands[1:2] if op.name == "onnx.Split" else op.operands[1:]
        if cut is None or any(constant_of(v) is None for v in given):
            return False
        if op.name != "onnx.Split" and any(
            shape_of(r)[cut.dim] != shape_of(op.operands[0])[cut.dim]
            for r in op.results
        ):
            return False
        if op.name == "onnx.Pad" and not _pads_with_zeros(op):
            return False
    if not any(r is not None for r in results):
        return True  # a sum over the dimension
    if op.name in ZEROS_OF_ANY:
        return any(zeros is not None for zeros in operands)
    if op.name == "onnx.Gemm":
        bias = operands[2:] == [None]
        return not bias and any(zeros is not None for zeros in operands)
    if op.name in _OF_ALL:
        return all(zeros is not None for zeros in operands)
    return operands[0] is not None


def _pads_with_zeros(op: Operation) -> bool:
    assert isinstance(op, OnnxOp)
    fill = op.input(2)
    value = None if fill is None else constant_of(fill)
    is_zero = fill is None or (value is not None and not np.any(value))
    return op.attribute("mode") == "constant" and is_zero


class ZeroPadder(ABC):
    """
    Base class of rewrites that pad values of a program with zeros. `functions` are the
    functions of the program. The last function is the entry function `entry`, which
    calls all others.
    """

    def __init__(self, functions: Sequence[FuncOp], entry: FuncOp):
        self.functions = functions
        self.entry = entry
        self.zeros: dict[SSAValue, Zeros] = {}
        """
        The padding of each padded value. The keys are the values before the change.
        """
        self.padded: dict[SSAValue, SSAValue] = {}
        """The padded value for each key of `zeros`."""
        self.plain: dict[SSAValue, SSAValue] = {}
        """The values without padding, for ops that cannot work on padded values."""

    @abstractmethod
    def way(self, op: Operation) -> PassedZeros | None:
        """
        Returns the padding of the operands and results of `op`. Returns None if `op`
        works on values without padding.
        """

    @abstractmethod
    def adapt(
        self,
        op: Operation,
        operands: list[SSAValue],
        way: PassedZeros,
        build: GradientBuilder,
    ) -> None:
        """
        Changes the operands of `op` that depend on the sizes of padded dimensions, such
        as indices or shapes.
        """

    @abstractmethod
    def finish(self, op: Operation, new: Operation, build: GradientBuilder) -> None:
        """Completes `new`, the op on padded values that replaces `op`."""

    def pad(self) -> None:
        """Pads the program, in place."""
        ways = {
            op: found
            for function in self.functions
            for op in function.body.block.ops
            if not isinstance(op, CallOp | ReturnOp)
            and (found := self.way(op)) is not None
        }
        entry_zeros = {
            arg.index: (self.zeros[arg], shape_of(arg))
            for arg in self.entry.args
            if arg in self.zeros
        }
        for function in self.functions:
            for arg in list(function.args):
                if zeros := self.zeros.pop(arg, None):
                    type_ = _padded_type(arg, zeros)
                    new = Rewriter.replace_value_with_new_type(arg, type_)
                    self.zeros[new], self.padded[new] = zeros, new
        signatures = {
            f.sym_name.data: (
                [self.zeros.get(arg) for arg in f.args],
                [self.zeros.get(value) for value in return_op(f).operands],
            )
            for f in self.functions
        }
        for function in self.functions:
            replaced: list[Operation] = []
            for op in list(function.body.block.ops):
                if isinstance(op, CallOp):
                    sides = signatures.get(op.callee.string_value(), ([], []))
                    way = PassedZeros(*sides)
                    if any(way.operands) or any(way.results):
                        self._replace(op, way)
                        replaced.append(op)
                    else:
                        self._give(op, [None] * len(op.operands))
                elif isinstance(op, ReturnOp):
                    if function is not self.entry:
                        self._give(op, signatures[function.sym_name.data][1])
                elif op in ways:
                    self._replace(op, ways[op])
                    replaced.append(op)
                else:
                    self._give(op, [None] * len(op.operands))
            if function is self.entry:
                self._finish(entry_zeros)
            for op in reversed(replaced):
                Rewriter.erase_op(op)
            function.update_function_type()

    def _replace(self, op: Operation, way: PassedZeros) -> None:
        """Inserts, before `op`, the same op on padded values."""
        build = _builder(op)
        types = [
            r.type if zeros is None else _padded_type(r, zeros)
            for r, zeros in zip(op.results, way.results, strict=True)
        ]
        operands = self._as(op, way.operands, build)
        if op.name in ("onnx.Reshape", "onnx.Expand") and way.results[0] is not None:
            shape = way.results[0].shape(shape_of(op.results[0]))
            operands[1] = build.integers(shape)
        self.adapt(op, operands, way, build)
        new = made_with(op, operands, types)
        build.add(new)
        for old, result, zeros in zip(
            op.results, new.results, way.results, strict=True
        ):
            result.name_hint = old.name_hint
            if zeros is None:
                old.replace_all_uses_with(result)
            else:
                self.zeros[old] = zeros
                self.padded[old] = result
        self.finish(op, new, build)

    def _as(
        self, op: Operation, ways: list[Zeros | None], build: GradientBuilder
    ) -> list[SSAValue]:
        """
        Returns the operands of `op` with the padding in `ways`, which has an entry for
        each operand.
        """
        found: list[SSAValue] = []
        for value, zeros in zip(op.operands, ways, strict=True):
            if zeros is not None and self.zeros.get(value) == zeros:
                found.append(self._padded(value, build))
            elif zeros is not None:
                found.append(_filled(self._plain(value, build), zeros, build))
            else:
                found.append(self._plain(value, build))
        return found

    def _give(self, op: Operation, ways: list[Zeros | None]) -> None:
        """
        Replaces the operands of `op` by the same values with the padding in `ways`,
        which has an entry for each operand.
        """
        if any(v in self.zeros for v in op.operands) or any(ways):
            op.operands = self._as(op, ways, _builder(op))

    def _padded(self, value: SSAValue, build: GradientBuilder) -> SSAValue:
        if value not in self.padded:  # an op computes it without zeros
            self.plain[value] = value
            self.padded[value] = _filled(value, self.zeros[value], build)
        return self.padded[value]

    def _plain(self, value: SSAValue, build: GradientBuilder) -> SSAValue:
        if value not in self.padded:
            return value
        if value not in self.plain:
            self.plain[value] = _cut(self.padded[value], self.zeros[value], build)
        return self.plain[value]

    def _finish(self, arguments: dict[int, tuple[Zeros, tuple[int, ...]]]) -> None:
        """
        Pads the program's results that update padded arguments, and sets attributes
        that describe the padding on these results and arguments.
        """
        function, end = self.entry, return_op(self.entry)
        padded = {
            i: a for i, a in updated_arguments(function).items() if a in arguments
        }
        self._give(
            end,
            [
                arguments[padded[i]][0] if i in padded else None
                for i in range(len(end.operands))
            ],
        )
        given, returned = argument_attributes(function), result_attributes(function)
        said = {
            i: padded_attributes(shape, *zeros)
            for i, (zeros, shape) in arguments.items()
        }
        for i, attributes in said.items():
            given[i] |= attributes
        for i, argument in padded.items():
            returned[i] |= said[argument]
        set_argument_attributes(function, given)
        set_result_attributes(function, returned)


def _padded_type(value: SSAValue, zeros: Zeros) -> TensorType:
    return TensorType(element_type(value), zeros.shape(shape_of(value)))


def _builder(before: Operation) -> GradientBuilder:
    """Returns a builder that inserts ops before the op `before`."""
    block = before.parent_block()
    assert isinstance(block, Block)
    return GradientBuilder(
        lambda op: block.insert_op_before(op, before), before.attributes.get(SCOPE)
    )


def _filled(value: SSAValue, zeros: Zeros, build: GradientBuilder) -> SSAValue:
    """
    Builds ops that add the padding `zeros` to `value`, and returns the padded value.
    """
    dim, runs = zeros
    sizes = [count for count, _ in runs]
    pieces = [value]
    if len(runs) > 1:
        pieces = list(
            build.onnx_results(
                "Split", value, build.integers(sizes), results=len(runs), axis=dim
            )
        )
    for i, (_, more) in enumerate(runs):
        ends = [0] * (2 * len(shape_of(value)))
        ends[len(ends) // 2 + dim] = more
        if more:
            pieces[i] = build.onnx("Pad", pieces[i], build.integers(ends))
    return pieces[0] if len(pieces) == 1 else build.onnx("Concat", *pieces, axis=dim)


def _cut(value: SSAValue, zeros: Zeros, build: GradientBuilder) -> SSAValue:
    """
    Builds ops that remove the padding `zeros` from `value`, and returns the result.
    """
    dim, runs = zeros
    if len(runs) == 1:
        bounds = [build.integers([n]) for n in (0, runs[0][0], dim)]
        return build.onnx("Slice", value, *bounds)
    sizes = [n for run in runs for n in run if n]
    pieces = build.onnx_results(
        "Split", value, build.integers(sizes), results=len(sizes), axis=dim
    )
    kept = [
        (n, is_element)
        for run in runs
        for n, is_element in zip(run, (True, False), strict=True)
        if n
    ]
    elements = [p for p, (_, keep) in zip(pieces, kept, strict=True) if keep]
    return build.onnx("Concat", *elements, axis=dim)
