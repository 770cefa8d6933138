"""Programs with asynchronous collectives."""

from __future__ import annotations

import random

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist_attributes import ASYNCHRONOUS

HEAD = """
device.mesh @m on @c <d = 2> [0, 1]
#W = #dist.layout<@m>
#D = #dist.layout<@m, [{d}]>
#P = #dist.layout<@m, [], partial sum {d}>
"""


def relu(result: str, operand: str, layout: str = "W") -> str:
    """Returns the text of an op on four elements."""
    type_ = f"tensor<4xf32, #{layout}>"
    return f"%{result} = onnx.Relu(%{operand}) : ({type_}) -> {type_}\n"


def collective(kind: str, result: str, operand: str, *, start: bool = True) -> str:
    """Returns the text of a collective of two devices, asynchronous if it starts only."""
    before, after = {
        "all_reduce": ("P", "W"),
        "all_gather": ("D", "W"),
        "reduce_scatter": ("P", "D"),
    }[kind]
    attribute = " {dist.asynchronous}" if start else ""
    return (
        f"%{result} = collective.{kind} %{operand} over [d]{attribute} : "
        f"tensor<4xf32, #{before}> -> tensor<4xf32, #{after}>\n"
    )


def main(body: str, returned: str = "x", more: str = "") -> str:
    """
    Returns the text of a program of an input that is whole (%x), split (%s) and partial (%p);
    `more` are functions that it calls.
    """
    return f"""{HEAD}{more}
    func.func @main(%x: tensor<4xf32, #W>, %s: tensor<4xf32, #D>, %p: tensor<4xf32, #P>) -> tensor<4xf32, #W> {{
      {body}
      func.return %{returned} : tensor<4xf32, #W>
    }}"""


def make_asynchronous(module: ModuleOp, seed: int) -> None:
    """
    Marks some collectives, moves some of them up by some ops, and some of what uses them
    down: programs that no pass would make.
    """
    chance = random.Random(seed)
    share = chance.choice([0.2, 0.5, 1.0])
    for op in list(module.walk()):
        if not isinstance(op, CollectiveOp) or not op.CAN_BE_ASYNCHRONOUS:
            continue
        if chance.random() > share:
            continue
        op.attributes[ASYNCHRONOUS] = UnitAttr()
        block = op.parent_block()
        assert block is not None
        for _ in range(chance.choice([0, 0, 3, 30])):
            previous = op.prev_op
            if previous is None or previous is op.source.owner:
                break
            op.detach()
            block.insert_op_before(op, previous)
        for _ in range(chance.choice([0, 3])):
            following = op.next_op
            uses = {use.operation for use in op.result.uses}
            if following is None or following in uses or following is block.last_op:
                break
            op.detach()
            block.insert_op_after(op, following)
    module.verify()
