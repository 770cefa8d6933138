"""Gradients of softmax, normalisation layers and GELU."""

import numpy as np
import pytest
import torch.nn.functional as F
from gradients.harness import GradientCase, backward_program, check, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import tries

from distir.errors import DistIRError

F64 = 11
"""ONNX's number of f64: statistics are kept in f32 by default."""


def layer_norm(axis, epsilon=1e-5):
    def run(x, scale, bias=None):
        over = tuple(range(axis % x.dim(), x.dim()))
        centered = x - x.mean(over, keepdim=True)
        variance = centered.square().mean(over, keepdim=True)
        out = centered * (variance + epsilon).rsqrt() * scale
        return out if bias is None else out + bias

    return run


def rms_norm(axis, epsilon=1e-5):
    def run(x, scale):
        over = tuple(range(axis % x.dim(), x.dim()))
        return x * (x.square().mean(over, keepdim=True) + epsilon).rsqrt() * scale

    return run


def layer_norm_case(x, axis, scale, bias=None, epsilon=None):
    attributes = {"axis": axis, "stash_type": F64}
    attributes |= {} if epsilon is None else {"epsilon": epsilon}
    inputs = [normal(*x), normal(*scale, seed=1)]
    inputs += [] if bias is None else [normal(*bias, seed=2)]
    # The attribute is a 32-bit float.
    reference = layer_norm(axis, float(np.float32(epsilon or 1e-5)))
    return GradientCase("LayerNormalization", inputs, attributes, torch=reference)


def rms_norm_case(x, axis, scale):
    reference = rms_norm(axis, float(np.float32(1e-5)))
    inputs = [normal(*x), normal(*scale, seed=1)]
    attributes = {"axis": axis, "stash_type": F64}
    attributes = {"axis": axis, "stash_type": F64}
    return GradientCase("RMSNormalization", inputs, attributes, torch=reference)


CASES = [
    GradientCase("Softmax", [normal(3, 4)], torch=lambda x: x.softmax(-1)),
    GradientCase("Softmax", [normal(3, 4, 2)], {"axis": 1}, torch=lambda x: x.softmax(1)),
    GradientCase("Softmax", [normal(3)], {"axis": 0}, torch=lambda x: x.softmax(0)),
    GradientCase("LogSoftmax", [normal(3, 4)], torch=lambda x: x.log_softmax(-1)),
    GradientCase("LogSoftmax", [normal(3, 4, 2)], {"axis": -2}, torch=lambda x: x.log_softmax(-2)),
    layer_norm_case((2, 3, 4), -1, (4,), (4,)),
    layer_norm_case((2, 3, 4), 1, (3, 4), (3, 4)),
    layer_norm_case((2, 3, 4), 0, (2, 3, 4), (2, 3, 4)),
    layer_norm_case((2, 3, 4), -1, (4,)),
    layer_norm_case((2, 3, 4), -1, (4,), (4,), epsilon=0.5),
    layer_norm_case((2, 3, 4), 1, (4,), (3, 1)),
    layer_norm_case((2, 3, 4), 1, (), (1, 3, 4)),
    layer_norm_case((2, 3, 4), -1, (1, 1, 4), (2, 1, 1)),
    layer_norm_case((2, 3, 4), -1, (2, 1, 4), (4,)),
    layer_norm_case((2, 3, 4), -1, (3, 1)),
    rms_norm_case((2, 3, 4), -1, (4,)),
    rms_norm_case((2, 3, 4), 1, (3, 4)),
    rms_norm_case((3, 4), 0, (3, 4)),
    rms_norm_case((2, 3, 4), 1, (4,)),
    rms_norm_case((2, 3, 4), -1, (2, 1, 4)),
    GradientCase("Gelu", [normal(3, 4)], torch=F.gelu),
    GradientCase("Gelu", [normal(3, 4) * 3], {"approximate": "tanh"}, torch=lambda x: F.gelu(x, approximate="tanh")),
    GradientCase("Swish", [normal(3, 4) * 3], torch=F.silu),
    GradientCase("Swish", [normal(3, 4)], {"alpha": 1.5}, torch=lambda x: x * (1.5 * x).sigmoid()),
    GradientCase("SwiGLU", [normal(3, 4), normal(3, 4, seed=1)], torch=lambda a, b: F.silu(a) * b),
    GradientCase("SwiGLU", [normal(3, 4), normal(3, 4, seed=1)], {"alpha": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@st.composite
def rows_of_tensors(draw):
    """A shape and an axis of it."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    return sizes, draw(st.integers(-len(sizes), len(sizes) - 1))


@settings(max_examples=tries(25), deadline=None)
@given(rows_of_tensors())
def test_random_axes(drawn):
    sizes, axis = drawn
    for name in ("Softmax", "LogSoftmax"):
        check(GradientCase(name, [normal(*sizes)], {"axis": axis}))
    # A large epsilon, so that rows of one element do not divide by nearly nothing.
    row = sizes[axis % len(sizes) :]
    check(layer_norm_case(sizes, axis, row, row, epsilon=0.5))
    check(rms_norm_case(sizes, axis, row))


def test_statistics_have_no_gradient():
    case = GradientCase("LayerNormalization", [normal(2, 4), normal(4)], results=2)
    with pytest.raises(DistIRError, match="no gradient rule for its mean"):
        backward_program(case, frozenset([1]))
