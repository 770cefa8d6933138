"""Ops of other dialects in schedules."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.dialects.transform import AnyOpType
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.schedule import MatchOp
from distir.frontends.models.basic import build_mlp
from distir.program import scope_of, walk_functions
from distir.scheduling import Schedule
from distir.scheduling.run import ScheduleRun, apply_schedule, schedule_action
from distir.scheduling.script import add_schedules


@irdl_op_definition
class PaintOp(IRDLOperation):
    """Marks the ops of modules."""

    name = "test_actions.paint"

    modules = operand_def(AnyOpType())


@schedule_action("test_actions.paint")
def paint(op: Operation, run: ScheduleRun) -> None:
    for scope in run.modules_of(op.operands[0]):
        for scoped in run.modules.within(scope):
            scoped.entered.attributes["test_actions.painted"] = UnitAttr()


def test_an_op_from_outside_is_carried_out() -> None:
    s = Schedule()
    _ = s["layers.1"]
    sequence = s.recorded()
    match = next(op for op in sequence.body.block.ops if isinstance(op, MatchOp))
    painted = PaintOp.create(operands=[match.result])
    Rewriter.insert_op(painted, InsertPoint.after(match))
    module = build_mlp(3, 8, 8)
    add_schedules(module, [sequence])
    apply_schedule(module, "schedule")
    found = {
        scope_of(op)
        for _, op in walk_functions(module)
        if "test_actions.painted" in op.attributes
    }
    assert found == {"layers.1"}
