"""Gradients of arithmetic with broadcasting, and of choices between operands."""

import numpy as np
import pytest
import torch
from gradients.harness import GradientCase, check, integers, normal, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

MASK = np.array([[True, False, True], [False, False, True]])


def pairs(name, function, make=normal):
    shapes = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,))]
    return [
        GradientCase(name, [make(*a, seed=1), make(*b, seed=2)], torch=function)
        for a, b in shapes
    ]


def tied(name, function):
    """torch shares the gradient of a tie between two operands."""
    a, b = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])
    return GradientCase(name, [a, b], torch=function, smooth=False, label="tie")


CASES = [
    *pairs("Add", torch.add),
    *pairs("Sub", torch.sub),
    *pairs("Mul", torch.mul),
    *pairs("Div", torch.div, uniform),
    *pairs("Pow", torch.pow, uniform),
    *pairs("Max", torch.maximum),
    *pairs("Min", torch.minimum),
    tied("Max", torch.maximum),
    tied("Min", torch.minimum),
    GradientCase("Max", [normal(2, 3)], torch=lambda x: x),
    GradientCase("Max", [normal(2, 3), normal(3), normal(2, 1)]),
    GradientCase("Sum", [normal(2, 3), normal(3), normal(2, 1)], torch=lambda a, b, c: a + b + c),
    GradientCase("Mean", [normal(2, 3), normal(3), normal(2, 1)], torch=lambda a, b, c: (a + b + c) / 3),
    GradientCase("Mod", [uniform(4, high=9.0), uniform(4, seed=1)], {"fmod": 1}, torch=torch.fmod),
    GradientCase("Pow", [normal(4), np.array(2.0)], constants=frozenset([1]), torch=torch.pow),
    GradientCase("Pow", [normal(4), np.array([3.0])], constants=frozenset([1]), torch=torch.pow),
    GradientCase("Pow", [normal(4), np.array(1.0)], constants=frozenset([1]), torch=torch.pow, label="one"),
    GradientCase("Pow", [normal(1), np.array([[2.0], [2.0]])], constants=frozenset([1]), torch=torch.pow, label="wider"),
    GradientCase("Pow", [normal(2), np.array([[3.0]])], constants=frozenset([1]), torch=torch.pow, label="rank"),
    GradientCase("Pow", [uniform(4), np.array(-0.5)], constants=frozenset([1]), torch=torch.pow),
    GradientCase("Pow", [np.array([0.0, -1.0]), np.array(0.0)], constants=frozenset([1]), torch=torch.pow, label="zero"),
    GradientCase("Pow", [normal(4), integers(3)], torch=torch.pow, label="integer"),
    GradientCase("Pow", [np.array([0.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.0])], torch=torch.pow, smooth=False, label="edge"),
    GradientCase("Where", [MASK, normal(2, 3), normal(2, 3, seed=1)], torch=torch.where),
    GradientCase("Where", [MASK, normal(3), normal()], torch=torch.where),
    GradientCase("Where", [MASK[:, :1], normal(2, 3), np.array(-9.0)], constants=frozenset([2]), torch=torch.where),
    GradientCase("Clip", [normal(2, 5)], torch=torch.clone),
    GradientCase("Clip", [normal(2, 5), np.array(-0.5), np.array(0.5)], constants=frozenset([1, 2]), torch=torch.clamp),
    GradientCase("Clip", [normal(2, 5), np.array(-0.5), np.array(0.5)], torch=torch.clamp),
    GradientCase("Clip", [normal(2, 5), np.array(0.5), np.array(-0.5)], torch=torch.clamp, label="crossed"),
    GradientCase("Clip", [normal(2, 5), None, np.array(0.5)], torch=lambda x, _, high: x.clamp(max=high)),
    GradientCase("Clip", [normal(2, 5), np.array(0.0)], torch=lambda x, low: x.clamp(min=low)),
    GradientCase("Clip", [np.array([0.0, 1.0, 2.0]), np.array(0.0), np.array(1.0)], constants=frozenset([1, 2]), torch=torch.clamp, smooth=False, label="at the bounds"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@st.composite
def broadcast_shapes(draw):
    """Two shapes that broadcast together."""
    shape = draw(st.lists(st.integers(1, 3), max_size=3))

    def one():
        kept = shape[draw(st.integers(0, len(shape))) :]
        return tuple(draw(st.sampled_from([1, n])) for n in kept)

    return one(), one()


@settings(max_examples=tries(40), deadline=None)
@given(broadcast_shapes(), st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "Max"]))
def test_broadcasting(shapes, name):
    a, b = shapes
    check(GradientCase(name, [uniform(*a, seed=1), uniform(*b, seed=2)]))
