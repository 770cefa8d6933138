"""
Makes the forward program of a training step, which evaluates it on other data without
updates.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import COUNTER, LOSS_SCALE
from distir.dialects.train_ops.dropout import DropoutOp, DroppedAttentionOp
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    forward_results,
    parameters_of_states,
    reachable_functions,
    result_attributes,
    set_result_attributes,
    updated_arguments,
)
from distir.transforms.slicing import sliced


def evaluation_program(module: ModuleOp) -> ModuleOp:
    """
    Returns a copy of a training step, distributed or not, that computes its loss and its
    other results besides updates and gradients, with the same arguments and without
    dropout. Raises DistIRError for a step with running statistics: in evaluation, batch
    normalisation would have to use these, and the step uses those of its batch.
    """
    entry = entry_function(module)
    roles, attributes = argument_roles(entry), argument_attributes(entry)
    owned = parameters_of_states(entry)
    for argument in updated_arguments(entry).values():
        if (
            roles[argument] == "state"
            and argument not in owned
            and not {COUNTER, LOSS_SCALE} & attributes[argument].keys()
        ):
            raise DistIRError(
                f"the step updates {argument_names(entry)[argument]!r}, as running "
                f"statistics are, with which batch normalisation computes another result "
                f"in evaluation; evaluate a program that is not a training step"
            )
    results = forward_results(entry)
    kept = result_attributes(entry)
    part = sliced(module, results)
    set_result_attributes(entry_function(part), [kept[i] for i in results])
    for function in reachable_functions(part):
        for op in list(function.body.block.ops):
            if isinstance(op, DropoutOp):
                Rewriter.replace_op(op, [], [op.x, *([None] * (len(op.results) - 1))])
            elif isinstance(op, DroppedAttentionOp):
                Rewriter.replace_op(op, op.without_dropout())
    return part
