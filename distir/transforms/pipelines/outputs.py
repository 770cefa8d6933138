"""
Sends outputs of the program to the last stage, where the caller computes the loss.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.program import ancestors, forward_results, gradients_of_results, return_op
from distir.transforms.pipelines.kinds import Kind
from distir.transforms.pipelines.structure import Structure


def bring_outputs(structure: Structure, stages: dict[Operation, int]) -> None:
    """
    Adds an `onnx.Identity` on the last stage for each output that an earlier stage
    computes, so that the last stage has all outputs of a micro-batch at once. `stages`
    has the stage of each forward op, and gets the stages of the new ops. Programs that
    compute their own loss are left unchanged.
    """
    if not gradients_of_results(structure.function):
        return
    last, returned = max(stages.values()), return_op(structure.function)
    outputs = {returned.operands[i] for i in forward_results(structure.function)}
    leads = ancestors(list(outputs))
    for op in list(structure.forward):
        if stages[op] == last:
            continue
        for value in op.results:
            users = {u.operation for u in value.uses}
            late = {
                user
                for user in users
                if user in leads and structure.kinds[user] is Kind.AFTER
            }
            if value in outputs:
                late.add(returned)
            if late:
                made = _copied(structure, value, op, late)
                stages[made] = last


def _copied(
    structure: Structure, value: SSAValue, op: Operation, users: set[Operation]
) -> Operation:
    """
    Adds an op that copies `value`, a result of the forward op `op`, for the ops in
    `users`. Returns the new op.
    """
    copy = operator("Identity").build_op([value], [value.type])
    if SCOPE in op.attributes:
        copy.attributes[SCOPE] = op.attributes[SCOPE]
    copy.results[0].name_hint = value.name_hint
    Rewriter.insert_op(copy, InsertPoint.after(op))
    value.replace_uses_with_if(copy.results[0], lambda use: use.operation in users)
    structure.kinds[copy] = structure.kinds[op]
    structure.forward.insert(structure.forward.index(op) + 1, copy)
    return copy
