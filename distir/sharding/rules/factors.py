"""Rules that are text: of ops of `train`, on their classes, and of ONNX operators."""

from __future__ import annotations

from distir.dialects.onnx_ops.traits import FACTORS
from distir.dialects.op_facts import OpFacts
from distir.dialects.train import Train
from distir.sharding.factor_text import rule_from
from distir.sharding.rule import sharding_rule

for _name, _text in FACTORS.items():
    sharding_rule(_name)(rule_from(_text))
for _op in Train.operations:
    if issubclass(_op, OpFacts) and _op.FACTORS:
        sharding_rule(_op.name)(rule_from(_op.FACTORS))
