"""Plans changed in one respect, to see whether a difference from XLA comes from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.over_axes import AllGatherOp, AllReduceOp
from distir.dialects.dist import layout_of, with_layout
from distir.passes.inline_calls import inline_calls
from distir.program import functions
from distir.transforms.collective_decomposition import decompose

SUMS = ("onnx.Add", "onnx.Sum")
FORMS = ("onnx.Transpose", "onnx.Reshape")


def without_reduce_scatter(module: ModuleOp) -> None:
    """XLA for CPUs has no reduce-scatter."""
    decompose(module, ["reduce_scatter"])


def gathered_once(module: ModuleOp) -> None:
    """A parameter that is gathered for the forward is kept for the backward."""
    for function in functions(module).values():
        known: dict[Any, AllGatherOp] = {}
        for op in list(function.walk()):
            if isinstance(op, AllGatherOp):
                first = known.setdefault((op.source, op.axes), op)
                if first is not op:
                    op.result.replace_all_uses_with(first.result)
                    Rewriter.erase_op(op)


def reduced_at_products(module: ModuleOp) -> None:
    """Each term of a sum is reduced, instead of the sum of the terms of a device."""
    for function in functions(module).values():
        left = [op for op in function.walk() if isinstance(op, AllReduceOp)]
        while left:
            op = left.pop()
            owner = op.source.owner
            if isinstance(owner, Operation) and len(list(op.source.uses)) == 1:
                left += _moved_up(op, owner)


def _moved_up(op: AllReduceOp, owner: Operation) -> list[AllReduceOp]:
    """Reduces the operands of `owner`, whose result `op` reduces, if that is the same."""
    axes = set(op.axis_names)
    partial = [v for v in owner.operands if axes & set(_partial_axes(v))]
    is_sum = owner.name in SUMS and len(partial) == len(owner.operands)
    is_form = owner.name in FORMS or (owner.name == "onnx.Mul" and len(partial) == 1)
    if not (is_sum or (is_form and len(partial) == 1)):
        return []
    made: list[AllReduceOp] = []
    for index, value in enumerate(owner.operands):
        if value in partial:
            layout = layout_of(value)
            assert layout is not None
            type_: Any = value.type
            whole = with_layout(type_, layout.without_partial(op.axis_names))
            made.append(AllReduceOp(value, op.axis_names, whole))
            Rewriter.insert_op(made[-1], InsertPoint.before(owner))
            owner.operands[index] = made[-1].result
    result = owner.results[0]
    Rewriter.replace_value_with_new_type(result, op.result.type)
    op.result.replace_all_uses_with(owner.results[0])
    Rewriter.erase_op(op)
    return made


def _partial_axes(value: SSAValue) -> tuple[str, ...]:
    layout = layout_of(value)
    return () if layout is None else layout.partial_axes


def varied(module: ModuleOp, *variants: Callable[[ModuleOp], None]) -> ModuleOp:
    """A copy of a distributed program with its calls written out, and changed."""
    copy = module.clone()
    inline_calls(copy)
    for variant in variants:
        variant(copy)
    copy.verify()
    return copy
