"""
Kernels of training libraries that do the work of several ops: the fusions `casts`,
`gates` and `rotary` of `distir.interpreters.simulator.fusion`.

`moved_by` returns the bytes that such a kernel moves for one op of its group. Ops that
are computed inside of the kernel move nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from distir.dialects.dist_attributes import ROLE
from distir.dialects.onnx_ops.traits import IN_ROTARY, STRIDED, VIEWS
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.activation import ActivationGradOp
from distir.dialects.train_ops.float8 import FORMATS, ToFloat8Op
from distir.dialects.train_ops.normalization import NormalizingOp

CASTS, GATES, ROTARY = LIBRARY_KERNELS = ("casts", "gates", "rotary")
"""The names of these fusions in profiles."""

_ACTIVATIONS = frozenset({"onnx.Gelu", "onnx.Relu", "onnx.Swish"})
LONGEST = 5
"""The most ops from an op of rotary positions to the sum that ends them."""


def moved_by(
    op: Operation,
    fusions: frozenset[str],
    operand_bytes: Sequence[int],
    result_bytes: Sequence[int],
) -> int | None:
    """
    Returns the bytes that `op` moves as a part of a kernel of several ops, or None if
    the op has a kernel of its own. All bytes are those of one device.
    """
    if CASTS in fusions and isinstance(op, ToFloat8Op):
        return _moved_by_cast(op, operand_bytes[0], result_bytes[0])
    if GATES in fusions and _is_inside_gate(op):
        return 0
    return moved_by_rotary(op, result_bytes) if ROTARY in fusions else None


def moved_by_rotary(op: Operation, result_bytes: Sequence[int]) -> int | None:
    """
    Returns the bytes that `op` moves if one kernel computes rotary positions: it reads
    a tensor and writes the rotated tensor. These bytes are returned for the addition
    that ends the computation; for all other ops of the computation the result is 0. The
    result is None if `op` does not belong to rotary positions.
    """
    if op.name not in IN_ROTARY and op.name != "onnx.Add":
        return None
    end = _end_of_rotary(op)
    if end is None:
        return None
    return 2 * sum(result_bytes) if op is end else 0


def _moved_by_cast(op: ToFloat8Op, read: int, written: int) -> int | None:
    """
    Returns the bytes that a cast to 8-bit floats moves.

    One kernel casts a tensor and its transpose, for the two products that read them, so
    a later cast of the same tensor moves nothing. The forward pass keeps the cast
    tensor and its transpose for the inputs of products, and the backward pass does not
    cast them again. Normalizations, gates and gradients of activations write both
    directly, in place of their result in 16 bits. Weights have kernels of their own,
    which also write both, once a step (`cast_parameter`): the forward pass reads the
    weight and the backward pass its transpose.
    """
    source = _source(op.x)
    owner = source.owner
    if isinstance(owner, Block):
        if _is_parameter(source, owner):
            return 0 if _is_transposed(op.x) else read + 2 * written
        if element_type(op.y) == FORMATS["e4m3"][0]:  # no gradient
            return 0
    elif (
        isinstance(owner, NormalizingOp | ActivationGradOp) or owner.name == "onnx.Mul"
    ):
        return 0
    return 0 if _is_cast_before(op, source) else read + 2 * written


def cast_parameter(op: Operation) -> BlockArgument | None:
    """
    Returns the function argument that holds the parameter if `op` casts a parameter to
    8-bit floats. Returns None if `op` does anything else. Libraries keep the cast
    parameter for all micro-batches of a step.
    """
    if not isinstance(op, ToFloat8Op):
        return None
    source = _source(op.x)
    if isinstance(source, BlockArgument) and _is_parameter(source, source.block):
        return source
    return None


def _source(value: SSAValue) -> SSAValue:
    """Returns the value of which `value` is a view, in another shape or order."""
    while isinstance(owner := value.owner, Operation) and is_rearranged(owner):
        value = owner.operands[0]
    return value


def _is_transposed(value: SSAValue) -> bool:
    """
    Whether `value` is a rearranged tensor with an odd number of transposes on the way
    from the tensor to `value`.
    """
    transposed = False
    while isinstance(owner := value.owner, Operation) and is_rearranged(owner):
        if owner.name == "onnx.Transpose":
            transposed = not transposed
        value = owner.operands[0]
    return transposed


def is_rearranged(op: Operation) -> bool:
    """
    Whether an op only reshapes its operand, selects a part of it, or changes the order
    of its elements.
    """
    return VIEWS.of(op) or op.name in STRIDED


def _is_parameter(value: SSAValue, block: Block) -> bool:
    """Whether an argument of a function holds a parameter."""
    function = block.parent_op()
    if not isinstance(function, FuncOp) or function.arg_attrs is None:
        return False
    (index,) = (i for i, arg in enumerate(block.args) if arg is value)
    return ROLE.of(function.arg_attrs.data[index].data) == "parameter"


def _is_cast_before(op: ToFloat8Op, source: SSAValue) -> bool:
    """Whether an earlier op casts `source`, or a view of it, to the same type."""
    pending = [source]
    while pending:
        for use in pending.pop().uses:
            user = use.operation
            if isinstance(user, ToFloat8Op):
                is_alike = element_type(user.y) == element_type(op.y)
                if user is not op and is_alike and user.is_before_in_block(op):
                    return True
            elif is_rearranged(user):
                pending.extend(user.results)
    return False


def _is_inside_gate(op: Operation) -> bool:
    """
    Whether the kernel of a gate computes `op`: an activation that a product reads, or
    the product that the gradient of an activation reads.
    """
    users = [use.operation for result in op.results for use in result.uses]
    if op.name in _ACTIVATIONS:
        return any(user.name == "onnx.Mul" for user in users)
    if op.name != "onnx.Mul" or len(users) != 1:
        return False
    return isinstance(users[0], ActivationGradOp)


def _end_of_rotary(op: Operation) -> Operation | None:
    """
    Returns the sum that ends the computation of rotary positions to which `op` belongs,
    or None if `op` does not belong to rotary positions.
    """
    for _ in range(LONGEST):
        if op.name == "onnx.Add":
            return op if _ends_rotary(op) else None
        users = [use.operation for result in op.results for use in result.uses]
        if op.name not in IN_ROTARY or not users:
            return None
        if any(user.name not in IN_ROTARY | {"onnx.Add"} for user in users):
            return None
        op = users[0]
    return None


def _ends_rotary(op: Operation) -> bool:
    """
    Whether an op is the final sum of rotary positions: x * cos + y * sin, where y is x
    with its halves exchanged and one of them negated. In the gradient, the halves of
    the product with the sine are exchanged.
    """
    if not any(_is_product(value) for value in op.operands):
        return False
    for value in op.operands:
        owner = value.owner
        if _is_product(value) and isinstance(owner, Operation):
            value = owner.operands[0]
        if _is_joined(value):
            return True
    return False


def _is_product(value: SSAValue) -> bool:
    return isinstance(value.owner, Operation) and value.owner.name == "onnx.Mul"


def _is_joined(value: SSAValue) -> bool:
    """Whether a value is the concatenation of two halves, one of which is negated."""
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name != "onnx.Concat":
        return False
    halves = [half.owner for half in owner.operands]
    return any(
        isinstance(half, Operation) and half.name == "onnx.Neg" for half in halves
    )
