"""Rules that are text: of ops of `train`, on their classes, and of ONNX operators, here."""

from __future__ import annotations

from distir.dialects.op_facts import OpFacts
from distir.dialects.train import Train
from distir.sharding.factor_text import rule_from
from distir.sharding.rule import sharding_rule

_OF_ONE = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Ceil Celu Cos Cosh Elu
    Erf Exp Floor Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Not
    Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt
    Swish Tan Tanh ThresholdedRelu
"""
UNARY = tuple(_OF_ONE.split())
"""The names of elementwise operators of one operand through which no partial sums pass."""

_ALONG_AXIS = "[*a@axis, k, *b] -> [*a, k, *b] keep k"
_POOLED = "[n, c, *s] -> [n, c, *t] keep s t"

ONNX_FACTORS: dict[str, str] = {
    **dict.fromkeys(UNARY, "[*d] -> [*d]"),
    "AveragePool": f"{_POOLED} linear 0",
    "Det": "[*b, n, m] -> [*b] keep n m",
    "GlobalAveragePool": f"{_POOLED} linear 0",
    "GlobalMaxPool": f"{_POOLED} linear max 0",
    "GridSample": "[n, c, *s], [n, *p, ?] -> [n, c, *p] keep s linear 0",
    "Hardmax": _ALONG_AXIS,
    "Identity": "[*d] -> [*d] linear any 0",
    "InstanceNormalization": "[n, c, *s], [c], [c] -> [n, c, *s] keep s",
    "LogSoftmax": _ALONG_AXIS,
    "LpNormalization": _ALONG_AXIS,
    "LpPool": _POOLED,
    "LRN": "[n, c, *s] -> [n, c, *s] keep c",
    "Neg": "[*d] -> [*d] linear 0",
    "Softmax": _ALONG_AXIS,
}
"""The factors of ONNX operators of which shapes and attributes alone say the rule."""

for _name, _text in ONNX_FACTORS.items():
    sharding_rule(f"onnx.{_name}")(rule_from(_text))
for _op in Train.operations:
    if issubclass(_op, OpFacts) and _op.FACTORS:
        sharding_rule(_op.name)(rule_from(_op.FACTORS))
