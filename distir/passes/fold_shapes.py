"""`fold-shapes`: computes values that are known before the program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, UnrankedTensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.inference import KNOWN_SIZE
from distir.errors import DistIRError
from distir.interpreters.mixed import OnnxMixed, is_whole, join, type_of
from distir.interpreters.types import TypesInterpreter, with_shape
from distir.passes.options import DistIRPass
from distir.program import functions

_Constant = operator("Constant")


def mixed_values(module: ModuleOp, limit: int) -> dict[SSAValue, Any]:
    """
    Returns, for each value of a program, the array of the value if this array is known
    and the same in every call, else the type of the value. Arrays of more than `limit`
    elements are not computed.
    """
    facts: dict[SSAValue, Any] = {}

    def observe(value: SSAValue, content: Any) -> None:
        facts[value] = join(facts[value], content) if value in facts else content

    TypesInterpreter(module, OnnxMixed(limit), observe).run_roots()
    return facts


def replace_by_constant(value: SSAValue, content: Any) -> None:
    """
    Replaces all uses of `value` by a new `onnx.Constant` with the array `content`.
    """
    assert isinstance(value.type, TensorType)
    type_ = with_shape(value.type, content.shape)
    owner = value.owner
    scope = owner.attributes.get(SCOPE) if isinstance(owner, Operation) else None
    constant = _Constant.build_op(
        [], [type_], {"value": content}, {} if scope is None else {SCOPE: scope}
    )
    constant.results[0].name_hint = value.name_hint
    if isinstance(owner, Operation):
        Rewriter.insert_op(constant, InsertPoint.after(owner))
    else:
        Rewriter.insert_op(constant, InsertPoint.at_start(owner))
    value.replace_all_uses_with(constant.results[0])


def refine_type(value: SSAValue, known: Attribute) -> None:
    """
    Gives `value` the shape in the type `known`, if this shape is more precise than the
    declared one. Sizes that are unknown in `known` keep their declared value. If one of
    the types is not a tensor type, nothing changes.
    """
    declared = value.type
    if not isinstance(known, TensorType):
        return
    if isinstance(declared, TensorType):
        shape = [
            b if a < 0 else a
            for a, b in zip(known.get_shape(), declared.get_shape(), strict=True)
        ]
        known = with_shape(declared, shape)
    elif not isinstance(declared, UnrankedTensorType):
        return
    if known != declared:
        hint = value.name_hint
        Rewriter.replace_value_with_new_type(value, known).name_hint = hint


def fold_function(function: FuncOp, facts: dict[SSAValue, Any]) -> None:
    """
    Replaces the known values of a function by constants, gives all other values their
    known shapes, and removes unused ops. `facts` holds the array or the type of each
    value.
    """
    block = function.body.block
    values = [*block.args, *(r for op in block.ops for r in op.results)]
    for value in values:
        if value not in facts:
            continue
        content = facts[value]
        if (
            isinstance(content, np.ndarray)
            and isinstance(value.type, TensorType)
            and is_whole(value)
            and value.first_use is not None
            and not isinstance(value.owner, _Constant)
        ):
            replace_by_constant(value, content)
        refine_type(value, type_of(content))
    region_dce(function.body)
    function.update_function_type()


def check_calls(module: ModuleOp) -> None:
    """
    Raises DistIRError if the operands of a call have other shapes than the arguments of
    the called function.
    """
    known = functions(module)
    for call in module.walk():
        if not isinstance(call, CallOp):
            continue
        type_ = known[call.callee.string_value()].function_type
        if (
            tuple(v.type for v in call.operands) != type_.inputs.data
            or tuple(v.type for v in call.results) != type_.outputs.data
        ):
            raise DistIRError(
                f"function {call.callee} is called for tensors of different shapes, but a "
                "function has one type; run inline-calls before fold-shapes"
            )


@dataclass(frozen=True)
class FoldShapesPass(DistIRPass):
    """
    Computes all values that follow from constants and shapes, and replaces them by
    `onnx.Constant`. All other values get their shape as far as it is known. Known
    shapes and contents pass through calls of functions, and unused ops are removed.
    This is the mixed concrete and abstract interpretation of the DistIR paper, section
    3.3.

    - `max_elements`: values with more array elements are not replaced by constants.
    """

    name = "fold-shapes"

    max_elements: int = KNOWN_SIZE

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = mixed_values(op, self.max_elements)
        for function in functions(op).values():
            if function.body.blocks:
                fold_function(function, facts)
        check_calls(op)
