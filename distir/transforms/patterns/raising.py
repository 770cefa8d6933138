"""
Replaces patterns of ops, such as attention and norms, in all functions of a program.
"""

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
from distir.transforms.patterns.paged_attention import raise_paged_attention
from distir.transforms.patterns.slices import raise_split

Pattern = Callable[[OnnxOp], object]
"""
A function that replaces a group of ops if the group ends at the op that it is given.
"""


def raise_patterns(module: ModuleOp, *, attention: bool = True) -> None:
    """
    Replaces each pattern in a program by one operator, in place. Attention is replaced
    only if `attention` is set. Removes unused ops, and arguments of called functions
    that are no longer used, such as a mask that `is_causal` replaces.
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
    Replaces attention with dropout on its probabilities by one op, in place. Removes
    unused ops, and arguments of called functions that are no longer used.
    """
    known = reachable_functions(module)
    with erasing_unused(known):
        separate_heads(known)
        masks = KnownMasks()
        replace_in(known, AttentionRaiser(masks, dropped=True).replace)
        replace_in(known, BlindQueryRaiser(masks).replace)


def separate_heads(known: Sequence[FuncOp]) -> None:
    """
    Rewrites attention to separate batch and heads where a model merged them. Removes
    ops that become unused, because the recognition of attention counts uses.
    """
    if any([split_heads(op) for f in known for op in list(_operators(f))]):
        for function in known:
            erase_dead(function.body.block)


def _operators(function: FuncOp) -> Iterator[OnnxOp]:
    """Yields the ONNX ops of a function."""
    return (op for op in function.body.block.ops if isinstance(op, OnnxOp))


@contextmanager
def erasing_unused(known: Sequence[FuncOp]) -> Generator[None]:
    """
    Returns a context manager that cleans up functions after the code in its `with`
    block has changed them: removes unused ops, and arguments of called functions that
    are no longer used. The last function in `known` is the entry function, whose
    arguments stay.
    """
    *callees, entry = known
    used = {f: [a for a in f.args if a.first_use is not None] for f in callees}
    yield
    for function in callees:
        erase_dead(function.body.block)
        drop_arguments(function, [a for a in used[function] if a.first_use is None])
    erase_dead(entry.body.block)


def _drop_no_op(op: OnnxOp) -> bool:
    """
    Removes `op` if its result equals its operand, unless it stops gradients. Returns
    whether it was removed.
    """
    if STOP_GRADIENT in op.attributes or not drop_identity(op):
        return False
    # Cleaning up would keep a Dropout, as it may draw random numbers.
    Rewriter.erase_op(op)
    return True


def raise_in(known: Sequence[FuncOp], *, attention: bool = True) -> None:
    """
    Replaces each pattern in the functions `known` by one operator. Attention is
    replaced only if `attention` is set. Unused ops stay.
    """
    # The order matters: an earlier pattern may have an op that a later one looks for.
    if attention:
        masks = KnownMasks()
        replace_in(known, AttentionRaiser(masks).replace)
        replace_in(known, BlindQueryRaiser(masks).replace)
        replace_in(known, raise_paged_attention)
    for pattern in (raise_rms_norm, raise_gelu, raise_silu):
        replace_in(known, pattern)


def replace_in(known: Sequence[FuncOp], pattern: Pattern) -> None:
    """
    Applies `pattern` to each ONNX op of the functions `known` whose results are used.
    """
    for function in known:
        for op in list(function.body.block.ops):
            if isinstance(op, OnnxOp) and _is_used(op):
                pattern(op)


def _is_used(op: OnnxOp) -> bool:
    return any(result.first_use is not None for result in op.results)


def drop_arguments(function: FuncOp, unused: Sequence[BlockArgument]) -> None:
    """
    Removes the arguments `unused` of a function, and the operands that its calls pass
    for these arguments.
    """
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
