"""
Scales of 8-bit floats in programs over micro-batches. The scale of a tensor comes from
its largest magnitude. Any scale gives the same product up to rounding, because the
product of the rounded values is divided by the scales again. Each micro-batch can
therefore have scales for its own tensors, as with current scaling in NVIDIA's
Transformer Engine. A micro-batch then need not wait for the largest magnitude over all
micro-batches.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist import ReshardOp, layout_of, with_layout
from distir.dialects.train_ops.float8 import Float8ScaleOp
from distir.program import reachable_functions
from distir.sharding.mesh import TIME_AXIS
from distir.sharding.placement import PartialPlacement
from distir.transforms.pipelines.over_time import over_time


def scale_micro_batches(module: ModuleOp) -> None:
    """
    Gives each micro-batch its own scales of 8-bit floats, in place, instead of the
    smallest scale over all micro-batches.
    """
    for function in reachable_functions(module):
        for op in list(function.body.block.ops):
            if isinstance(op, Float8ScaleOp):
                _leave(op.scale)


def _leave(value: SSAValue) -> None:
    """
    Removes the partial reduction over micro-batches from the layouts of `value` and of
    the reshards of `value`, so that each micro-batch keeps its own value.
    """
    layout, type_ = layout_of(value), value.type
    is_partial = isinstance(over_time(value), PartialPlacement)
    if layout is None or not is_partial or not isinstance(type_, TensorType):
        return
    own = with_layout(type_, layout.without_partial([TIME_AXIS]))
    value = Rewriter.replace_value_with_new_type(value, own)
    for use in list(value.uses):
        op = use.operation
        if not isinstance(op, ReshardOp):
            continue
        if op.result.type == value.type:
            op.result.replace_all_uses_with(value)
            Rewriter.erase_op(op)
        else:
            _leave(op.result)
