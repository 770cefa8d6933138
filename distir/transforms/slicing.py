"""
Reduces a program to the ops that selected results need. An example is the forward pass
of a training step, for an evaluation without updates.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import COUNTER, LOSS_SCALE
from distir.dialects.train_ops.dropout import DropoutOp, DroppedAttentionOp
from distir.errors import DistIRError
from distir.program import (
    Program,
    ancestors,
    callees_first,
    drop_unused_results,
    entry_function,
    forward_results,
    functions,
    is_removable,
    reachable_functions,
    result_attributes,
    return_op,
    set_result_attributes,
)


def sliced(module: ModuleOp, results: Sequence[int]) -> ModuleOp:
    """
    Returns a copy of a program that computes only the results with the indices
    `results`. The copy keeps all arguments, and ops that must not be removed.
    """
    entry = entry_function(module)
    returned = return_op(entry)
    outputs = [returned.operands[i] for i in results]
    kept = [op for op in entry.body.block.ops if not is_removable(op)]
    kept.remove(returned)
    needed = ancestors([*outputs, *(v for op in kept for v in op.operands)])
    needed.update(kept)
    known = functions(module)
    called = [
        known[op.callee.string_value()] for op in needed if isinstance(op, CallOp)
    ]
    reached = set(callees_first(module, called))

    args = entry.body.block.args
    # Adds all arguments at once: thousands of single additions are slow.
    block = Block(arg_types=[arg.type for arg in args])
    values: dict[SSAValue, SSAValue] = dict(zip(args, block.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    block.add_ops([op.clone(values) for op in entry.body.block.ops if op in needed])
    block.add_op(ReturnOp(*[values[v] for v in outputs]))
    types = FunctionType.from_lists(
        [arg.type for arg in args], [value.type for value in outputs]
    )
    properties = {k: v for k, v in entry.properties.items() if k != "res_attrs"}
    function = FuncOp.create(
        properties=properties | {"function_type": types},
        attributes=entry.attributes,
        regions=[Region(block)],
    )
    part = ModuleOp(
        [
            function if op is entry else op.clone()
            for op in module.body.block.ops
            if op is entry or not isinstance(op, FuncOp) or op in reached
        ],
        module.attributes,
    )
    drop_unused_results(part)
    return part


def evaluation_program(module: ModuleOp) -> ModuleOp:
    """
    Returns a copy of a training step that computes only its loss and other forward
    results. The copy has the same arguments, but no updates, gradients or dropout. The
    step may be distributed. Raises DistIRError for a step with running statistics: in
    evaluation, batch normalisation would have to use the running statistics, but the
    step uses the statistics of its batch.
    """
    program = Program(module)
    entry = program.entry
    for index in program.updates.values():
        argument = program.arguments[index]
        if (
            argument.role == "state"
            and index not in program.states
            and not {COUNTER, LOSS_SCALE} & argument.attributes.keys()
        ):
            raise DistIRError(
                f"the step updates {argument.name!r}, as running statistics are, with which batch normalisation computes another result "
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
