"""Mutants of ops: other attributes, operands of other types, constants of other values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation
from xdsl.utils.exceptions import VerifyException

from distir.dialects.constants import direct_constant
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.inference import inferred_types
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import constant_attr
from support.sharding_cases import CASES
from support.sharding_harness import build, sequential, typed
from support.train_cases import CASES as TRAIN_CASES

_ELEMENTS = (f32, f64, f16, bf16, i64, i32, i1)
_TEXTS = (
    "",
    "SAME_UPPER",
    "VALID",
    "mul",
    "add",
    "sum",
    "none",
    "foo",
    "i...>-j",
    "ij->ji",
)


@cache
def bases() -> list[Operation]:
    """Returns the ops of the cases of rules, which are well-typed."""
    return [
        build(c, None, [r.type for r in sequential(c).op.results])[0]
        for c in (*CASES, *TRAIN_CASES)
    ]


@dataclass
class Mutant:
    """An op of one block; the block is kept alive, as the op's operands belong to it."""

    op: Operation
    block: Block


def mutant(random: Random) -> Mutant:
    """Returns a mutant of a well-typed op, which may be well-typed too."""
    base = random.choice(bases())
    types = [v.type for v in base.operands]
    constants = [
        None if (value := direct_constant(v)) is None else value for v in base.operands
    ]
    properties = dict(base.properties)
    results = [r.type for r in base.results]
    again = False
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.randrange(10)
        names = [n for n in properties if n not in ("omitted_inputs", _SEGMENTS)]
        if kind < 4 and names:
            name = random.choice(names)
            properties[name] = _attribute(random, properties[name])
        elif kind < 8 and types:
            i, j = random.randrange(len(types)), random.randrange(len(types))
            value = constants[i]
            if kind == 7:
                types[i], types[j] = types[j], types[i]
                constants[i], constants[j] = constants[j], constants[i]
            elif value is not None:
                constants[i] = value = _constant(random, value)
                types[i] = typed(value)
            else:
                types[i] = _type(random, types[i])
        elif results:
            again = True
            i = random.randrange(len(results))
            results[i] = _type(random, results[i])
    block = Block()
    operands = []
    for type_, value in zip(types, constants, strict=True):
        if value is None:
            operands.append(block.insert_arg(type_, len(block.args)))
            continue
        constant = operator("Constant").build_op(
            [], [type_], {"value": constant_attr(value)}
        )
        block.add_op(constant)
        operands.append(constant.results[0])

    def made(result_types: list[Attribute]) -> Operation:
        return type(base).create(
            operands=operands, result_types=result_types, properties=properties
        )

    op = made(results)
    if isinstance(op, OnnxOp) and not again:
        op = made(_inferred(op, constants))
    block.add_op(op)
    return Mutant(op, block)


_SEGMENTS = "operandSegmentSizes"


def _inferred(op: OnnxOp, constants: list[Any]) -> list[Attribute]:
    """Returns the types that follow from a mutant's operands, if any do."""
    declared = [r.type for r in op.results]
    try:
        found = inferred_types(op, [v.type for v in op.operands], constants)
    except VerifyException:
        return declared
    return [d if f is None else f for d, f in zip(declared, found, strict=True)]


def _integer(random: Random, value: int) -> int:
    return random.choice(
        (0, -1, 1, 2, 3, 5, 7, value + 1, value - 1, -value, 2**40, -(2**40))
    )


def _attribute(random: Random, attr: Attribute) -> Attribute:
    match attr:
        case IntegerAttr():
            return IntegerAttr(_integer(random, attr.value.data), attr.type)
        case FloatAttr():
            return FloatAttr(random.choice((0.0, -1.0, 1e30, float("nan"))), attr.type)
        case StringAttr():
            return StringAttr(random.choice((*_TEXTS, attr.data[1:], attr.data[::-1])))
        case ArrayAttr():
            items = list(attr.data)
            if not items:
                return attr
            i = random.randrange(len(items))
            match random.randrange(4):
                case 0:
                    items[i] = _attribute(random, items[i])
                case 1:
                    del items[i]
                case 2:
                    items.append(items[i])
                case _:
                    items = [_attribute(random, item) for item in items]
            return ArrayAttr(items)
        case _:
            return attr


def _constant(random: Random, value: Any) -> Any:
    value = np.array(value)
    kind = random.randrange(4)
    if kind == 0 and value.size and value.dtype.kind in "iu":
        flat = value.reshape(-1)
        i = random.randrange(flat.size)
        flat[i] = np.array(_integer(random, int(flat[i]))).astype(value.dtype)
    elif kind == 1 and value.ndim:
        value = value[:-1]
    elif kind == 2 and value.ndim == 1:
        value = np.concatenate([value, value[:1]])
    elif kind == 3:
        value = value.reshape(-1)
    return value


def _type(random: Random, type_: Attribute) -> Attribute:
    if not isinstance(type_, TensorType):
        return type_
    shape: list[int] = list(type_.get_shape())
    element: Any = type_.element_type
    i = random.randrange(len(shape)) if shape else 0
    match random.randrange(8):
        case 0:
            element = random.choice(_ELEMENTS)
        case 1:
            shape[i : i + 1] = [random.choice((0, 1, 2, 3, 4, 6, 8))] if shape else []
        case 2:
            del shape[i : i + 1]
        case 3:
            shape.insert(i, random.choice((0, 1, 2, 3, 4)))
        case 4:
            shape[i : i + 1] = [DYNAMIC_INDEX] if shape else []
        case 5:
            shape = []
        case 6:
            random.shuffle(shape)
        case _:
            return UnrankedTensorType(element)
    return TensorType(element, shape)
