"""How much of a program an axis splits."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.program import argument_roles, entry_function, functions
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.rule import Inference, inference_of, rule_for


@dataclass(frozen=True)
class Shares:
    """
    The fractions of the bytes of parameters and of the floating-point operations that are
    split over an axis; 1 where there are none.
    """

    parameters: float
    flops: float


def shares_over(module: ModuleOp, axis: str) -> Shares:
    """Returns how much of a distributed program that axis of its mesh splits."""
    function = entry_function(module)
    sizes = {True: 0, False: 0}
    roles = argument_roles(function)
    for type_, role in zip(function.function_type.inputs.data, roles, strict=True):
        if role != "parameter" or not isinstance(type_, TensorType):
            continue
        layout = layout_of(type_)
        size = prod(type_.get_shape()) * numpy_dtype(type_.element_type).itemsize
        sizes[layout is not None and axis in layout.split_axes] += size
    work = _work(function, functions(module), meshes(module), axis)
    return Shares(
        sizes[True] / (sum(sizes.values()) or 1) if any(sizes.values()) else 1.0,
        work[0] / work[1] if work[1] else 1.0,
    )


def _work(
    function: FuncOp,
    known: dict[str, FuncOp],
    on: dict[str, Mesh],
    axis: str,
) -> tuple[float, float]:
    """Returns the operations that are split over the axis, and all."""
    split = total = 0.0
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            inner = _work(known[op.callee.string_value()], known, on, axis)
            split, total = split + inner[0], total + inner[1]
            continue
        if op.dialect_name() in ("dist", "collective", "func"):
            continue
        layouts = [layout_of(operand) for operand in op.operands]
        rule = rule_for(op)
        if not rule.flops or any(layout is None for layout in layouts):
            continue
        total += rule.flops
        present = [layout for layout in layouts if layout is not None]
        found = inference_of(rule, present, on[present[0].mesh])
        if isinstance(found, Inference) and any(
            shard.axis == axis
            for shards in found.assignment.values()
            for shard in shards
        ):
            split += rule.flops
    return split, total
