"""The element type in which an op computes: its cost follows no order of operands."""

from collections import Counter
from dataclasses import replace
from itertools import islice, permutations

import numpy as np
import pytest
from support.sharding_cases import CASES as ONNX_CASES
from support.sharding_harness import Case, build, of_each_op, sequential
from support.train_cases import CASES as TRAIN_CASES
from xdsl.dialects.builtin import TensorType, bf16, f32
from xdsl.dialects.test import TestOp as AnyOp
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from distir.dialects.onnx_ops.values import bytes_per_element
from distir.interpreters.simulator.costs.hardware import DeviceKind
from distir.interpreters.simulator.costs.op_costs import (
    CostContext,
    computing_type,
    cost_of,
)
from distir.interpreters.simulator.work import Work
from distir.sharding.rule import rule_for

CASES = of_each_op([*ONNX_CASES, *TRAIN_CASES])

ORDERS = 24
"""The largest number of orders of operands that are tried for an op."""

DEVICE = DeviceKind("unit", 10**18, 1e300, {"bf16": 1e30, "default": 1e-30}, 0.0)
"""A device that computes at once in bf16, and in no other type."""


def in_bf16(case: Case) -> Operation:
    """Returns the op of a case, with bf16 in the place of f32, but for statistics."""
    found = sequential(case)
    op, block = build(case, None, [r.type for r in found.op.results])
    _BLOCKS.append(block)
    for value in (*op.operands, *op.results):
        type_ = value.type
        if isinstance(type_, TensorType) and type_.element_type == f32:
            narrow = TensorType(bf16, type_.get_shape())
            Rewriter.replace_value_with_new_type(value, narrow)
    return op


_BLOCKS: list[object] = []

IN_F32 = ("train.selective_scan", "train.selective_scan_grad")
"""Ops whose kernels compute in f32 whatever the types of their operands."""


def has_bf16(op: Operation) -> bool:
    """Whether the op has an operand in bf16, and none in 8 bits."""
    types = {v.type.element_type for v in op.operands if isinstance(v.type, TensorType)}
    return bf16 in types and not any("float8" in str(t) for t in types)


@pytest.mark.parametrize("name", CASES)
def test_an_op_in_bf16_computes_in_bf16_whatever_comes_first(name: str):
    for case in CASES[name]:
        op = in_bf16(case)
        rule = rule_for(op)
        if not has_bf16(op):
            continue
        assert computing_type(op, rule) == "bf16", case
        for order in islice(permutations(range(len(op.operands))), ORDERS):
            other = AnyOp([op.operands[i] for i in order], [r.type for r in op.results])
            operands = tuple(rule.operands[i] for i in order)
            assert computing_type(other, replace(rule, operands=operands)) == "bf16"


@pytest.mark.parametrize("name", [n for n in CASES if n not in IN_F32])
def test_the_cost_of_an_op_in_bf16_is_that_of_bf16(name: str):
    for case in CASES[name]:
        op = in_bf16(case)
        if not has_bf16(op):
            continue
        operands, results = (
            tuple(
                round(v.type.element_count() * bytes_per_element(v.type.element_type))
                for v in values
                if isinstance(v.type, TensorType)
            )
            for values in (op.operands, op.results)
        )
        work = Work.of(op, None)
        context = CostContext(op, DEVICE, work, operands, results)
        assert cost_of(context).seconds < 1e-9, case
        assert context.seconds_at_peak < 1e-9, case


def test_statistics_positions_and_scales_do_not_count():
    """Attention under context parallelism has positions in front, and f32 behind."""
    (case, *_) = CASES["train.placed_attention"]
    assert isinstance(case.inputs[0], np.ndarray)
    assert case.inputs[0].dtype == np.int64
    op = in_bf16(case)
    assert computing_type(op, rule_for(op)) == "bf16"
    op = sequential(CASES["MatMulInteger"][0]).op
    assert computing_type(op, rule_for(op)) in ("i8", "ui8")


def test_most_ops_are_tried():
    tried = Counter(has_bf16(in_bf16(cases[0])) for cases in CASES.values())
    assert tried[True] > 5 * tried[False]
