"""The op that fusions write."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure

from distir.dialects.dist import SCOPE
from distir.lowering.emitter import Call, torch_emitter


@irdl_op_definition
class TorchCallOp(IRDLOperation):
    """
    A PyTorch expression over its operands: `F.linear({0}, {1}, {2})`.

    Only fusions write it, in memory. It belongs to no dialect, so that no text that is read
    can contain one: `expression` is executed.
    """

    name = "torch.call"

    inputs = var_operand_def()
    outputs = var_result_def()
    expression = prop_def(StringAttr)
    traits = traits_def(Pure())

    def __init__(
        self, expression: str, operands: Sequence[SSAValue], result_type: Attribute
    ):
        super().__init__(
            operands=[list(operands)],
            result_types=[[result_type]],
            properties={"expression": StringAttr(expression)},
        )


@torch_emitter("torch.call")
def torch_call(call: Call) -> str:
    assert isinstance(call.op, TorchCallOp)
    return call.op.expression.data.format(*call.operands())


def fused(op: Operation, expression: str, operands: Sequence[SSAValue]) -> None:
    """Replaces an op with one result by the expression."""
    new = TorchCallOp(expression, operands, op.results[0].type)
    function = expression.partition("(")[0].rpartition(".")[2]
    supersede(op, new, function)


def supersede(op: Operation, new: Operation, name: str | None = None) -> None:
    """
    Puts an op in front of another one with one result: it has its scope, and its result the
    name (`name` if there is none) and the uses of the other one, which is left without any.
    """
    block = op.parent_block()
    assert block is not None
    before, after = op.results[0], new.results[0]
    if SCOPE in op.attributes:
        new.attributes[SCOPE] = op.attributes[SCOPE]
    after.name_hint = before.name_hint or name
    block.insert_op_before(new, op)
    before.replace_all_uses_with(after)
