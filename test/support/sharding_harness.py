"""
Runs one op sequentially and distributed: the proof that its rule and local form agree
with what the op computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import NoneType, TensorType
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.dist import Layout, with_layout
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import (
    constant_attr,
    element_type_of_dtype,
    tensor_type,
)
from distir.interpreters import onnx_evaluator
from distir.interpreters.joint_ops import joint_op
from distir.sharding.rule import rule_for
from distir.testing.runs import SequentialOp, interpreter_for, run_split
from distir.testing.splits import (
    assignments,
    mesh,
    nests,
    partial_assignments,
    sample,
)
from support.thoroughness import IS_THOROUGH

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """
    One op on concrete inputs, by schema position; None is omitted. Inputs in `constants`
    come from an onnx.Constant, the others are arguments. `name` is that of an ONNX
    operator, or of any op that `make` builds, with typed results, from the operands.
    """

    name: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    results: int = 1
    label: str = ""
    make: Callable[[Sequence[SSAValue]], Operation] | None = None

    def __str__(self) -> str:
        shapes = "x".join(
            "none" if a is None else str(list(a.shape)).replace(" ", "")
            for a in self.inputs
        )
        return f"{self.name}-{self.label or shapes}"


def of_each_op(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Returns the cases of each op, by its name."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.name, []).append(case)
    return found


def evaluate(op: Operation, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of one op of the per-rank form."""
    if not isinstance(op, OnnxOp):
        return list(interpreter_for(op).run_op(op, tuple(inputs)))
    given = iter(inputs)
    by_position = [None if v is None else next(given) for v in op.input_values]
    return [np.asarray(r) for r in onnx_evaluator.evaluate(op, by_position)]


@dataclass
class Sequential(SequentialOp):
    """A case as an op of the sequential form, and what it computes."""

    case: Case


def typed(array: Array) -> TensorType[Any]:
    return tensor_type(array.shape, element_type_of_dtype(array.dtype))


def build(
    case: Case,
    operand_layouts: Sequence[Layout] | None = None,
    result_types: Sequence[Any] | None = None,
) -> tuple[Operation, Block]:
    """
    Returns the op, whose operands are arguments of a block or constants, with these
    layouts.
    """
    block = Block()
    values: list[SSAValue | None] = []
    layouts = iter(operand_layouts or [])
    for position, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
            continue
        type_ = typed(array)
        if operand_layouts is not None:
            type_ = with_layout(type_, next(layouts))
        if position in case.constants:
            constant = operator("Constant").build_op(
                [], [type_], {"value": constant_attr(array)}
            )
            block.add_op(constant)
            values.append(constant.results[0])
        else:
            values.append(block.insert_arg(type_, len(block.args)))
    if case.make is not None:
        op = case.make([v for v in values if v is not None])
        if result_types is not None:
            op = type(op).create(
                operands=list(op.operands),
                result_types=list(result_types),
                properties=op.properties.copy(),
            )
        block.add_op(op)
        return op, block
    # Types that are not known yet, so that nothing is checked against them.
    types = result_types or [NoneType()] * case.results
    op = operator(case.name).build_op(values, types, case.attributes)
    block.add_op(op)
    return op, block


def sequential(case: Case) -> Sequential:
    op, _ = build(case)
    operands = [a for a in case.inputs if a is not None]
    results = evaluate(op, operands)
    op, block = build(case, None, [typed(r) for r in results])
    op.verify()
    sequential = Sequential(op, operands, results, rule_for(op), case)
    _KEEP.append(block)
    return sequential


_KEEP: list[Block] = []


SAMPLES = 20 if IS_THOROUGH else 4
"""
Splits that are run per case, out of all legal ones: on each of two meshes, but in `make test`
on both together.
"""


def assert_splits(plain: Sequential) -> None:
    """Runs the op under splits that its rule allows, on two meshes."""
    first, second = (
        [(on, assignment) for assignment in assignments(plain.rule, on)]
        for on in (mesh(a=2, b=3), mesh(a=2, b=2))
    )
    for every in (first, second) if IS_THOROUGH else (first + second,):
        for on, assignment in sample(every, SAMPLES, str(plain.case)):
            if joint_op.get(plain.op.name) and not nests(plain.rule, assignment, on):
                continue
            run_split(plain, on, assignment)


def assert_partial_operands(plain: Sequential) -> None:
    """
    Runs the op with operands that are terms, where it is linear in them: in `make test` with
    nothing else split, and with a sample of what may be.
    """
    on = mesh(a=2, b=3)
    cases = list(partial_assignments(plain.rule, plain.operands, on))
    if not IS_THOROUGH:
        split = [case for case in cases if case[0]]
        cases = [case for case in cases if not case[0]]
        cases += sample(split, SAMPLES, str(plain.case))
    for assignment, operands, reduction in cases:
        run_split(plain, on, assignment, operands, reduction)
