"""Gradients of functions of one number."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients.harness import (
    GradientCase,
    backward_program,
    check,
    normal,
    uniform,
)
from onnx import TensorProto
from support.programs import ops_of

X = np.concatenate([normal(7) * 2, [-3.5, 3.5]])
AT_ZERO = np.array([0.0, 1.0, -1.0])


def same(name, function, inputs=X, smooth=True, **attributes):
    label = "" if smooth else "at zero"
    return GradientCase(
        name, [inputs], attributes, torch=function, smooth=smooth, label=label
    )


def softsign(x):
    return x / (1 + x.abs())


CASES = [
    same("Identity", torch.clone),
    same("Neg", torch.neg),
    same("Abs", torch.abs),
    same("Abs", torch.abs, AT_ZERO, smooth=False),
    same("Sqrt", torch.sqrt, uniform(5)),
    same("Exp", torch.exp),
    same("Log", torch.log, uniform(5)),
    same("Reciprocal", torch.reciprocal, uniform(5)),
    same("Erf", torch.erf),
    same("Tanh", torch.tanh),
    same("Sigmoid", torch.sigmoid),
    same("Softplus", lambda x: F.softplus(x, threshold=100)),
    same("Softsign", softsign),
    same("Mish", F.mish),
    same("Sin", torch.sin),
    same("Cos", torch.cos),
    same("Tan", torch.tan, normal(5) / 2),
    same("Sinh", torch.sinh),
    same("Cosh", torch.cosh),
    same("Atan", torch.atan),
    same("Asin", torch.asin, uniform(5, low=-0.9, high=0.9)),
    same("Acos", torch.acos, uniform(5, low=-0.9, high=0.9)),
    same("Atanh", torch.atanh, uniform(5, low=-0.9, high=0.9)),
    same("Asinh", torch.asinh),
    same("Acosh", torch.acosh, uniform(5, low=1.1, high=3.0)),
    same("Relu", torch.relu),
    same("Relu", torch.relu, AT_ZERO, smooth=False),
    same("LeakyRelu", lambda x: F.leaky_relu(x, 0.25), alpha=0.25),
    same("LeakyRelu", lambda x: F.leaky_relu(x, 0.25), AT_ZERO, smooth=False, alpha=0.25),
    same("Elu", F.elu),
    same("Elu", lambda x: F.elu(x, 0.5), alpha=0.5),
    same("Elu", lambda x: F.elu(x, 0.5), AT_ZERO, smooth=False, alpha=0.5),
    same("Celu", lambda x: F.celu(x, 0.5), alpha=0.5),
    same("Selu", lambda x: F.elu(x, 1.5) * 1.25, alpha=1.5, gamma=1.25),
    same("HardSigmoid", lambda x: (0.25 * x + 0.5).clamp(0, 1), alpha=0.25, beta=0.5),
    # ONNX defines it by a factor 1/6 in f32.
    GradientCase("HardSwish", [X], torch=F.hardswish, tolerance=1e-6),
    same("ThresholdedRelu", lambda x: F.threshold(x, 0.75, 0.0), alpha=0.75),
    GradientCase("PRelu", [normal(2, 3, 2), uniform(3, 1)], torch=lambda x, s: torch.where(x > 0, x, s * x)),
    GradientCase("PRelu", [normal(2, 3), np.array([0.25])], constants=frozenset([1]), torch=F.prelu),
    GradientCase("Dropout", [X], torch=torch.clone),
    GradientCase("Dropout", [X, np.array(0.5, np.float32)], results=2, constants=frozenset([1])),
    GradientCase("Cast", [X], {"to": TensorProto.DOUBLE}, torch=torch.clone),
    GradientCase("CastLike", [X, uniform(1)], torch=lambda x, like: x.clone()),
    GradientCase("Cast", [X], {"to": TensorProto.INT64}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case):
    check(case)


@pytest.mark.parametrize("name", ["Sin", "Elu", "Mish", "Relu"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 3), (2, 0)])
def test_shapes(name, shape):
    check(GradientCase(name, [normal(*shape, seed=3)]))


def test_the_operand_of_a_cast_need_not_be_kept():
    case = GradientCase("Cast", [X.astype(np.float32)], {"to": TensorProto.DOUBLE})
    module, _ = backward_program(case, frozenset([0]))
    forward, backward = ops_of(module, "Cast")
    assert backward.results[0].type == forward.operands[0].type
    assert forward.operands[0] not in backward.operands
