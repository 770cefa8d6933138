"""Replaces a group of ops by a single operator with the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, UnrankedTensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import VerifyException

from distir.dialects.constants import direct_constant
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.inference import inferred_types
from distir.dialects.onnx_ops.op import OnnxOp
from distir.errors import DistIRError
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.program import ENTRY, describe, made_with
from distir.transforms.repeats.op_sequence import common_scope

MOST_ELEMENTS = 1 << 26
"""
The maximal number of array elements of all values in a group that is compared with its
replacement.
"""

_SEEDS = (0, 1)
_TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-8}
"""
The largest allowed difference, relative to the largest element. The key is the size of
an element in bytes.
"""


def replacing(
    name: str, attributes: Mapping[str, Attribute], inputs: Sequence[SSAValue]
) -> OnnxOp:
    """
    Returns a new ONNX operator on the values `inputs`, with inferred types. The caller
    must insert the operator into the program. Raises DistIRError if the operator does
    not exist or cannot take these operands or attributes.
    """
    try:
        kind = operator(name)
    except KeyError as error:
        raise DistIRError(f"ONNX has no operator {name!r}") from error
    unknown = sorted(attributes.keys() - kind.SCHEMA.attributes.keys())
    if unknown:
        raise DistIRError(f"it has no attribute {unknown[0]!r}")
    op = kind.build_op(inputs, [UnrankedTensorType(f32)], attributes)
    known = [direct_constant(value) for value in inputs]
    try:
        (type_,) = inferred_types(op, [value.type for value in inputs], known)
        if type_ is None:
            raise DistIRError(f"ONNX does not say what type onnx.{name} gives")
        Rewriter.replace_value_with_new_type(op.results[0], type_)
        op.verify_()
    except VerifyException as error:
        raise DistIRError(str(error)) from error
    return op


def difference(ops: Sequence[Operation], result: SSAValue, new: OnnxOp) -> str | None:
    """
    Compares the operator `new` with a group of ops on random inputs. Returns a
    description of the difference between the results, or None if the results agree.
    Raises DistIRError if the group is too large to compute.
    """
    if new.results[0].type != result.type:
        return f"it gives {new.results[0].type} instead of {result.type}"
    values = [value for op in ops for value in op.results]
    size = sum(
        prod(v.type.get_shape()) for v in values if isinstance(v.type, TensorType)
    )
    if size > MOST_ELEMENTS:
        raise DistIRError(
            f"the group that ends with {describe(ops[-1])} has {size} elements, too many to "
            f"be compared with what is to replace it ({MOST_ELEMENTS} at most); import the "
            f"model with a smaller batch"
        )
    group, other = (
        _program(ops, new.operands, result),
        _program([new], new.operands, None),
    )
    for seed in _SEEDS:
        arguments = random_arguments(group, seed)
        (wanted,), (found,) = (
            run_program(group, arguments),
            run_program(other, arguments),
        )
        wide = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
        scale = max(1.0, float(np.abs(wide[0]).max(initial=0.0)))
        apart = float(np.abs(wide[0] - wide[1]).max(initial=0.0)) / scale
        if not apart <= _TOLERANCE.get(np.asarray(wanted).dtype.itemsize, 1e-4):
            return f"on random inputs its results are {apart:.3g} apart, relative to the largest"
    return None


def put(ops: Sequence[Operation], result: SSAValue, new: Operation) -> None:
    """
    Replaces a group of ops by `new`. `result` must be the only value of the group that
    other ops use.
    """
    scope = ".".join(common_scope(list(ops)))
    if scope:
        new.attributes[SCOPE] = SCOPE.attr(scope)
    owner = result.owner
    assert isinstance(owner, Operation)
    Rewriter.insert_op(new, InsertPoint.after(owner))
    new.results[0].name_hint = result.name_hint
    result.replace_all_uses_with(new.results[0])
    for op in reversed(ops):
        Rewriter.erase_op(op)


def _program(
    ops: Sequence[Operation], inputs: Sequence[SSAValue], result: SSAValue | None
) -> ModuleOp:
    """
    Returns a program that consists of `ops` and returns `result`, or the result of the
    last op if `result` is None. Its arguments are the values in `inputs` that are not
    constants.
    """
    free = [value for value in dict.fromkeys(inputs) if direct_constant(value) is None]
    block = Block(arg_types=[value.type for value in free])
    values: dict[SSAValue, SSAValue] = dict(zip(free, block.args, strict=True))
    for op in ops:
        for value in op.operands:
            if value not in values:  # a constant
                assert isinstance(value.owner, Operation)
                copy = value.owner.clone()
                block.add_op(copy)
                values[value] = copy.results[0]
        copy = made_with(op, [values[v] for v in op.operands], op.result_types)
        block.add_op(copy)
        values |= zip(op.results, copy.results, strict=True)
    last = values[ops[-1].results[0] if result is None else result]
    block.add_op(ReturnOp(last))
    types = [arg.type for arg in block.args], [last.type]
    return ModuleOp([FuncOp(ENTRY, types, Region(block))])
