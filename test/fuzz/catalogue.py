"""
Every op that has a case in the tests of sharding rules, as a step of a random program: over
a hundred kinds. What an op reads that is no constant is an argument with the case's
values, or a value of the program of the same type where the op takes any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from support import random_ops, sharding_cases, train_cases
from support.random_programs import ProgramBuilder, arguments_of, shape_of
from support.sharding_harness import Case, sequential, typed
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Operation, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr
from distir.interpreters.joint_ops import joint_op

Array = npt.NDArray[Any]

_PARTICULAR = """
Acosh Asin Acos Atanh Sqrt Log Reciprocal Div Mod Pow Gather GatherElements GatherND
    ScatterElements ScatterND TensorScatter OneHot ReduceLogSum ReduceLogSumExp ReduceProd
    CumProd LpNormalization TopK ArgMax ArgMin Hardmax Ceil Floor Round Sign IsNaN IsInf
    QuantizeLinear DequantizeLinear Tan Cast BitCast Exp Sinh Cosh Gamma"""
PARTICULAR = frozenset(_PARTICULAR.split())
"""
Operators that read only their own arguments: those which are not defined everywhere, jump,
or make large numbers of small ones.
"""


@dataclass
class FuzzBuilder(ProgramBuilder):
    """A builder that knows values for some of the arguments."""

    given: dict[int, Array] = field(default_factory=dict[int, Array])

    def given_argument(self, array: Array) -> SSAValue:
        """An argument with that value."""
        value = self.argument("input", array.shape, typed(array).element_type)
        self.given[len(self.block.args) - 1] = array
        return value


@cache
def cases() -> list[Case]:
    """All cases that programs are made of, every one known to run."""
    found: list[Case] = []
    for case in (*sharding_cases.CASES, *train_cases.CASES):
        arrays = [a for a in case.inputs if a is not None]
        small = all(a.size <= 4096 and 0 not in a.shape for a in arrays)
        # Ranks that run in lock-step exchange nothing within an op.
        within = joint_op.get(case.name) is None
        if small and within and case.label not in ("far", "part"):
            sequential(case)
            found.append(case)
    return found


@cache
def result_types(index: int) -> list[Any]:
    """The types of a case's results."""
    return [typed(r) for r in sequential(cases()[index]).results]


def case_step(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Appends the op of a case, on `x` and other values of the program where they fit."""
    assert isinstance(b, FuzzBuilder)
    index = b.draw(st.integers(0, len(cases()) - 1))
    case = cases()[index]
    name = case.name.removeprefix("onnx.")
    operands: list[SSAValue | None] = []
    for position, array in enumerate(case.inputs):
        if array is None:
            operands.append(None)
            continue
        type_ = typed(array)
        if position in case.constants:
            op = operator("Constant").build_op(
                [], [type_], {"value": constant_attr(array)}
            )
            b.block.add_op(op)
            operands.append(op.results[0])
            continue
        same = [v for v in b.values if v.type == type_]
        free = name not in PARTICULAR and type_.element_type == f32
        if same and free and case.make is None and b.draw(st.booleans()):
            operands.append(b.draw(st.sampled_from(same)))
        else:
            operands.append(b.given_argument(array))
    op = _op(case, operands, result_types(index))
    b.block.add_op(op)
    # What has no elements is for nothing to read: a maximum of none is undefined.
    return [
        r
        for r in op.results
        if getattr(r.type, "element_type", None) == f32 and 0 not in shape_of(r)
    ]


def _op(
    case: Case, operands: Sequence[SSAValue | None], types: Sequence[Any]
) -> Operation:
    if case.make is None:
        return operator(case.name).build_op(operands, types, case.attributes)
    op = case.make([v for v in operands if v is not None])
    assert not draws_random_numbers(op)
    return op


def tame(b: ProgramBuilder, x: SSAValue) -> Sequence[SSAValue]:
    """Brings a value back to between -1 and 1, so that later ops can use it."""
    return [b.op("Tanh", [x], shape_of(x))]


STEPS = [*random_ops.STEPS, *([case_step] * len(random_ops.STEPS)), tame]


def op_names() -> frozenset[str]:
    """The names of all ops that programs may hold, as far as cases say."""
    return frozenset(str(sequential(c).op.name) for c in cases())


def values_of(module: ModuleOp, given: dict[int, Array], seed: int) -> list[Array]:
    """The arguments of a program: as given, others at random."""
    arrays = arguments_of(module, seed)
    for index, array in given.items():
        assert arrays[index].shape == array.shape
        arrays[index] = np.asarray(array)
    return arrays
