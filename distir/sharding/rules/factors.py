"""
Rules that stand on ops of `train`, as text or as a formula, and those of ONNX operators that are
text.
"""

from __future__ import annotations

from distir.dialects.onnx_ops.traits import FACTORS
from distir.dialects.op_facts import OpFacts
from distir.dialects.train import Train
from distir.dialects.train_ops.base import FormulaOp
from distir.sharding.factor_text import rule_from
from distir.sharding.formula_rule import formula_rule
from distir.sharding.rule import sharding_rule

for _name, _text in FACTORS.items():
    sharding_rule(_name)(rule_from(_text))
for _op in Train.operations:
    if issubclass(_op, FormulaOp):
        sharding_rule(_op.name)(formula_rule)
    elif issubclass(_op, OpFacts) and _op.FACTORS:
        sharding_rule(_op.name)(rule_from(_op.FACTORS))
