"""Reduces a program to what some of its results need."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from distir.program import (
    ancestors,
    callees_first,
    drop_unused_results,
    entry_function,
    functions,
    is_removable,
    return_op,
)


def sliced(module: ModuleOp, results: Sequence[int]) -> ModuleOp:
    """
    Returns a copy of a program that computes only the results with these indices, and ops
    that must not be removed; it keeps all arguments.
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
    # At once, as adding thousands of arguments one by one is slow.
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
