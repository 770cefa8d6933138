"""
Registers the sharding rules that are given as text or as a formula: the rules of ops of
the dialect `train`, the rules in a table of ONNX operators, and the rules of users'
kernels.
"""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.kernel import KernelCallOp
from distir.dialects.onnx_ops.traits import FACTORS
from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import shape_of
from distir.dialects.train import Train
from distir.dialects.train_ops.base import FormulaOp
from distir.errors import DistIRError
from distir.sharding.factor_text import rule_from
from distir.sharding.formula_rule import formula_rule
from distir.sharding.kernel_rule import parse_rule
from distir.sharding.rule import Rule, sharding_rule

for _name, _text in FACTORS.items():
    sharding_rule(_name)(rule_from(_text))
for _op in Train.operations:
    if issubclass(_op, FormulaOp):
        sharding_rule(_op.name)(formula_rule)
    elif issubclass(_op, OpFacts) and _op.FACTORS:
        sharding_rule(_op.name)(rule_from(_op.FACTORS))


@sharding_rule("kernel.call")
def kernel_call(op: Operation) -> Rule:
    """
    Returns the sharding rule of a kernel call. The call holds a copy of the kernel's
    rule as text. Raises DistIRError if the rule does not fit the operands.
    """
    assert isinstance(op, KernelCallOp)
    # The split of factors is only computed for ops with FLOPs, and the workspace depends on
    # it.
    memory_bound = "" if op.workspace is None else "1"
    try:
        return parse_rule(op.rule.data).rule(
            [shape_of(value.type) for value in op.inputs],
            [shape_of(value.type) for value in op.outputs],
            memory_bound if op.flops is None else op.flops.data,
        )
    except DistIRError as error:
        raise DistIRError(f"kernel.call of @{op.symbol}: {error}") from error
