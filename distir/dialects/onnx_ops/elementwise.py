"""
The elementwise operators of ONNX, one row for each. The layers above read from a row
the operator's sharding rule, its gradient, its PyTorch expression and whether the
simulator can fuse it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Literal


@dataclass(frozen=True)
class Elementwise:
    """
    An operator that computes each result element from the operand elements at the same
    position, with texts for its sharding rule, gradient and PyTorch expression. For an
    empty text, the layer that needs it uses a function registered for the operator, if
    any.
    """

    torch: str = ""
    """
    The operator's PyTorch expression: a template of
    `distir.lowering.emitter.Call.write`.
    """

    gradient: str = ""
    """
    The operator's gradient in the notation of `distir.gradients.rules.elementwise`. It
    may use the only operand `x`, the result `y`, its gradient `dy`, and attributes by
    name. "0" means that the operator, of any number of operands, is constant almost
    everywhere.
    """

    of_several: bool = False
    """Whether the operator has several operands, which broadcast."""

    linear: Literal["", "all", "each", "own"] = ""
    """
    The operands that may be partial sums: "all" of them together, "each" by itself, or
    "own" if the operator has a sharding rule of its own. If empty, no operand may be
    partial.
    """

    unsigned: Literal["checked", "wraps", "bits"] = "checked"
    """
    How the target `torch` handles unsigned integers of more than 8 bits, which PyTorch
    barely supports. They are computed as 64-bit integers. "checked": results must fit
    the unsigned type; "wraps": results wrap around as in the unsigned type; "bits": the
    expression only moves elements.
    """


OPERATORS: dict[str, Elementwise] = {
    # Of one operand
    "Abs": Elementwise("torch.abs({0})", "dy * Sign(x)"),
    "Acos": Elementwise("torch.acos({0})", "dy / -Sqrt(1 - x * x)"),
    "Acosh": Elementwise("torch.acosh({0})", "dy / Sqrt(x * x - 1)"),
    "Asin": Elementwise("torch.asin({0})", "dy / Sqrt(1 - x * x)"),
    "Asinh": Elementwise("torch.asinh({0})", "dy / Sqrt(x * x + 1)"),
    "Atan": Elementwise("torch.atan({0})", "dy / (1 + x * x)"),
    "Atanh": Elementwise("torch.atanh({0})", "dy / (1 - x * x)"),
    "BitCast": Elementwise("{0}.view({result:dtype})", unsigned="bits"),
    "BitwiseNot": Elementwise("~{0}", unsigned="wraps"),
    "Cast": Elementwise(linear="own"),
    "Ceil": Elementwise("torch.ceil({0})", "0"),
    "Celu": Elementwise("F.celu({0}, {alpha})"),
    "Cos": Elementwise("torch.cos({0})", "dy * -Sin(x)"),
    "Cosh": Elementwise("torch.cosh({0})", "dy * Sinh(x)"),
    "Elu": Elementwise("F.elu({0}, {alpha})"),
    "Erf": Elementwise("torch.erf({0})", f"dy * (Exp(-(x * x)) * {2 / sqrt(pi)!r})"),
    "Exp": Elementwise("torch.exp({0})", "dy * y"),
    "Floor": Elementwise("torch.floor({0})", "0"),
    "Gelu": Elementwise(),
    "HardSigmoid": Elementwise(
        "torch.clamp({0} * {alpha} + {beta}, 0, 1)",
        "Where(And(y > 0, y < 1), dy * alpha, 0)",
    ),
    "HardSwish": Elementwise("F.hardswish({0})"),
    "IsInf": Elementwise(gradient="0"),
    "IsNaN": Elementwise("torch.isnan({0})", "0"),
    "LeakyRelu": Elementwise(
        "F.leaky_relu({0}, {alpha})", "Where(x > 0, dy, dy * alpha)"
    ),
    "Log": Elementwise("torch.log({0})", "dy / x"),
    "Mish": Elementwise(
        "F.mish({0})", "dy * ((t := Tanh(Softplus(x))) + x * Sigmoid(x) * (1 - t * t))"
    ),
    "Neg": Elementwise("-{0}", "-dy", linear="all", unsigned="wraps"),
    "Not": Elementwise("torch.logical_not({0})", "0"),
    "Reciprocal": Elementwise("torch.reciprocal({0})", "-(dy * (y * y))"),
    "Relu": Elementwise("F.relu({0})"),
    "Round": Elementwise("torch.round({0})", "0"),
    "Selu": Elementwise("{gamma} * F.elu({0}, {alpha})"),
    "Shrink": Elementwise(),
    "Sigmoid": Elementwise("torch.sigmoid({0})", "dy * (y * (1 - y))"),
    "Sign": Elementwise("torch.sign({0})", "0"),
    "Sin": Elementwise("torch.sin({0})", "dy * Cos(x)"),
    "Sinh": Elementwise("torch.sinh({0})", "dy * Cosh(x)"),
    "Softplus": Elementwise("F.softplus({0}, threshold=40)", "dy * Sigmoid(x)"),
    "Softsign": Elementwise("F.softsign({0})", "dy * ((left := 1 - Abs(y)) * left)"),
    "Sqrt": Elementwise("torch.sqrt({0})", "dy / (y * 2)"),
    "Swish": Elementwise(),
    "Tan": Elementwise("torch.tan({0})", "dy * (1 + y * y)"),
    "Tanh": Elementwise("torch.tanh({0})", "dy * (1 - y * y)"),
    "ThresholdedRelu": Elementwise(
        "F.threshold({0}, {alpha}, 0.0)", "Where(x > alpha, dy, 0)"
    ),
    # Of several
    "Add": Elementwise("{0} + {1}", of_several=True, linear="all", unsigned="wraps"),
    "And": Elementwise("torch.logical_and({0}, {1})", "0", of_several=True),
    "BitShift": Elementwise(of_several=True),
    "BitwiseAnd": Elementwise("{0} & {1}", of_several=True, unsigned="wraps"),
    "BitwiseOr": Elementwise("{0} | {1}", of_several=True, unsigned="wraps"),
    "BitwiseXor": Elementwise("{0} ^ {1}", of_several=True, unsigned="wraps"),
    "Clip": Elementwise(of_several=True),
    "Div": Elementwise(of_several=True, linear="own"),
    "Equal": Elementwise("{0} == {1}", "0", of_several=True),
    "Greater": Elementwise("{0} > {1}", "0", of_several=True),
    "GreaterOrEqual": Elementwise("{0} >= {1}", "0", of_several=True),
    "Less": Elementwise("{0} < {1}", "0", of_several=True),
    "LessOrEqual": Elementwise("{0} <= {1}", "0", of_several=True),
    "Max": Elementwise(of_several=True, linear="own"),
    "Mean": Elementwise(of_several=True, linear="all"),
    "Min": Elementwise(of_several=True, linear="own"),
    "Mod": Elementwise(of_several=True),
    "Mul": Elementwise("{0} * {1}", of_several=True, linear="each", unsigned="wraps"),
    "Or": Elementwise("torch.logical_or({0}, {1})", "0", of_several=True),
    "Pow": Elementwise(of_several=True),
    "PRelu": Elementwise(of_several=True),
    "Sub": Elementwise("{0} - {1}", of_several=True, linear="all", unsigned="wraps"),
    "Sum": Elementwise(of_several=True, linear="all"),
    "SwiGLU": Elementwise(of_several=True),
    "Where": Elementwise(
        "torch.where({0}, {1}, {2})",
        of_several=True,
        linear="own",
        unsigned="bits",
    ),
    "Xor": Elementwise("torch.logical_xor({0}, {1})", "0", of_several=True),
}
"""The row of each elementwise operator, by the operator's name."""
