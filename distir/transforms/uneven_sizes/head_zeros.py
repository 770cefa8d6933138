"""
Which values of a program are padded with heads of zeros, and where their zeros are.

From each attention the zeros are followed, forwards and backwards, through ops that keep
them, and from callers to callees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.constants import constant_of
from distir.dialects.dist_attributes import PADDED, REPACKED
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import SUMS
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import AttentionGradOp, AttentionOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.program import (
    argument_attributes,
    argument_roles,
    calls_of,
    entry_function,
    functions,
    reachable_functions,
    return_op,
    updated_arguments,
)
from distir.sharding.rule import rule_for
from distir.transforms.uneven_sizes.zero_runs import PassedZeros, Zeros, passed, scaled

_OF_FIRST = frozenset(
    {
        *(f"onnx.{n}" for n in ("Cast", "Expand", "Identity", "Neg", "Pad", "Reshape")),
        *(f"onnx.{n}" for n in ("RMSNormalization", "ReduceSum", "RotaryEmbedding")),
        *(f"onnx.{n}" for n in ("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")),
        *("train.rms_norm", "train.rms_norm_grad"),
    }
)
"""The ops whose results are zero where their first operand is zero, and sums of such."""

_OF_ANY = frozenset({"onnx.MatMul", "onnx.Mul"})
"""The ops whose results are zero where one of their operands is zero, and sums of such."""

_OF_ALL = SUMS | {"onnx.Concat"}
"""The ops whose results are zero where each of their terms is zero."""


@dataclass(frozen=True)
class PaddedHeads:
    """How the heads of one attention are padded: how many there are before and after."""

    query_heads: int
    key_heads: int
    new_query_heads: int
    new_key_heads: int

    @staticmethod
    def for_parts(query_heads: int, key_heads: int, parts: int) -> PaddedHeads | None:
        """
        Returns the least padding with which `parts` devices can share these heads; None if
        they can already. Either key heads are added with their groups of query heads, or
        query heads to each group, of which every device then has a part.
        """
        group = query_heads // key_heads
        if key_heads % parts == 0 or group % parts == 0:
            return None
        more_keys = -(-key_heads // parts) * parts
        more_queries = key_heads * (-(-group // parts) * parts)
        if more_keys * group <= more_queries:
            return PaddedHeads(query_heads, key_heads, more_keys * group, more_keys)
        return PaddedHeads(query_heads, key_heads, more_queries, key_heads)

    def zeros_of_queries(self, dim: int, width: int) -> Zeros:
        """
        Returns the zeros of a dimension that has `width` elements for each query head.
        """
        more = self.new_query_heads - self.query_heads
        if self.new_key_heads != self.key_heads:
            return Zeros(dim, ((self.query_heads * width, more * width),))
        runs = ((self.query_heads // self.key_heads, more // self.key_heads),)
        return Zeros(dim, scaled(runs * self.key_heads, width))

    def zeros_of_keys(self, dim: int, width: int) -> Zeros | None:
        """
        Returns the zeros of a dimension that has `width` elements for each key head, if
        any.
        """
        more = self.new_key_heads - self.key_heads
        return Zeros(dim, ((self.key_heads * width, more * width),)) if more else None


class HeadZeros:
    """
    Finds how values of a program are padded so that `parts` devices can share the heads of all
    attention that they cannot share as they are.
    """

    def __init__(self, module: ModuleOp, parts: int):
        self.parts = parts
        self.functions = reachable_functions(module)
        self.entry = entry_function(module)
        self.by_name = functions(module)
        self.calls = {f.sym_name.data: calls_of(f) for f in self.functions}
        self.attention: dict[Operation, PaddedHeads] = {}
        """The attention that is padded."""
        self.zeros: dict[SSAValue, Zeros] = {}
        """How values are padded; keys are the values before the change."""
        self._updated = {
            return_op(self.entry).operands[i]: self.entry.args[a]
            for i, a in updated_arguments(self.entry).items()
        }
        self._pending: deque[SSAValue] = deque()
        for function in self.functions:
            for op in function.body.block.ops:
                self._begin(op)

    def heads(self) -> list[PaddedHeads]:
        """Returns how heads are padded, each way once."""
        return list(dict.fromkeys(self.attention.values()))

    # Which values are padded

    def _begin(self, op: Operation) -> None:
        """Notes how attention is padded, and its operands and results with it."""
        match op:
            case AttentionOp() | AttentionGradOp():
                sizes = op.sizes
                counts = sizes.query_heads, sizes.key_heads
            case OnnxOp() if op.name == "onnx.Attention":
                if any(op.input(i) is not None for i in (4, 5)) or any(
                    result.first_use is not None for result in op.results[1:]
                ):
                    return
                q, k = (shape_of(op.operands[i]) for i in range(2))
                packed = (op.attribute("q_num_heads"), op.attribute("kv_num_heads"))
                counts = packed if len(q) == 3 else (q[1], k[1])
            case _:
                return
        if heads := PaddedHeads.for_parts(*counts, self.parts):
            self.attention[op] = heads
            found = self.zeros_of(op)
            assert found is not None
            self._note(op, found)

    def _note(self, op: Operation, found: PassedZeros) -> None:
        for values, zeros in (
            (op.operands, found.operands),
            (op.results, found.results),
        ):
            for value, own in zip(values, zeros, strict=True):
                if own is not None and value not in self.zeros and self._may(value):
                    self.zeros[value] = own
                    self._pending.append(value)

    def _may(self, value: SSAValue) -> bool:
        """Whether a value may be padded: all but constants and inputs of the program."""
        if not isinstance(value, BlockArgument):
            return value.owner.name != "onnx.Constant"  # type: ignore[union-attr]
        if value.owner is not self.entry.body.block:
            return True
        attributes = argument_attributes(self.entry)[value.index]
        role = argument_roles(self.entry)[value.index]
        return role in ("parameter", "state") and not (
            PADDED in attributes or REPACKED in attributes
        )

    def follow(self) -> None:
        """Finds the values to and from which zeros of attention can be followed."""
        while self._pending:
            value = self._pending.popleft()
            zeros = self.zeros[value]
            for other in self._same(value):
                if other not in self.zeros and self._may(other):
                    self.zeros[other] = zeros
                    self._pending.append(other)
            ops = {use.operation: None for use in value.uses}
            if isinstance(value, OpResult):
                ops[value.op] = None
            for op in ops:
                found = self.zeros_of(op)
                if found is not None:
                    self._note(op, found)

    def _same(self, value: SSAValue) -> Iterator[SSAValue]:
        """Returns the values of callers and callees that are the same as a value."""
        if isinstance(value, BlockArgument):
            function = value.owner.parent_op()
            assert isinstance(function, FuncOp)
            for call in self.calls.get(function.sym_name.data, ()):
                yield call.operands[value.index]
        elif isinstance(value, OpResult) and isinstance(value.op, CallOp):
            callee = self.by_name[value.op.callee.string_value()]
            yield return_op(callee).operands[value.index]
        if value in self._updated:
            yield self._updated[value]
        for use in value.uses:
            op = use.operation
            if isinstance(op, CallOp):
                yield self.by_name[op.callee.string_value()].args[use.index]
            elif isinstance(op, ReturnOp):
                function = op.parent_op()
                assert isinstance(function, FuncOp)
                for call in self.calls.get(function.sym_name.data, ()):
                    yield call.results[use.index]

    def zeros_of(self, op: Operation) -> PassedZeros | None:
        """
        Returns how the operands and results of an op are padded, according to those of them
        that are known to be; None if it cannot work on padded values.
        """
        if op in self.attention:
            return self._zeros_of_attention(op)
        known = [self.zeros.get(v) for v in op.operands]
        if isinstance(op, SquareSumOp):
            return PassedZeros(known, [None] * len(op.results))
        if isinstance(op, UpdateOp):
            return self._zeros_of_update(op)
        if op.name not in _OF_FIRST | _OF_ANY | _OF_ALL:
            return None
        of_results = [self.zeros.get(v) for v in op.results]
        rule = rule_for(op)
        for of_result, side in ((False, known), (True, of_results)):
            for index, zeros in enumerate(side):
                if zeros is not None:
                    found = passed(rule, of_result, index, zeros)
                    if found is not None and self._keeps(op, found):
                        return found
        return None

    def _zeros_of_attention(self, op: Operation) -> PassedZeros:
        heads = self.attention[op]
        is_gradient = isinstance(op, AttentionGradOp)
        first = 3 if is_gradient else 0
        q, k, v = op.operands[first : first + 3]
        packed = len(shape_of(q)) == 3
        dim = 2 if packed else 1

        def width(value: SSAValue, count: int) -> int:
            return shape_of(value)[dim] // count if packed else 1

        value_width = width(v, heads.key_heads)
        queries = heads.zeros_of_queries(dim, width(q, heads.query_heads))
        keys = heads.zeros_of_keys(dim, width(k, heads.key_heads))
        values = heads.zeros_of_keys(dim, value_width)
        y, rows = (
            heads.zeros_of_queries(dim, value_width),
            heads.zeros_of_queries(1, 1),
        )
        operands = [queries, keys, values]
        for mask in op.operands[first + 3 :]:
            of_heads = shape_of(mask)[-3:-2] == (heads.query_heads,)
            where = len(shape_of(mask)) - 3
            operands.append(heads.zeros_of_queries(where, 1) if of_heads else None)
        if is_gradient:
            return PassedZeros([y, y, rows, *operands], [queries, keys, values])
        return PassedZeros(operands, [y, rows, *[None] * 2][: len(op.results)])

    def _zeros_of_update(self, op: UpdateOp) -> PassedZeros | None:
        values = [*op.tensors, *op.results]
        found = next((self.zeros[v] for v in values if v in self.zeros), None)
        shape = shape_of(op.operands[0])
        if found is None or any(
            shape_of(v) != shape for v in values if len(shape_of(v)) > 0
        ):
            return None
        return PassedZeros(
            [found if shape_of(v) == shape else None for v in op.operands],
            [found if shape_of(v) == shape else None for v in op.results],
        )

    @staticmethod
    def _keeps(op: Operation, found: PassedZeros) -> bool:
        """
        Whether the results of an op are zero where its operands are zeros like that, and
        whether it can be made for the larger dimension.
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
        if op.name in _OF_ANY:
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
