"""
Simplifies the ops that model exporters write without optimization. Each rewrite keeps
the result for every input.
"""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import STOP_GRADIENT
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import onnx_element_type
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import ExpertPlacesOp
from distir.program import erase_dead

_Identity = operator("Identity")
_Cast = operator("Cast")
_CastLike = operator("CastLike")
_Constant = operator("Constant")
_SequenceAt = operator("SequenceAt")
_SequenceConstruct = operator("SequenceConstruct")
_Split = operator("Split")
_SplitToSequence = operator("SplitToSequence")
_Reshape = operator("Reshape")
_TopK = operator("TopK")


def canonicalize(module: ModuleOp) -> None:
    """
    Simplifies every function of a program, in place. Rewrites Identity, CastLike, and
    sequences of tensors whose parts are known. Lowers the capacity of experts if each
    token chooses an expert at most once. Finally removes ops without uses.
    """
    for function in module.body.block.ops:
        if isinstance(function, FuncOp):
            for op in list(function.body.block.ops):
                if isinstance(op, _Identity) and STOP_GRADIENT not in op.attributes:
                    remove_identity(op)
                elif isinstance(op, _CastLike):
                    cast_like_to_cast(op)
                elif isinstance(op, _SplitToSequence):
                    split_sequence_to_split(op)
                elif isinstance(op, _SequenceAt):
                    element_of_constructed_sequence(op)
                elif isinstance(op, ExpertPlacesOp):
                    capacity_of_different_choices(op)
            erase_dead(function.body.block)
            function.update_function_type()


def remove_identity(op: OnnxOp) -> None:
    """Replaces `Identity(x)` by x, which gets the more precise of the two types."""
    value, result = op.operands[0], op.results[0]
    if isinstance(value, OpResult) and _says_more(result.type, value.type):
        value = Rewriter.replace_value_with_new_type(value, result.type)
    result.replace_all_uses_with(value)


def _says_more(type_: Attribute, other: Attribute) -> bool:
    if not isinstance(type_, TensorType):
        return False
    if not isinstance(other, TensorType):
        return True
    dynamic = type_.get_shape().count(DYNAMIC_INDEX)
    return dynamic < other.get_shape().count(DYNAMIC_INDEX)


def cast_like_to_cast(op: OnnxOp) -> None:
    """Replaces `CastLike(x, y)` by a Cast to the element type of y."""
    source, like = op.operands
    if not isinstance(like.type, TensorType):
        return
    attributes = {
        n: a for n, a in op.properties.items() if n in _Cast.SCHEMA.attributes
    }
    attributes["to"] = IntegerAttr(onnx_element_type(like.type.element_type), i64)
    cast = _Cast.build_op([source], [op.results[0].type], attributes, op.attributes)
    Rewriter.replace_op(op, cast)


def split_sequence_to_split(op: OnnxOp) -> None:
    """
    Replaces each `SequenceAt(SplitToSequence(x), i)` by a result of a Split. The index
    i and the sizes of the parts must be constant, and no other op may use the sequence.
    Otherwise nothing changes.
    """
    source, users = op.operands[0], [use.operation for use in op.results[0].uses]
    if not isinstance(source.type, TensorType) or len(op.operands) < 2:
        return
    axis = op.attribute("axis") % max(source.type.get_num_dims(), 1)
    sizes = _parts(direct_constant(op.operands[1]), source.type.get_shape()[axis])
    positions = [_position(user, op.results[0], len(sizes)) for user in users]
    if not sizes or None in positions:
        return
    shape = list(source.type.get_shape())
    types = [
        TensorType(source.type.element_type, [*shape[:axis], size, *shape[axis + 1 :]])
        for size in sizes
    ]
    split = _Constant.build_op(
        [], [TensorType(i64, [len(sizes)])], {"value": np.array(sizes, np.int64)}
    )
    parts = _Split.build_op([source, split], types, {"axis": axis}, op.attributes)
    Rewriter.insert_op([split, parts], InsertPoint.before(op))
    for user, position in zip(users, positions, strict=True):
        assert position is not None
        Rewriter.replace_op(user, [], [parts.results[position]])
    Rewriter.erase_op(op)


def element_of_constructed_sequence(op: OnnxOp) -> None:
    """
    Replaces `SequenceAt(SequenceConstruct(x, ...), i)` by the i-th operand, if i is
    constant.
    """
    if op.parent is None:
        return  # replaced, with the other elements of its sequence
    sequence = op.operands[0].owner
    if not isinstance(sequence, _SequenceConstruct):
        return
    position = _position(op, op.operands[0], len(sequence.operands))
    if position is not None:
        Rewriter.replace_op(op, [], [sequence.operands[position]])


def capacity_of_different_choices(op: ExpertPlacesOp) -> None:
    """
    Lowers the capacity of experts to the number of tokens in a group, if a TopK makes
    the choices. The choices of one token are then all different, so an expert is chosen
    at most once per token.
    """
    ids, (_, tokens, choices) = op.ids, shape_of(op.ids)
    while isinstance(source := ids.owner, _Reshape | _Cast | _Identity):
        ids = source.operands[0]
        if not isinstance(ids.type, TensorType) or shape_of(ids)[-1:] != (choices,):
            return
    if not isinstance(source, _TopK) or ids is not source.results[1]:
        return
    is_last = source.attribute("axis") in (-1, len(shape_of(ids)) - 1)
    if is_last and op.capacity.value.data > tokens:
        op.capacity = IntegerAttr(tokens, i64)


def _parts(split: np.ndarray | None, size: int) -> list[int]:
    """
    Returns the sizes of the parts into which `split` divides a dimension of `size`
    elements. Returns an empty list if the sizes are unknown.
    """
    if split is None:
        return []
    if split.ndim:
        return [int(s) for s in split]
    step = int(split)
    if size < 0 or step < 1:
        return []
    return [min(step, size - start) for start in range(0, size, step)]


def _position(user: object, sequence: SSAValue, count: int) -> int | None:
    if not isinstance(user, _SequenceAt) or user.operands[0] is not sequence:
        return None
    position = direct_constant(user.operands[1])
    if position is None or not -count <= int(position) < count:
        return None
    return int(position) % count
