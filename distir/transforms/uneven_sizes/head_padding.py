"""
Pads the heads of attention with heads of zeros, so that an axis can split them.

Six heads over four devices become eight, whose last two have queries, keys and values of
zeros; 14 query heads that share two key heads become 16: each key head serves eight, the
last of them zeros. From attention the zeros are followed, forwards and backwards, through
ops that keep them, to the parameters that make queries, keys and values and the one that
takes the result, and to their gradients and states: these are stored with zeros, which
updates keep. An op that is not known to keep zeros takes and gives the values without.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.attention import AttentionGradOp
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
from distir.program.source_forms import padded_attributes, places_in, size_of
from distir.transforms.uneven_sizes.head_zeros import HeadZeros, PaddedHeads
from distir.transforms.uneven_sizes.zero_runs import PassedZeros, Zeros


class HeadPadder(HeadZeros):
    """
    Pads the heads of all attention of a program, in place, that `parts` devices cannot
    share as they are.
    """

    def __init__(self, module: ModuleOp, parts: int):
        super().__init__(module, parts)
        self.padded: dict[SSAValue, SSAValue] = {}
        """The padded value for each key of `zeros`."""
        self.plain: dict[SSAValue, SSAValue] = {}
        """The values without zeros, for ops that need that."""

    # What they become

    def pad(self) -> None:
        """Changes the program."""
        self.follow()
        ways = {
            op: found
            for function in self.functions
            for op in function.body.block.ops
            if not isinstance(op, CallOp | ReturnOp)
            and (found := self._way(op)) is not None
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
                    way = PassedZeros(*signatures[op.callee.string_value()])
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

    def _way(self, op: Operation) -> PassedZeros | None:
        """
        Returns how the operands and results of an op are padded; None for an op that works
        on values without zeros.
        """
        if not any(v in self.zeros for v in (*op.operands, *op.results)):
            return None
        found = self.zeros_of(op)
        if found is None:
            return None
        own = [self.zeros.get(r) for r in op.results]
        return found if op in self.attention or found.results == own else None

    def _replace(self, op: Operation, way: PassedZeros) -> None:
        """Puts an op before an op, the same on padded values."""
        build = _builder(op)
        types = [
            r.type if zeros is None else _padded_type(r, zeros)
            for r, zeros in zip(op.results, way.results, strict=True)
        ]
        operands = self._as(op, way.operands, build)
        heads = self.attention.get(op)
        if op.name in ("onnx.Reshape", "onnx.Expand") and way.results[0] is not None:
            shape = way.results[0].shape(shape_of(op.results[0]))
            operands[1] = build.integers(shape)
        elif op.name == "onnx.Split" and len(operands) > 1:
            cut = way.operands[0]
            assert cut is not None
            sizes = [
                size_of(zeros.runs) if zeros is not None else shape_of(r)[cut.dim]
                for r, zeros in zip(op.results, way.results, strict=True)
            ]
            if sum(sizes) == size_of(cut.runs):
                operands[1] = build.integers(sizes)
        new = made_with(op, operands, types)
        if heads is not None:
            counts = heads.new_query_heads, heads.new_key_heads
            names = ("q_num_heads", "kv_num_heads")
            for name, count in zip(names, counts, strict=True):
                if name in new.properties:
                    new.properties[name] = IntegerAttr(count, i64)
        elif op.name == "onnx.RotaryEmbedding":
            _count_heads(op, new, way)
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
        if heads is not None and not isinstance(op, AttentionGradOp):
            self._mask(op, heads, build)

    def _mask(self, op: Operation, heads: PaddedHeads, build: GradientBuilder) -> None:
        """
        Makes the results of added heads zero where they attend to values that are not.
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

    def _as(
        self, op: Operation, ways: list[Zeros | None], build: GradientBuilder
    ) -> list[SSAValue]:
        """Returns the operands of an op, padded in these ways."""
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
        """Gives an op its operands padded in these ways."""
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
        Gives the program's results: padded those that update padded arguments. Says so of
        both.
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


def _count_heads(op: Operation, new: Operation, way: PassedZeros) -> None:
    """Makes a rotary embedding of packed heads count the added ones."""
    zeros = way.operands[0]
    count = op.properties.get("num_heads")
    if zeros is not None and isinstance(count, IntegerAttr) and count.value.data:
        width = shape_of(op.results[0])[zeros.dim] // count.value.data
        new.properties["num_heads"] = IntegerAttr(size_of(zeros.runs) // width, i64)


def _padded_type(value: SSAValue, zeros: Zeros) -> TensorType:
    return TensorType(element_type(value), zeros.shape(shape_of(value)))


def _builder(before: Operation) -> GradientBuilder:
    """Returns a builder that inserts ops before an op."""
    block = before.parent_block()
    assert isinstance(block, Block)
    return GradientBuilder(
        lambda op: block.insert_op_before(op, before), before.attributes.get(SCOPE)
    )


def _filled(value: SSAValue, zeros: Zeros, build: GradientBuilder) -> SSAValue:
    """Returns a value with its zeros, put there by ops."""
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
    """Returns a value without its zeros, cut out by ops."""
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
