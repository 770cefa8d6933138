"""
Replaces the collectives of one message by one op, and computes gradients of weights
directly in the memory of their message.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    ModuleOp,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import bucket_of
from distir.dialects.collective_ops.rank_form import (
    InRankForm,
    RankAllGatherOp,
)
from distir.dialects.dist_attributes import COMPILED, SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.torch import BucketOp, LinearOp, MessageOp, ProductIntoOp
from distir.lowering.rewrites.products import supersede
from distir.lowering.rewrites.sharing import SharedMemory
from distir.program import entry_function, functions, updated_arguments
from distir.transforms.projection import MESH

_MULTIPLIED = BFloat16Type | Float16Type | Float32Type | Float64Type
"""The types of matrices that `torch.mm` multiplies on all devices."""

_LEAST_SHARE = 0.9
"""
The smallest part of a message that products must make up. The memory of the other tensors
would be taken twice from the first product on, where activations are still held.
"""

_Factor = tuple[SSAValue, bool]
"""A matrix, and whether it is transposed in the product."""


def fuse_messages(module: ModuleOp) -> None:
    """
    Replaces the collectives of each message by one op, in every function. If possible,
    all-gathers of the entry function whose results update arguments write into the
    memory of these arguments.
    """
    entry, memory = entry_function(module), SharedMemory.of(module)
    for op in list(entry.body.block.ops):
        if not isinstance(op, RankAllGatherOp) or op.parent is None:
            continue  # another op, or one whose message has been made
        if not op.is_joined and not op.is_asynchronous:
            bucket = bucket_of(op)
            targets = _overwritten(bucket, entry, memory)
            if targets:
                _replace(bucket, targets)
    for function in functions(module).values():
        for op in list(function.body.block.ops):
            if not isinstance(op, InRankForm) or op.is_joined or op.parent is None:
                continue
            bucket = bucket_of(op)
            if len(bucket) > 1:
                _replace(bucket)


def _overwritten(
    bucket: Sequence[InRankForm], entry: FuncOp, memory: SharedMemory
) -> list[SSAValue]:
    """
    Returns the arguments of the program whose memory can take the results of `bucket`.
    Each result must update an argument that has no use after the collectives. Returns
    an empty list unless this holds for all results.
    """
    updated = updated_arguments(entry)
    found: list[SSAValue] = []
    for op in bucket:
        uses = list(op.result.uses)
        at = uses[0].index if len(uses) == 1 else -1
        if not isinstance(uses[0].operation, ReturnOp) or at not in updated:
            return []
        argument = entry.args[updated[at]]
        users = memory.users(argument)
        if argument.type != op.result.type or argument in found:
            return []
        if not all(user.is_before_in_block(bucket[0]) for user in users):
            return []
        found.append(argument)
    return found


def _replace(bucket: Sequence[InRankForm], targets: Sequence[SSAValue] = ()) -> None:
    first, new = bucket[0], MessageOp(bucket, targets)
    for key in (MESH, SCOPE):
        if key in first.attributes:
            new.attributes[key] = first.attributes[key]
    Rewriter.insert_op(new, InsertPoint.before(first))
    for result, op in zip(new.outputs, bucket, strict=True):
        result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(result)
    olds: list[Operation] = list(bucket)
    for op in reversed(olds):
        Rewriter.erase_op(op)


def compute_in_messages(module: ModuleOp) -> None:
    """
    Makes products that a message reduces, such as the gradients of weights, compute
    directly in the memory of the message, so that they need no copy. Other tensors of
    the message are copied. Compiled functions stay unchanged.
    """
    for function in functions(module).values():
        if COMPILED in function.attributes:
            continue
        for op in list(function.body.block.ops):
            if isinstance(op, MessageOp) and op.kind.data == "all_reduce":
                _compute_in(op)


def _compute_in(message: MessageOp) -> None:
    values = list(message.inputs)
    found: list[tuple[Operation, int, tuple[_Factor, _Factor]]] = []
    start = 0
    for value in values:
        factors = _factors(value, message)
        if factors is not None:
            assert isinstance(value, OpResult)
            found.append((value.op, start, factors))
        start += prod(shape_of(value))
    own = sum(prod(shape_of(product.results[0])) for product, _, _ in found)
    if not found or own < _LEAST_SHARE * start:
        return
    products = {product for product, _, _ in found}
    block = message.parent_block()
    assert block is not None
    first = next(op for op in block.ops if op in products)
    bucket = BucketOp(values)
    if SCOPE in first.attributes:
        bucket.attributes[SCOPE] = first.attributes[SCOPE]
    bucket.bucket.name_hint = "bucket"
    Rewriter.insert_op(bucket, InsertPoint.before(first))
    for product, start, factors in found:
        type_ = product.results[0].type
        supersede(product, ProductIntoOp(*factors, bucket.bucket, start, type_))
        Rewriter.erase_op(product)
    message.put_in(bucket.bucket)


def _factors(value: SSAValue, message: MessageOp) -> tuple[_Factor, _Factor] | None:
    """
    Returns the matrices whose product is `value`, an operand of `message`. Returns None
    if `value` is not a product of two matrices, or has another use besides `message`.
    """
    product = value.owner
    if not isinstance(product, Operation) or len(list(value.uses)) > 1:
        return None
    if product.parent_block() is not message.parent_block():
        return None
    kind = element_type(value)
    if not isinstance(kind, _MULTIPLIED) or min(shape_of(value), default=-1) < 0:
        return None
    if isinstance(product, LinearOp) and product.bias is None:
        x, y = (product.x, False), (product.weight, product.transposed is None)
    elif not isinstance(product, OnnxOp):
        return None
    elif product.name == "onnx.Gemm" and len(product.operands) == 2:
        if product.attribute("alpha") != 1.0:
            return None
        sides = [bool(product.attribute(name)) for name in ("transA", "transB")]
        x, y = zip(product.operands, sides, strict=True)
    elif product.name == "onnx.MatMul":
        x, y = ((operand, False) for operand in product.operands)
    else:
        return None
    is_matrix = all(len(shape_of(v)) == 2 for v in (x[0], y[0]))
    is_alike = all(element_type(v) == kind for v in (x[0], y[0]))
    return (x, y) if is_matrix and is_alike else None
