"""Ops that nothing flows through: differences agree that the gradient is zero."""

import numpy as np
import pytest
from gradients.harness import (
    GradientCase,
    backward_program,
    check,
    integers,
    normal,
)

from distir.errors import DistIRError

A, B = normal(2, 3, seed=1), normal(2, 3, seed=2)
TRUE = np.array([True, False])

CASES = [
    *(GradientCase(name, [A]) for name in ("Ceil", "Floor", "Round", "Sign")),
    *(
        GradientCase(name, [A, B])
        for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    *(GradientCase(name, [TRUE, TRUE[::-1].copy()]) for name in ("And", "Or", "Xor")),
    GradientCase("Not", [TRUE]),
    *(GradientCase(name, [A]) for name in ("IsInf", "IsNaN", "NonZero")),
    *(GradientCase(name, [A]) for name in ("ArgMax", "ArgMin", "Shape", "Size")),
    GradientCase("Constant", [], {"value": A}),
    GradientCase("ConstantOfShape", [integers([2, 3])], {"value": np.ones(1)}),
    GradientCase("EyeLike", [A]),
    GradientCase("OneHot", [integers([0, 2]), integers(3), np.array([0.0, 1.0])], constants=frozenset([2])),
    GradientCase("Range", [np.array(0.0), np.array(2.5), np.array(1.0)], constants=frozenset(range(3))),
    GradientCase("Range", [integers(0), integers(4), integers(1)]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_gradient(case):
    check(case)


def test_a_computed_bound_is_refused():
    case = GradientCase("Range", [np.array(0.0), np.array(2.5), np.array(1.0)])
    with pytest.raises(DistIRError, match=r"onnx\.Range has a gradient only where"):
        backward_program(case, frozenset([0]))
