"""Looks for patterns in all functions of a program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument
from xdsl.rewriter import Rewriter

from distir.dialects.onnx import OnnxOp
from distir.program import (
    argument_attributes,
    called,
    calls_of,
    erase_dead,
    reachable_functions,
    set_argument_attributes,
)
from distir.transforms.patterns.attention import AttentionFuser


def fuse_attention(module: ModuleOp) -> None:
    """
    Puts `onnx.Attention` in the place of attention that is written out. What nothing uses
    any more goes, arguments of called functions too (a mask that `is_causal` says).
    """
    fuser = AttentionFuser()
    *callees, entry = reachable_functions(module)
    for function in (*callees, entry):
        for op in list(function.body.block.ops):
            if isinstance(op, OnnxOp) and op.results[0].first_use is not None:
                fuser.fuse(op)
    used = {f: [a for a in f.args if a.first_use is not None] for f in callees}
    for function in callees:
        erase_dead(function.body.block)
        _drop(function, [a for a in used[function] if a.first_use is None])
    erase_dead(entry.body.block)


def _drop(function: FuncOp, unused: Sequence[BlockArgument]) -> None:
    """Removes arguments of a function, and what its calls give them."""
    if not unused:
        return
    gone = {argument.index for argument in unused}
    kept = [i for i in range(len(function.args)) if i not in gone]
    attributes = argument_attributes(function)
    for call in calls_of(function):
        name = function.sym_name.data
        operands = [call.operands[i] for i in kept]
        new = called(call, name, operands, [r.type for r in call.results])
        for result, before in zip(new.results, call.results, strict=True):
            result.name_hint = before.name_hint
        Rewriter.replace_op(call, new)
    for argument in unused:
        function.body.block.erase_arg(argument)
    function.update_function_type()
    set_argument_attributes(function, [attributes[i] for i in kept])
