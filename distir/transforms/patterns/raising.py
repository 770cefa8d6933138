"""Applies the patterns to all functions of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument
from xdsl.rewriter import Rewriter

from distir.dialects.onnx_op import OnnxOp
from distir.program import (
    argument_attributes,
    called,
    calls_of,
    erase_dead,
    reachable_functions,
    set_argument_attributes,
)
from distir.transforms.patterns.activation import raise_gelu, raise_silu
from distir.transforms.patterns.attention import AttentionRaiser
from distir.transforms.patterns.normalization import raise_rms_norm
from distir.transforms.patterns.slices import raise_split

Pattern = Callable[[OnnxOp], object]
"""Checks whether a group of ops ends with an op, and replaces the group if it does."""


def raise_patterns(module: ModuleOp, *, attention: bool = True) -> None:
    """
    Replaces each pattern by one operator, attention only if asked for. What is unused
    afterwards is removed, arguments of called functions included (such as a mask that
    `is_causal` replaces).
    """
    *callees, entry = reachable_functions(module)
    raise_in([*callees, entry], attention=attention)
    replace_in([*callees, entry], raise_split)
    used = {f: [a for a in f.args if a.first_use is not None] for f in callees}
    for function in callees:
        erase_dead(function.body.block)
        drop_arguments(function, [a for a in used[function] if a.first_use is None])
    erase_dead(entry.body.block)


def raise_in(known: Sequence[FuncOp], *, attention: bool = True) -> None:
    """
    Replaces each pattern in these functions by one operator; what is unused afterwards
    stays.
    """
    # In this order: what a later one looks for may be part of what an earlier one takes.
    if attention:
        replace_in(known, AttentionRaiser().replace)
    for pattern in (raise_rms_norm, raise_gelu, raise_silu):
        replace_in(known, pattern)


def replace_in(known: Sequence[FuncOp], pattern: Pattern) -> None:
    """Offers to a pattern each op of these functions whose results are used."""
    for function in known:
        for op in list(function.body.block.ops):
            if isinstance(op, OnnxOp) and _is_used(op):
                pattern(op)


def _is_used(op: OnnxOp) -> bool:
    return any(result.first_use is not None for result in op.results)


def drop_arguments(function: FuncOp, unused: Sequence[BlockArgument]) -> None:
    """Removes arguments of a function, and the operands that its calls pass for them."""
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
