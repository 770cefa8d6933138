"""Every op of `arith` and `math` on tensors, under splits that its rule allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from support.cases import named
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, TensorType, f32, f64, i32, i64
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from distir.sharding.rule import rule_for, sharding_rule
from distir.testing import check_op

SHAPE = (4, 4)
ONLY_NUMBERS = 12
"""The ops that xDSL has on numbers alone, such as comparisons and most casts."""

NOT_COMPUTED = {"math.ctlz", "math.cttz", "math.ctpop", "math.ipowi"}
"""Ops of integers that the reference interpreter lacks."""


def on_tensors(kind: type[Operation]) -> Operation | None:
    """An op of this kind on tensors, whichever types it takes; None if it takes none."""
    assert issubclass(kind, IRDLOperation)
    count = len(kind.get_irdl_definition().operands)
    same = [([t] * count, t) for t in (f32, i32)]
    for given, made in (
        *same,
        ([f32], f64),
        ([f64], f32),
        ([i32], i64),
        ([f32, i32], f32),
    ):
        operands = [create_ssa_value(TensorType(t, SHAPE)) for t in given]
        if len(operands) == count:
            op = kind.create(operands=operands, result_types=[TensorType(made, SHAPE)])
            if is_valid(op):
                return op
    return None


def is_valid(op: Operation) -> bool:
    try:
        op.verify()
    except VerifyException:
        return False
    return True


def ruled() -> Iterator[type[Operation]]:
    """The kinds of ops that have an elementwise rule."""
    for dialect in (arith.Arith, math.Math):
        for kind in dialect.operations:
            if sharding_rule.get(kind.name) and kind is not arith.ConstantOp:
                yield kind


def test_elementwise_ops_are_right_under_splits() -> None:
    made = {kind.name: on_tensors(kind) for kind in ruled()}
    ops = [op for name, op in made.items() if op and name not in NOT_COMPUTED]
    assert len(ops) > 55 and list(made.values()).count(None) <= ONLY_NUMBERS
    rng = np.random.default_rng(0)
    for op in ops:
        with named(op.name):
            values = [
                rng.uniform(0.25, 0.75, SHAPE)
                if isinstance(value.type.element_type, AnyFloat)  # pyright: ignore
                else rng.integers(1, 4, SHAPE)
                for value in op.operands
            ]
            check_op(op, values, splits=2)


def test_partial_sums_pass_where_all_operands_have_one_layout() -> None:
    """A product cannot have one operand that is partial and one that is whole."""
    for kind, expected in {
        arith.AddfOp: [{0, 1}],
        arith.NegfOp: [{0}],
        arith.MulfOp: [],
        arith.DivfOp: [],
    }.items():
        op = on_tensors(kind)
        assert op is not None
        assert [linear.operands for linear in rule_for(op).linear] == expected
