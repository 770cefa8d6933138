"""
Rules of formulas against the proof: a formula as ONNX ops, as if it were the reference of a
user's kernel, whose rule follows from those of the ops and is proved by splitting it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.cases import named
from support.sharding_harness import build, of_each_op
from support.train_cases import CASES
from xdsl.dialects.builtin import i64
from xdsl.ir import Block, SSAValue

from distir.dialects.formula import Expr, Formula
from distir.dialects.kernel import KernelResultOp
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import (
    constant_attr,
    numpy_dtype,
    onnx_element_type,
    tensor_type,
)
from distir.dialects.train_ops.base import FormulaOp
from distir.sharding.kernel_propagation import propagated_rule
from distir.sharding.rule import Dim, Rule, rule_for

ONNX = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "negative": "Neg",
    "greater": "Greater",
    "where": "Where",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "erf": "Erf",
    "absolute": "Abs",
    "minimum": "Min",
    "maximum": "Max",
    "sign": "Sign",
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "expand": "Unsqueeze",
    "divide_axis": "Reshape",
    "join_axes": "Reshape",
    "cast": "Cast",
}
"""The operator for each function; those of labels and Python numbers are several."""


def reference(formula: Formula, results: Sequence[Expr]) -> Block | None:
    """Returns a formula as ONNX ops; None for a function that is not one of them."""
    block = Block(arg_types=[expr.type for expr in formula.operands])
    values: dict[Expr, SSAValue] = dict(zip(formula.operands, block.args, strict=True))

    def emit(name: str, given: Sequence[SSAValue], type_: Any, **attributes: Any):
        op = operator(name).build_op(given, [type_], attributes)
        block.add_op(op)
        return op.results[0]

    def constant(array: Any, element: Any) -> SSAValue:
        type_ = tensor_type(array.shape, element)
        return emit("Constant", [], type_, value=constant_attr(array))

    def integers(numbers: Sequence[int]) -> SSAValue:
        return constant(np.array(numbers, np.int64), i64)

    for step in formula.steps:
        if step.function not in ONNX:
            return None
        element = step.expressions[-1].type.element_type
        given = [
            values[v]
            if isinstance(v, Expr)
            else constant(np.array(v, numpy_dtype(element)), element)
            for v in step.inputs
        ]
        attributes: dict[str, Any] = {}
        match step.function:
            case "sum" | "mean" | "max":
                rank = len(step.expressions[0].shape)
                axes = range(rank) if step.axes is None else step.axes
                given.append(integers([*axes]))
                attributes = {"keepdims": int(step.keepdims), "noop_with_empty_axes": 1}
            case "expand":
                given.append(integers(step.axes or ()))
            case "divide_axis" | "join_axes":
                given.append(integers(step.shape))
            case "cast" if step.type.element_type == element:
                values[step] = given[0]
                continue
            case "cast":
                attributes = {"to": onnx_element_type(step.type.element_type)}
            case _:
                pass
        values[step] = emit(ONNX[step.function], given, step.type, **attributes)
    block.add_op(KernelResultOp.create(operands=[values[expr] for expr in results]))
    return block


def split(rule: Rule) -> list[list[Dim]]:
    """Returns the factors of each dimension that can be split, in order of appearance."""
    numbers: dict[int, int] = {}

    def of(dim: Dim) -> Dim:
        free = [f for f in dim if rule.factors[f].kind != "replicate"]
        free = [
            f for f in free if rule.factors[f].size > 1 and f not in rule.decomposed
        ]
        return tuple(numbers.setdefault(f, len(numbers)) for f in free)

    return [[of(dim) for dim in dims] for dims in (*rule.operands, *rule.results)]


OPS = {
    name: cases
    for name, cases in of_each_op(CASES).items()
    if name.startswith("train.") and isinstance(build(cases[0])[0], FormulaOp)
}

APART = {
    "train.adam": "Python numbers",
    "train.adamw": "Python numbers",
    "train.cross_entropy": "labels",
    "train.cross_entropy_grad": "labels",
    "train.cross_entropy_part_grad": "labels",
    "train.cross_entropy_sum": "labels",
    "train.label_logit": "labels",
    "train.lamb_direction": "Python numbers",
    "train.logit_maximum": "terms of a maximum, which a kernel's rule does not have",
    "train.second_moment": "Python numbers",
}
"""Formulas that are no few ONNX ops, and why."""


@pytest.mark.parametrize("name", sorted(OPS))
def test_the_rule_is_the_proved_one(name: str):
    proved = 0
    for case in OPS[name]:
        op, _ = build(case)
        assert isinstance(op, FormulaOp)
        formula = op.record
        results = formula.results[: len(op.results)]
        block = reference(formula, results)
        # As ONNX ops, sums are rounded to 16 bits by a Cast of its own, which needs them whole.
        is_narrow = any(a is not None and a.dtype == np.float16 for a in case.inputs)
        if block is not None and name not in APART and not is_narrow:
            operands = [expr.shape for expr in formula.operands]
            rule = propagated_rule(block).rule(operands, [e.shape for e in results])
            with named(case):
                assert split(rule_for(op)) == split(rule)
            proved += 1
    assert (proved > 0) == (name not in APART)
