"""
Caches of 8 bits. `quantize_caches` stores the cached keys and values of inference in 8
bits, with a scale for each token and head.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import NAME, UPDATES
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.paged_attention import PagedWriteOp
from distir.dialects.train_ops.quantized_rows import DequantizeRowsOp, QuantizeRowsOp
from distir.dialects.train_ops.quantized_weights import EIGHT_BITS
from distir.errors import DistIRError, one_of
from distir.program import (
    CACHE,
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.program.rewriting import erase_dead
from distir.transforms.precision.float8 import builder_before
from distir.transforms.precision.weight_quantization import QUANTIZED, SCALE


class _Rows(NamedTuple):
    """A tensor of 8 bits [..., k], and the scales of its rows [...]."""

    quantized: SSAValue
    scale: SSAValue


def quantize_caches(module: ModuleOp, kind: str) -> None:
    """
    Stores caches in the 8-bit format `kind` (`EIGHT_BITS`), in place: caches to which
    the program adds tokens by `onnx.TensorScatter` or `train.paged_write`, and caches
    that the program only reads. States of state-space layers stay unchanged. A cache
    `NAME` becomes `NAME.quantized` and `NAME.scale`, with a scale for each row of its
    last dimension: for each token and head.

    New tokens are converted where the cache is written. All ops of the program,
    including prefill, compute with the rounded numbers. The program must have one
    function; outline its layers later. Raises DistIRError if the program has no cache
    of these two kinds.
    """
    one_of("cache format", kind, EIGHT_BITS, "quantize-caches")
    function = entry_function(module)
    caches = _growing_caches(function)
    if not caches:
        raise DistIRError(
            "quantize-caches: the program has no cache of keys and values, to which "
            "tokens are added (onnx.TensorScatter, train.paged_write), that could have 8 "
            "bits; leave cache_dtype out"
        )
    rewrite = _CacheRewrite(function, EIGHT_BITS[kind][0])
    for cache in caches:
        rewrite.replace(cache)
    erase_dead(function.body.block)


def _growing_caches(function: FuncOp) -> list[BlockArgument]:
    """
    Returns the caches to which a step adds tokens, and the caches that a step only
    reads.
    """
    returned = return_op(function).operands
    writes = {a: returned[r].owner for r, a in updated_arguments(function).items()}
    return [
        argument
        for argument, role in zip(function.args, argument_roles(function), strict=True)
        if role == CACHE
        and (
            (write := writes.get(argument.index)) is None
            or (_writes(write) and write.operands[0] is argument)
        )
    ]


def _writes(op: Operation | Block) -> TypeGuard[OnnxOp | PagedWriteOp]:
    """Whether `op` writes tokens, its second operand, to a cache, its first operand."""
    if isinstance(op, OnnxOp):
        return op.name == "onnx.TensorScatter"
    return isinstance(op, PagedWriteOp)


class _CacheRewrite:
    """
    Replaces caches of the entry function `function` by rows of the 8-bit type `element`
    and the scales of these rows.
    """

    def __init__(self, function: FuncOp, element: Attribute):
        self.function, self.element = function, element
        self.block = function.body.block
        self._rows: dict[SSAValue, _Rows] = {}
        """The rows of tokens that are converted already, by their values."""

    def replace(self, cache: BlockArgument) -> None:
        """Replaces one cache, and the program's writes and reads of the cache."""
        rows = self._arguments(cache)
        for op in [use.operation for use in cache.uses]:
            if _writes(op) and op.operands[0] is cache:
                self._write(op, rows)
        if cache.first_use is not None:
            readers = {use.operation for use in cache.uses}
            before = next(op for op in self.block.ops if op in readers)
            build = builder_before(before)
            read = build.result(DequantizeRowsOp(*rows, x=cache.type))
            cache.replace_all_uses_with(read)
        attributes = argument_attributes(self.function)
        index = cache.index
        self.block.erase_arg(cache)
        del attributes[index]
        self.function.update_function_type()
        set_argument_attributes(self.function, attributes)

    def _arguments(self, cache: BlockArgument) -> _Rows:
        """Adds, after the argument `cache`, the arguments that will replace it."""
        attributes = argument_attributes(self.function)
        name = argument_names(self.function)[cache.index]
        made = list[BlockArgument]()
        types = self._types(cache)
        for place, (end, type_) in enumerate(
            zip((QUANTIZED, SCALE), types, strict=True), cache.index + 1
        ):
            argument = self.block.insert_arg(type_, place)
            argument.name_hint = f"{cache.name_hint or 'cache'}_{end}"
            own = {**attributes[cache.index], NAME: NAME.attr(f"{name}.{end}")}
            attributes.insert(place, own)
            made.append(argument)
        self.function.update_function_type()
        set_argument_attributes(self.function, attributes)
        return _Rows(*made)

    def _types(self, value: SSAValue) -> tuple[TensorType, TensorType]:
        shape = shape_of(value)
        return (
            TensorType(self.element, shape),
            TensorType(element_type(value), shape[:-1]),
        )

    def _write(self, op: OnnxOp | PagedWriteOp, rows: _Rows) -> None:
        """
        Replaces `op`, which writes tokens to a cache, by ops that write the 8-bit rows
        of the tokens. The program returns the new rows. All other users of the cache
        get the rounded numbers.
        """
        tokens = self._converted(op.operands[1])
        places = list(op.operands[2:])
        build = builder_before(op)

        def written(held: SSAValue, part: SSAValue) -> SSAValue:
            if isinstance(op, PagedWriteOp):
                return build.result(PagedWriteOp(held, part, *places))
            axis = int(op.attribute("axis")) % len(shape_of(op.results[0]))
            mode = op.attribute("mode")
            return build.onnx(
                "TensorScatter", held, part, *places, axis=axis, mode=mode
            )

        new = _Rows(*map(written, rows, tokens))
        read = DequantizeRowsOp(*new, x=op.results[0].type)
        self._return(op.results[0], new)
        whole = build.result(read)
        whole.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(whole)
        Rewriter.erase_op(op)

    def _converted(self, tokens: SSAValue) -> _Rows:
        """
        Returns the 8-bit rows of `tokens`. If `tokens` are a part of a value, such as
        the last tokens of a prompt, all other ops that read this value get rounded
        numbers, too.
        """
        part = tokens.owner
        if _takes_rows(part) and part.operands[0] not in self._rows:
            self._convert(part.operands[0], part)
        if tokens not in self._rows:
            self._convert(tokens)
        return self._rows[tokens]

    def _convert(self, tokens: SSAValue, kept: Operation | None = None) -> None:
        """
        Converts `tokens` where they are computed. All users except the op `kept` get
        the rounded numbers of the rows.
        """
        quantized, scale = self._types(tokens)
        op = QuantizeRowsOp(tokens, quantized=quantized, scale=scale)
        rows = self._rows[tokens] = _Rows(*op.results)
        read = DequantizeRowsOp(*rows, x=tokens.type)
        users = [use for use in tokens.uses if use.operation not in (op, kept)]
        made = tokens.owner
        after = made.next_op if isinstance(made, Operation) else made.first_op
        assert after is not None  # the function ends with its return
        build = builder_before(after)
        build.add(op)
        build.add(read)
        for use in users:
            if not _writes(use.operation):
                use.operation.operands[use.index] = read.results[0]

    def _return(self, value: SSAValue, new: _Rows) -> None:
        """Makes the program return the rows `new` as results in place of `value`."""
        end = return_op(self.function)
        attributes = result_attributes(self.function)
        operands = list(end.operands)
        for place in [i for i, v in enumerate(operands) if v is value][::-1]:
            own = attributes[place]
            operands[place : place + 1] = new
            attributes[place : place + 1] = [
                {
                    **own,
                    **{
                        key: key.attr(f"{key.of(own)}.{part}")
                        for key in (NAME, UPDATES)
                        if key in own
                    },
                }
                for part in (QUANTIZED, SCALE)
            ]
        end.operands = operands
        self.function.update_function_type()
        set_result_attributes(self.function, attributes)


def _takes_rows(op: Operation | Block) -> TypeGuard[OnnxOp]:
    """Whether `op` selects whole rows of its operand."""
    if not isinstance(op, OnnxOp) or op.name != "onnx.Slice":
        return False
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    return before[-1] == after[-1]
