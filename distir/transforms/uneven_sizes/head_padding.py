"""
Pads the heads of attention with heads of zeros, so that a mesh axis can split them. Six
heads over four devices become eight; the two added heads have queries, keys and values
of zeros. 14 query heads that share two key heads become 16: each key head serves eight
query heads, and the last of the eight is zeros.

The rewrite follows the zeros from attention, forwards and backwards, through calls and
ops that keep zeros. The zeros reach the parameters of the projections before and after
attention, and the gradients and states of these parameters. Such parameters are stored
with zeros, and updates keep the zeros.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.dist_attributes import PADDED, REPACKED
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.attention import AttentionGradOp, AttentionOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.gradients.rule import GradientBuilder
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
from distir.program.source_forms import places_in, size_of
from distir.transforms.uneven_sizes.zero_padding import ZeroPadder, zeros_through
from distir.transforms.uneven_sizes.zero_runs import PassedZeros, Zeros, scaled


@dataclass(frozen=True)
class PaddedHeads:
    """The numbers of query and key heads of one attention, before and after padding."""

    query_heads: int
    key_heads: int
    new_query_heads: int
    new_key_heads: int

    @staticmethod
    def for_parts(query_heads: int, key_heads: int, parts: int) -> PaddedHeads | None:
        """
        Returns the smallest padding with which `parts` devices can split the heads.
        Returns None if the devices can split the heads without padding. There are two
        ways to pad: add whole groups of a key head and its query heads, or add query
        heads to each group so that every device has a part of each group.
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
        Returns the padding of a dimension that has `width` elements for each query
        head.
        """
        more = self.new_query_heads - self.query_heads
        if self.new_key_heads != self.key_heads:
            return Zeros(dim, ((self.query_heads * width, more * width),))
        runs = ((self.query_heads // self.key_heads, more // self.key_heads),)
        return Zeros(dim, scaled(runs * self.key_heads, width))

    def zeros_of_keys(self, dim: int, width: int) -> Zeros | None:
        """
        Returns the padding of a dimension that has `width` elements for each key head.
        Returns None if no key heads are added.
        """
        more = self.new_key_heads - self.key_heads
        return Zeros(dim, ((self.key_heads * width, more * width),)) if more else None


class HeadPadder(ZeroPadder):
    """
    Pads the heads of all attention in a program that `parts` devices cannot split, in
    place.
    """

    def __init__(self, module: ModuleOp, parts: int):
        self.parts = parts
        super().__init__(reachable_functions(module), entry_function(module))
        self.by_name = functions(module)
        self.calls = {f.sym_name.data: calls_of(f) for f in self.functions}
        self.attention: dict[Operation, PaddedHeads] = {}
        """The attention ops that are padded, with their numbers of heads."""
        returned, arguments = return_op(self.entry).operands, self.entry.args
        self._updated = {
            returned[i]: arguments[a] for i, a in updated_arguments(self.entry).items()
        }
        self._pending: deque[SSAValue] = deque()
        for function in self.functions:
            for op in function.body.block.ops:
                self._begin(op)

    def heads(self) -> list[PaddedHeads]:
        """
        Returns the numbers of heads before and after padding, once for each different
        combination.
        """
        return list(dict.fromkeys(self.attention.values()))

    def pad(self) -> None:
        """Pads the program, in place."""
        self._follow()
        super().pad()

    # Which values are padded

    def _begin(self, op: Operation) -> None:
        """
        If `op` is attention with heads to pad, records the padding of its operands and
        results.
        """
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
        """
        Whether `value` may be padded: it is neither a constant nor an input of the
        program.
        """
        if not isinstance(value, BlockArgument):
            return value.owner.name != "onnx.Constant"  # type: ignore[union-attr]
        if value.owner is not self.entry.body.block:
            return True
        attributes = argument_attributes(self.entry)[value.index]
        role = argument_roles(self.entry)[value.index]
        return role in ("parameter", "state") and not (
            PADDED in attributes or REPACKED in attributes
        )

    def _follow(self) -> None:
        """Finds all values that the zeros of attention reach."""
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
        """
        Yields the values that equal `value` in calling and called functions. If `value`
        replaces an argument in the next step, yields the argument, too.
        """
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
        Returns the padding of the operands and results of `op`, derived from the
        operands and results that are already known to be padded. Returns None if `op`
        cannot work on padded values.
        """
        if op in self.attention:
            return self._zeros_of_attention(op)
        known = [self.zeros.get(v) for v in op.operands]
        if isinstance(op, SquareSumOp):
            return PassedZeros(known, [None] * len(op.results))
        if isinstance(op, UpdateOp):
            return self._zeros_of_update(op)
        of_results = [self.zeros.get(v) for v in op.results]
        for of_result, side in ((False, known), (True, of_results)):
            for index, zeros in enumerate(side):
                if zeros is not None:
                    found = zeros_through(op, of_result, index, zeros)
                    if found is not None:
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

    # What they become

    def way(self, op: Operation) -> PassedZeros | None:
        if not any(v in self.zeros for v in (*op.operands, *op.results)):
            return None
        found = self.zeros_of(op)
        if found is None:
            return None
        own = [self.zeros.get(r) for r in op.results]
        return found if op in self.attention or found.results == own else None

    def adapt(
        self,
        op: Operation,
        operands: list[SSAValue],
        way: PassedZeros,
        build: GradientBuilder,
    ) -> None:
        if op.name == "onnx.Split" and len(operands) > 1:
            cut = way.operands[0]
            assert cut is not None
            sizes = [
                size_of(zeros.runs) if zeros is not None else shape_of(r)[cut.dim]
                for r, zeros in zip(op.results, way.results, strict=True)
            ]
            if sum(sizes) == size_of(cut.runs):
                operands[1] = build.integers(sizes)

    def finish(self, op: Operation, new: Operation, build: GradientBuilder) -> None:
        heads = self.attention.get(op)
        if heads is None:
            if op.name == "onnx.RotaryEmbedding":
                self._count_heads(op, new)
            return
        counts = heads.new_query_heads, heads.new_key_heads
        names = ("q_num_heads", "kv_num_heads")
        for name, count in zip(names, counts, strict=True):
            if name in new.properties:
                new.properties[name] = IntegerAttr(count, i64)
        if not isinstance(op, AttentionGradOp):
            self._mask(op, heads, build)

    def _mask(self, op: Operation, heads: PaddedHeads, build: GradientBuilder) -> None:
        """
        Sets the results of added heads to zero if these heads attend to real values.
        """
        if heads.new_key_heads != heads.key_heads:
            return
        old = op.results[0]
        zeros, new = self.zeros[old], self.padded[old]
        sizes = [1] * len(shape_of(old))
        sizes[zeros.dim] = size_of(zeros.runs)
        keep = np.zeros(size_of(zeros.runs), numpy_dtype(element_type(old)))
        keep[places_in(zeros.runs)] = 1
        self.padded[old] = build.onnx("Mul", new, build.constant(keep.reshape(sizes)))

    def _count_heads(self, op: Operation, new: Operation) -> None:
        """Adds the new heads to the number of heads of a rotary embedding."""
        zeros, count = self.zeros.get(op.results[0]), op.properties.get("num_heads")
        if zeros is not None and isinstance(count, IntegerAttr) and count.value.data:
            width = shape_of(op.results[0])[zeros.dim] // count.value.data
            new.properties["num_heads"] = IntegerAttr(size_of(zeros.runs) // width, i64)
