"""
Scales of 8-bit floats in programs over micro-batches. The scale of a tensor comes from
its largest magnitude. Any scale gives the same product up to rounding, because the
product of the rounded values is divided by the scales again. Each micro-batch can
therefore have scales for its own tensors, as with current scaling in NVIDIA's
Transformer Engine. A micro-batch then need not wait for the largest magnitude over all
micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist import ReshardOp, layout_of, with_layout
from distir.dialects.train_ops.float8 import Float8ScaleOp
from distir.program import calls_of, functions, reachable_functions
from distir.sharding.mesh import TIME_AXIS
from distir.sharding.placement import PartialPlacement
from distir.transforms.pipelines.over_time import over_time


def scale_micro_batches(module: ModuleOp) -> None:
    """
    Gives each micro-batch its own scales of 8-bit floats, in place, instead of the
    smallest scale over all micro-batches. A scale that a function returns or takes
    (with NVFP4, the scale of a tensor that is kept for the gradient) changes in its
    callers and callees too.
    """
    for function in reachable_functions(module):
        for op in list(function.body.block.ops):
            if isinstance(op, Float8ScaleOp):
                _leave(op.scale, functions(module))


def _leave(value: SSAValue, known: Mapping[str, FuncOp]) -> None:
    """
    Removes the partial reduction over micro-batches from the layouts of `value`, of the
    reshards of `value`, and of the values that are `value` in other functions, so that
    each micro-batch keeps its own value. `known` has the functions by name.
    """
    layout, type_ = layout_of(value), value.type
    is_partial = isinstance(over_time(value), PartialPlacement)
    if layout is None or not is_partial or not isinstance(type_, TensorType):
        return
    own = with_layout(type_, layout.without_partial([TIME_AXIS]))
    value = Rewriter.replace_value_with_new_type(value, own)
    for use in list(value.uses):
        op = use.operation
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            _leave(callee.body.block.args[use.index], known)
            callee.update_function_type()
        elif isinstance(op, ReturnOp):
            function = op.parent_op()
            assert isinstance(function, FuncOp)
            function.update_function_type()
            for call in calls_of(function):
                _leave(call.results[use.index], known)
        elif isinstance(op, ReshardOp):
            if op.result.type == value.type:
                op.result.replace_all_uses_with(value)
                Rewriter.erase_op(op)
            else:
                _leave(op.result, known)
