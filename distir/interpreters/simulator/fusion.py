"""
Fusion: values that never pass through memory, because one kernel computes and uses
them.

A program has one op for each computation, but libraries run some groups of ops as one
kernel. A profile names the fusions of the software that it was measured with:

- `bias`: a matrix product adds its bias;
- `views`: transposed, split and sliced tensors are read in place, except by ops that
  need contiguous tensors (reshapes, communication, results of functions);
- `elementwise`: the kernel of an elementwise op also computes a following elementwise
  op or softmax;
- `buckets`: the gradients of many parameters are accumulated over micro-batches and
  reduced together, and the parameters are updated together;
- `accumulation`: the product that computes a parameter's gradient adds it to the sum
  over micro-batches, which its kernel reads and writes while it multiplies;
- `scales`: scales of 8-bit floats come from the magnitudes of earlier steps (delayed
  scaling); the kernels that make the tensors record these magnitudes, and devices
  exchange them once a step;
- `casts`: the kernels of normalizations, gates and activations write 8-bit floats in
  place of wider floats; a tensor from any other op, and its transpose, are cast by one
  kernel; inputs of products are kept in 8 bits for the backward pass (Transformer
  Engine);
- `gates`: an activation and the product with its gate are one kernel in the forward
  pass, and two in the backward pass;
- `rotary`: rotary positions are one kernel, which splits, negates, joins, multiplies
  and adds;
- `products`: products of one input, such as those for queries, keys and values, are one
  joint product, and so are products whose results are added up; products in pieces
  write each piece to its place (`distir.interpreters.simulator.joined_products`).
"""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation, OpResult, SSAValue

from distir.dialects.dist_attributes import COMPILED
from distir.dialects.onnx_ops import traits
from distir.dialects.onnx_ops.traits import OPTIMIZERS, PRODUCTS, RESHAPES
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.experts import GroupedProductOp
from distir.dialects.train_ops.float8 import is_scale
from distir.dialects.train_ops.paged_attention import PagedAttentionOp, PagedReadOp
from distir.dialects.train_ops.quantized_rows import CONVERSIONS
from distir.interpreters.simulator.joined_products import (
    JOINED,
    is_inside_products,
    is_product,
    users_of,
)
from distir.interpreters.simulator.library_kernels import (
    LIBRARY_KERNELS,
    is_rearranged,
)

(
    BIAS,
    VIEWS,
    ELEMENTWISE,
    BUCKETS,
    ACCUMULATION,
    SCALES,
    *_,
) = FUSIONS = (
    "bias",
    "views",
    "elementwise",
    "buckets",
    "accumulation",
    "scales",
    *LIBRARY_KERNELS,
    JOINED,
)

_TAKING_SUMS = frozenset(
    {"func.return", "collective.all_reduce", "collective.reduce_scatter"}
)
"""The ops that take the sum of a gradient over micro-batches."""

REACH = 16
"""
The number of preceding ops among which an op is sought whose kernel can also compute a
given op.
"""
_BEFORE = traits.ELEMENTWISE | {"train.softmax_grad"}
_AFTER = traits.ELEMENTWISE | {"onnx.Softmax"}


def is_compiled(op: Operation) -> bool:
    """Whether a compiler turns the function that contains `op` into kernels."""
    function = op.parent_op()
    if function is None or COMPILED not in function.attributes:
        return False
    return COMPILED.of(function.attributes) == "inductor"


def fusions_around(op: Operation, known: frozenset[str]) -> frozenset[str]:
    """
    Returns the fusions that apply to `op`: the `known` ones of the software, and
    elementwise fusion if the op's function is compiled.
    """
    return known | {ELEMENTWISE} if is_compiled(op) else known


def is_view(op: Operation, fusions: frozenset[str]) -> bool:
    """
    Whether the results of `op` are views of its operand, which all users can read in
    place, so that no kernel runs for `op`.
    """
    return (
        VIEWS in fusions
        and op.name in traits.STRIDED
        and all(_takes_strides(user) for r in op.results for user in users_of(r))
    )


def joins(op: Operation, fusions: frozenset[str]) -> SSAValue | None:
    """
    Returns the operand of `op` whose kernel also computes `op`, or None if `op` has its
    own kernel.
    """
    product = _biased(op, fusions)
    if product is not None:
        return product
    if ELEMENTWISE not in fusions or not _AFTER.of(op):
        return None
    for value in op.operands:
        before = value.owner
        if (
            isinstance(before, Operation)
            and _BEFORE.of(before)
            and _biased(before, fusions) is None
            and len(users_of(value)) == 1
            and shape_of(value.type) == shape_of(op.results[0].type)
            and _can_follow(op, before)
        ):
            return value
    return None


def _can_follow(op: Operation, before: Operation) -> bool:
    """
    Whether the kernel of `before` can also compute `op`. `op` must be near in the
    program. Each operand of `op` must be a result of `before`, a constant such as a
    causal mask, or a value that already exists when `before` runs.
    """
    others = {v.owner for v in op.operands if not _is_constant(v)} - {before}
    between = op.prev_op
    for _ in range(REACH):
        if between is before:
            return True
        if between is None or between in others:
            return False
        between = between.prev_op
    return False


def _is_constant(value: SSAValue, depth: int = 8) -> bool:
    """
    Whether a value is computed from constants alone, by a chain of at most `depth` ops.
    """
    owner = value.owner
    if not isinstance(owner, Operation) or depth == 0:
        return False
    if not owner.operands:
        return owner.name == "onnx.Constant"
    return all(_is_constant(v, depth - 1) for v in owner.operands)


def stays(op: Operation, fusions: frozenset[str]) -> OpResult | None:
    """
    Returns the result of `op` that never passes through memory, because only the same
    kernel uses it. Returns None if all results pass through memory.
    """
    for value in op.results:
        if len(users_of(value)) == 1:
            (user,) = users_of(value)
            if joins(user, fusions) is value:
                return value
    return None


def is_bucketed(op: Operation, fusions: frozenset[str]) -> bool:
    """
    Whether one kernel runs `op` together with many similar ops. Such an op updates a
    parameter, converts an updated one, makes the gradient for an update, or adds to a
    sum that a function takes as an argument and returns.
    """
    if BUCKETS not in fusions:
        return False
    if OPTIMIZERS.of(op):
        return True
    if op.name == "onnx.Cast":
        before = op.operands[0].owner
        return isinstance(before, Operation) and OPTIMIZERS.of(before)
    if _accumulates(op):
        return True
    users = [user for result in op.results for user in users_of(result)]
    return any(map(OPTIMIZERS.of, users))


def reads_as_converted(value: SSAValue) -> Operation | None:
    """
    Returns the op that makes `value` from rows of 8 or 4 bits, if the kernels of all
    users convert the rows while they read them. Returns None if this does not hold for
    `value`.
    """
    owner = value.owner
    # Not `isinstance`, which is slow where the answer is no.
    if type(owner) not in CONVERSIONS:
        return None
    assert isinstance(owner, Operation)
    users = users_of(value)
    return owner if users and all(map(_converts, users)) else None


def _converts(op: Operation) -> bool:
    """Whether the kernel of `op` can convert rows of fewer bits while it reads them."""
    return (
        op.name == "onnx.Attention"
        or op.name in PRODUCTS
        or isinstance(op, GroupedProductOp | PagedAttentionOp | PagedReadOp)
    )


def shares_no_kernel(op: Operation) -> bool:
    """
    Whether the kernel of `op` does not depend on the ops around `op`. This holds for
    updates of parameters that are not elementwise.
    """
    return OPTIMIZERS.of(op) and not traits.ELEMENTWISE.of(op)


def _accumulates(op: Operation) -> bool:
    """
    Whether an op adds to a sum that a function takes as an argument and returns, such
    as the sum of a parameter's gradients over micro-batches. In the last micro-batch, a
    collective may reduce the sum right after the addition.
    """
    if op.name != "onnx.Add":
        return False
    users = [user for result in op.results for user in users_of(result)]
    if any(user.name not in _TAKING_SUMS for user in users):
        return False
    return any(isinstance(operand.owner, Block) for operand in op.operands)


def sums_in_product(op: Operation, fusions: frozenset[str]) -> bool:
    """
    Whether the kernel of a product also adds the gradient that it computes to the sum
    over micro-batches. The program casts this gradient to the type of the sum.
    """
    if ACCUMULATION not in fusions or not is_product(op):
        return False
    value = op.results[0]
    while len(users := users_of(value)) == 1 and is_rearranged(users[0]):
        value = users[0].results[0]
    return len(users) == 1 and _is_cast_of_gradient(users[0])


def is_free(op: Operation, fusions: frozenset[str]) -> bool:
    """
    Whether other kernels do all of the work of `op`. This is so for finding a scale of
    8-bit floats, for adding up or joining the results of products that are one joint
    product, and for two steps that the kernel of a product includes: casting a
    parameter's gradient to the wider type of the sum over micro-batches, and adding it
    to this sum.
    """
    if SCALES in fusions and is_scale(op):
        return True
    if JOINED in fusions and is_inside_products(op):
        return True
    if ACCUMULATION not in fusions:
        return False
    return _is_cast_of_gradient(op) or _accumulates_product(op)


def _is_cast_of_gradient(op: Operation) -> bool:
    """Whether an op casts a product to the type of the sum to which it is added."""
    if op.name != "onnx.Cast":
        return False
    users = users_of(op.results[0])
    if any(user.name != "func.return" and not _accumulates(user) for user in users):
        return False
    owner = op.operands[0].owner
    while isinstance(owner, Operation) and is_rearranged(owner):
        owner = owner.operands[0].owner
    return isinstance(owner, Operation) and is_product(owner)


def _accumulates_product(op: Operation) -> bool:
    """
    Whether an op adds a product to the sum over micro-batches. A gradient that a called
    function returns counts as a product if it is a matrix.
    """
    if not _accumulates(op):
        return False
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, CallOp):
            return rank_of(value.type) > 1
        if isinstance(owner, Operation):
            return _is_cast_of_gradient(owner)
    return False


def _biased(op: Operation, fusions: frozenset[str]) -> SSAValue | None:
    """
    Returns the operand of `op` that is a matrix product, if `op` adds a bias to it.
    Returns None if `op` does not add a bias to a matrix product.
    """
    if BIAS not in fusions or op.name != "onnx.Add":
        return None
    first, second = op.operands
    for value, other in ((first, second), (second, first)):
        before = value.owner
        if (
            isinstance(before, Operation)
            and is_product(before)
            and len(users_of(value)) == 1
            and rank_of(other.type) == 1
        ):
            return value
    return None


def _takes_strides(user: Operation) -> bool:
    return (
        user.name not in RESHAPES
        and not user.name.startswith(("collective.", "dist.", "func."))
        and isinstance(user.operands[0].type, TensorType)
    )
