"""Applies the patterns to all functions of a program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import STOP_GRADIENT
from distir.dialects.onnx_ops.op import OnnxOp
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
from distir.transforms.patterns.blind_queries import BlindQueryRaiser
from distir.transforms.patterns.identity import drop_identity
from distir.transforms.patterns.masks import KnownMasks
from distir.transforms.patterns.merged_heads import split_heads
from distir.transforms.patterns.normalization import raise_rms_norm
from distir.transforms.patterns.slices import raise_split

Pattern = Callable[[OnnxOp], object]
"""Checks whether a group of ops ends with an op, and replaces the group if it does."""


def raise_patterns(module: ModuleOp, *, attention: bool = True) -> None:
    """
    Replaces each pattern by one operator, attention only if asked for. Unused ops
    are removed, and unused arguments of called functions (such as a mask that
    `is_causal` replaces).
    """
    known = reachable_functions(module)
    with erasing_unused(known):
        replace_in(known, _drop_no_op)
        if attention:
            separate_heads(known)
        raise_in(known, attention=attention)
        replace_in(known, raise_split)


def raise_dropped_attention(module: ModuleOp) -> None:
    """
    Replaces attention whose probabilities a `train.dropout` drops by one op. Unused ops are
    removed, and unused arguments of called functions.
    """
    known = reachable_functions(module)
    with erasing_unused(known):
        separate_heads(known)
        masks = KnownMasks()
        replace_in(known, AttentionRaiser(masks, dropped=True).replace)
        replace_in(known, BlindQueryRaiser(masks).replace)


def separate_heads(known: Sequence[FuncOp]) -> None:
    """
    Computes attention over merged batch and heads with both apart. What computed it before
    goes, as uses of values are counted to recognise attention.
    """
    if any([split_heads(op) for f in known for op in list(_operators(f))]):
        for function in known:
            erase_dead(function.body.block)


def _operators(function: FuncOp) -> Iterator[OnnxOp]:
    """Yields the operators of a function."""
    return (op for op in function.body.block.ops if isinstance(op, OnnxOp))


@contextmanager
def erasing_unused(known: Sequence[FuncOp]) -> Generator[None]:
    """
    A context manager that cleans up after changes to functions of a program, the last of
    which is its entry: it removes unused ops, and arguments of the other functions that have
    lost their uses.
    """
    *callees, entry = known
    used = {f: [a for a in f.args if a.first_use is not None] for f in callees}
    yield
    for function in callees:
        erase_dead(function.body.block)
        drop_arguments(function, [a for a in used[function] if a.first_use is None])
    erase_dead(entry.body.block)


def _drop_no_op(op: OnnxOp) -> bool:
    """Replaces an op that returns its operand by it, unless gradients stop there."""
    if STOP_GRADIENT in op.attributes or not drop_identity(op):
        return False
    # A Dropout would stay, as it may draw random numbers, and would use its operand.
    Rewriter.erase_op(op)
    return True


def raise_in(known: Sequence[FuncOp], *, attention: bool = True) -> None:
    """
    Replaces each pattern in these functions by one operator; ops that become
    unused stay.
    """
    # In this order: what a later one looks for may be part of what an earlier one takes.
    if attention:
        masks = KnownMasks()
        replace_in(known, AttentionRaiser(masks).replace)
        replace_in(known, BlindQueryRaiser(masks).replace)
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
