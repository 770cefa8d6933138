"""
Prepares the caches of inference for a split along positions. Every device writes the
tokens that belong to its slots, and attends to the keys of its slots; the results of
the devices are combined by the logarithms of their sums of exponentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ConstrainOp
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import OnnxOp, operator
from distir.dialects.onnx_ops.values import constant_attr, onnx_element_type
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.attention import FusedAttentionOp
from distir.dialects.train_ops.paged_attention import PagedWriteOp
from distir.dialects.train_ops.split_attention import SplitAttentionOp, WriteSlotsOp
from distir.program import (
    CACHE,
    argument_roles,
    describe,
    entry_function,
    functions,
    updated_arguments,
)
from distir.transforms.sequences.context_parallel import positions

POSITIONS = 2
"""The dimension of a cache of keys or values that has the positions."""


def _writes(argument: SSAValue, known: Mapping[str, FuncOp]) -> Iterator[Operation]:
    """
    Yields the ops that write new tokens to the cache `argument`, also in the functions
    that the cache is passed to.
    """
    for use in argument.uses:
        op = use.operation
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            yield from _writes(callee.args[use.index], known)
        elif use.index == 0 and (
            op.name == "onnx.TensorScatter" or isinstance(op, PagedWriteOp)
        ):
            yield op


def _arrivals(argument: SSAValue, known: Mapping[str, FuncOp]) -> Iterator[SSAValue]:
    """
    Yields the cache `argument`, and the arguments of functions that the cache is passed
    to.
    """
    yield argument
    for use in argument.uses:
        op = use.operation
        if isinstance(op, CallOp):
            callee = known[op.callee.string_value()]
            yield from _arrivals(callee.args[use.index], known)


def _writes_slots(op: Operation) -> bool:
    """Whether `op` writes tokens along the positions of a cache in one piece."""
    rank = len(shape_of(op.operands[0]))
    return (
        isinstance(op, OnnxOp)
        and op.input(2) is not None
        and rank in (3, 4)
        and op.attribute("axis") % rank == POSITIONS
    )


class Caches:
    """
    The caches of an inference program, by the index of the argument of the entry
    function.
    """

    def __init__(self, module: ModuleOp):
        entry, known = entry_function(module), functions(module)
        self.shapes: dict[int, tuple[int, ...]] = {}
        """The shapes of the caches with positions: [batch, heads, slots, ...]."""
        self.has_pages = False
        """Whether tokens are written to pages."""
        self.left: list[int] = []
        """The caches that no split of positions is possible for."""
        self.writes: dict[int, list[OnnxOp]] = {}
        """The ops that write new tokens to the caches with positions."""
        self.reads: dict[int, list[SSAValue]] = {}
        """
        For each cache with positions that the program only reads, the arguments of
        functions that hold it.
        """
        updated = set(updated_arguments(entry).values())
        for index, role in enumerate(argument_roles(entry)):
            if role != CACHE:
                continue
            argument = entry.args[index]
            found = list(_writes(argument, known))
            self.has_pages |= any(isinstance(op, PagedWriteOp) for op in found)
            shape = shape_of(argument)
            if not found and index not in updated and len(shape) in (3, 4):
                self.shapes[index], self.writes[index] = shape, []
                self.reads[index] = list(_arrivals(argument, known))
                continue
            if not found or not all(map(_writes_slots, found)):
                self.left.append(index)
                continue
            self.shapes[index] = shape
            self.writes[index] = [op for op in found if isinstance(op, OnnxOp)]


def split_caches(caches: Caches, chosen: Iterable[int], parts: int) -> list[str]:
    """
    Prepares a program for a split of the positions of the caches `chosen`, by index,
    into `parts` parts. Writes become `train.write_slots`; attention to a whole cache
    becomes attention to each part of the keys (`train.split_attention`) and a sum of
    its results. The number of positions of each cache must be a multiple of `parts`.
    Returns descriptions, for users, of attention that stays as it is, because no op for
    parts of the keys computes it.
    """
    kept: dict[OnnxOp, None] = {}
    slots: dict[SSAValue, int] = {}
    blocks: dict[Block, None] = {}
    for index in chosen:
        kept.update(dict.fromkeys(caches.writes[index]))
        for value in caches.reads.get(index, ()):
            slots[value] = caches.shapes[index][POSITIONS]
            if isinstance(value.owner, Block):
                blocks[value.owner] = None
    for write in map(_write_slots, kept):
        if (block := write.parent) is not None:
            blocks[block] = None
    left: list[str] = []
    for block in blocks:
        for op, count in _attention_to_caches(block, slots):
            split = _to_parts(op, count, parts)
            if split is None:
                left.append(describe(op))
            else:
                _combine_parts(op, split)
    return left


def _write_slots(op: OnnxOp) -> WriteSlotsOp:
    """Replaces `op`, a write to a cache, by the op that writes to numbered slots."""
    cache, new, first = op.operands
    total = shape_of(cache)[POSITIONS]
    numbers = positions(total, op)
    write = WriteSlotsOp(cache, new, first, numbers[-1].results[0], total=total)
    write.attributes.update(op.attributes)
    Rewriter.replace_op(op, [*numbers, write], [write.result])
    return write


def _attention_to_caches(
    block: Block, arguments: Mapping[SSAValue, int]
) -> list[tuple[OnnxOp, int]]:
    """
    Returns the attention ops of a function's `block` whose keys come from a cache, each
    with the number of slots of that cache. `arguments` are the arguments of functions
    that are caches, with their numbers of slots.
    """
    slots = dict(arguments)
    found: list[tuple[OnnxOp, int]] = []
    for op in block.ops:
        if isinstance(op, WriteSlotsOp):
            slots[op.result] = op.total.value.data
        elif op.name == "onnx.Attention" and isinstance(op, OnnxOp):
            if op.operands[1] in slots:
                found.append((op, slots[op.operands[1]]))
        else:
            for count in {slots[v] for v in op.operands if v in slots}:
                slots.update(dict.fromkeys(op.results, count))
    return found


def _to_parts(op: OnnxOp, slots: int, parts: int) -> SplitAttentionOp | None:
    """
    Returns attention to each of `parts` parts of the keys of `op`, which are those of
    `slots` slots. Returns None if no op for parts computes the same.
    """
    # Importing it imports the gradients of all ops, and few programs need it.
    from distir.gradients.rules.attention import kept_attention

    kept = kept_attention(op)
    if not isinstance(kept, FusedAttentionOp):
        return None
    split = None
    if kept.is_causal is None and not kept.is_packed and kept.sizes.keys == slots:
        scale = None if kept.scale is None else kept.scale.value.data
        own = (kept.q, kept.k, kept.v, kept.mask)
        split = SplitAttentionOp(*own, splits=parts, scale=scale, softcap=kept.cap)
    kept.drop_all_references()
    return split


def _combine_parts(op: OnnxOp, split: SplitAttentionOp) -> None:
    """
    Replaces the attention `op` by `split`, attention to parts of its keys, and by the
    sum of the results for the parts, weighed by the softmax of their logarithms.
    """
    scope = {n: a for n, a in op.attributes.items() if n == SCOPE}
    split.attributes.update(scope)
    ops: list[Operation] = [split]
    element, shape = element_type(split.y), shape_of(split.y)

    def add(
        name: str,
        operands: Sequence[SSAValue],
        element: Attribute,
        shape: Sequence[int],
        **given: Any,
    ) -> SSAValue:
        type_ = TensorType(element, shape)
        ops.append(operator(name).build_op(operands, [type_], given, scope))
        return ops[-1].results[0]

    def axes(number: int) -> SSAValue:
        return add("Constant", [], i64, [1], value=constant_attr(np.array([number])))

    sums = split.logsumexp
    weights = add("Softmax", [sums], element_type(sums), shape[:4], axis=0)
    if element_type(sums) != element:
        to = onnx_element_type(element)
        weights = add("Cast", [weights], element, shape[:4], to=to)
    weights = add("Unsqueeze", [weights, axes(4)], element, (*shape[:4], 1))
    weighed = add("Mul", [split.y, weights], element, shape)
    y = add("ReduceSum", [weighed, axes(0)], element, shape[1:], keepdims=0)
    unused = len(op.results) - 1
    Rewriter.replace_op(op, ops, [y, *[None] * unused])


def write_split_tokens(module: ModuleOp) -> None:
    """
    Lets writes to caches take new keys and values as attention takes them, if these are
    requested in parts (`dist.constrain`): they are gathered once for both.
    """
    for write in [op for op in module.walk() if isinstance(op, WriteSlotsOp)]:
        source = write.new
        for use in list(source.uses):
            constrain = use.operation
            if not isinstance(constrain, ConstrainOp):
                continue
            if constrain.parent is not write.parent:
                continue
            constrain.detach()
            owner = source.owner
            after = InsertPoint.after
            place = (
                InsertPoint.at_start(owner)
                if isinstance(owner, Block)
                else after(owner)
            )
            Rewriter.insert_op(constrain, place)
            write.operands[1] = constrain.result
            break
