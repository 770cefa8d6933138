"""Scaled dot-product attention, written out in products and a softmax."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.collective import CollectiveOp
from distir.dialects.onnx import OnnxOp, operator
from distir.dialects.onnx_values import tensor_type
from distir.lowering.fusions.match import (
    element,
    factors,
    fused,
    is_finite_constant,
    number,
    producer,
    shape_of,
    swaps_last_two,
    used_once,
)


def fuse_attention(op: OnnxOp) -> bool:
    """
    `softmax(scale Q K^T + mask) V` -> F.scaled_dot_product_attention.

    PyTorch's call gives 0 for a query whose mask is minus infinity everywhere, where
    the written-out form gives NaN. So a mask must be finite as far as its ops tell,
    unless the program itself turns NaN weights into 0.
    """
    if op.name != "onnx.MatMul":
        return False
    weights, value = op.operands
    if not used_once(weights) and not _is_guard(weights):
        return False
    guarded = _unguarded(weights)
    softmax = producer(weights if guarded is None else guarded, "Softmax")
    if softmax is None:
        return False
    scores = softmax.operands[0]
    shape = shape_of(scores)
    if shape is None or len(shape) != 4 or softmax.attribute("axis") % 4 != 3:
        return False
    if not used_once(scores):
        return False
    for raw, mask in _masked(scores):
        found = _scaled_product(raw)
        if found is None:
            continue
        query, key, scale = found
        if mask is not None and guarded is None and not is_finite(mask):
            continue
        if not _fits(query, key, value, mask, shape):
            continue
        operands = [query, key, value]
        expression = "F.scaled_dot_product_attention({0}, {1}, {2}"
        if mask is not None:
            operands.append(mask)
            expression += ", {3}"
        fused(op, f"{expression}, scale={scale!r})", operands)
        return True
    return False


def _is_guard(weights: SSAValue) -> bool:
    return producer(weights, "Where") is not None and used_once(weights)


def _unguarded(weights: SSAValue) -> SSAValue | None:
    """The s of `where(isnan(s), 0, s)`."""
    where = producer(weights, "Where")
    if where is None:
        return None
    test, zero, s = where.operands
    check = producer(test, "IsNaN")
    if check is None or check.operands[0] is not s or number(zero) != 0.0:
        return None
    return s


def _masked(scores: SSAValue) -> list[tuple[SSAValue, SSAValue | None]]:
    """The ways to read scores as a product and a mask that is added."""
    add = producer(scores, "Add")
    if add is None:
        return [(scores, None)]
    left, right = add.operands
    return [(left, right), (right, left)]


def _scaled_product(raw: SSAValue) -> tuple[SSAValue, SSAValue, float] | None:
    """The Q, K and scale of `scale Q K^T`; factors of Q and K join the scale."""
    scale, values = factors(raw)
    if len(values) != 1:
        return None
    product = producer(values[0], "MatMul")
    if product is None or not used_once(values[0]):
        return None
    a, queries = factors(product.operands[0])
    b, keys = factors(product.operands[1])
    if len(queries) != 1 or len(keys) != 1:
        return None
    key = _transposed(keys[0])
    return None if key is None else (queries[0], key, scale * a * b)


def _transposed(value: SSAValue) -> SSAValue | None:
    """The K of K^T: a Transpose, possibly with batch and heads merged around it."""
    transpose = producer(value, "Transpose")
    if transpose is not None:
        if swaps_last_two(transpose):
            return transpose.operands[0]
        return _permuted(transpose)
    outer = producer(value, "Reshape")
    transpose = None if outer is None else producer(outer.operands[0], "Transpose")
    inner = None if transpose is None else producer(transpose.operands[0], "Reshape")
    if transpose is None or inner is None or not swaps_last_two(transpose):
        return None
    before, after = shape_of(inner.operands[0]), shape_of(value)
    merged = shape_of(inner.results[0])
    if before is None or after is None or merged is None or len(merged) != 3:
        return None
    if merged[1:] != before[-2:] or after != (*before[:-2], before[-1], before[-2]):
        return None
    return inner.operands[0]


def _permuted(transpose: OnnxOp) -> SSAValue | None:
    """
    K where K^T comes from (batch, sequence, heads, features) in one Transpose: another
    Transpose, made here, with the last two dimensions the other way round.
    """
    order = list(transpose.attribute("perm") or ())
    shape = shape_of(transpose.results[0])
    if len(order) != 4 or shape is None:
        return None
    swapped = [order[0], order[1], order[3], order[2]]
    element_type = element(transpose.results[0])
    assert element_type is not None
    new = operator("Transpose").build_op(
        [transpose.operands[0]],
        [tensor_type([shape[0], shape[1], shape[3], shape[2]], element_type)],
        {"perm": swapped},
        dict(transpose.attributes),
    )
    block = transpose.parent_block()
    assert block is not None
    block.insert_op_before(new, transpose)
    return new.results[0]


def _fits(
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    mask: SSAValue | None,
    scores: tuple[int, ...],
) -> bool:
    """Whether the operands are what PyTorch's call takes, without broadcasting heads."""
    q, k, v = shape_of(query), shape_of(key), shape_of(value)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return False
    if not q[:2] == k[:2] == v[:2] or k[2] != v[2] or scores != (*q[:3], k[2]):
        return False
    if mask is None:
        return True
    shape = shape_of(mask)
    if shape is None or element(mask) != element(query) or not 2 <= len(shape) <= 4:
        return False
    aligned = scores[4 - len(shape) :]
    return shape[-1] == scores[-1] and all(
        n in (1, full) for n, full in zip(shape, aligned, strict=True)
    )


_FINITE_IF_OPERANDS_ARE = frozenset(
    (
        *("Add", "Sub", "Mul", "Where", "Expand", "Reshape", "Unsqueeze", "Squeeze"),
        *(
            "Slice",
            "Transpose",
            "Identity",
            "Concat",
            "Cast",
            "Neg",
            "Min",
            "Max",
            "Gather",
        ),
    )
)


def is_finite(value: SSAValue, depth: int = 64) -> bool:
    """
    Whether no element is minus infinity, as far as the ops that made it tell: constants,
    integers and booleans and what is computed from them. Looks into callers.
    """
    if is_finite_constant(value):
        return True
    kind = str(element(value))
    if kind.startswith(("i", "ui", "si")):
        return True
    if depth == 0:
        return False
    owner = value.owner
    if isinstance(owner, Block):
        function = owner.parent_op()
        if not isinstance(function, FuncOp):
            return False
        calls = _calls_of(function)
        index = list(owner.args).index(value)  # pyright: ignore[reportArgumentType]
        return bool(calls) and all(
            is_finite(c.operands[index], depth - 1) for c in calls
        )
    if isinstance(owner, CollectiveOp) and owner.reduction is None:
        return is_finite(owner.source, depth - 1)
    if not isinstance(owner, OnnxOp):
        return False
    if owner.name.removeprefix("onnx.") not in _FINITE_IF_OPERANDS_ARE:
        return False
    return all(is_finite(v, depth - 1) for v in owner.operands)


def _calls_of(function: FuncOp) -> list[CallOp]:
    module: Operation | None = function.parent_op()
    if not isinstance(module, ModuleOp):
        return []
    return [
        op
        for caller in module.body.block.ops
        if isinstance(caller, FuncOp)
        for op in caller.body.block.ops
        if isinstance(op, CallOp) and op.callee.string_value() == function.sym_name.data
    ]
