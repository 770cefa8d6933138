"""Finds groups of ops that compute the pattern of a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.attributes import attribute_to_python
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import COMMUTATIVE
from distir.dialects.schedule import ConstantOp, FoundOp, NodeOp
from distir.dialects.tensors import rank_of
from distir.transforms.patterns.match import close

_Found = Mapping[SSAValue, SSAValue]
"""Maps values of a pattern to values of a program."""

_FROM_THE_END = frozenset(("axis", "perm"))
"""Attributes that hold indices of dimensions, which count from the end if negative."""


class PatternMatch:
    """
    A group of ops that computes a pattern. `ops` are its ops in the order of the
    program. `inputs` are the values that the pattern's arguments stand for.
    """

    def __init__(self, pattern: Block, found: _Found):
        nodes = [op for op in pattern.ops if isinstance(op, NodeOp)]
        owners = {found[op.result].owner for op in nodes}
        (block,) = {op.parent for op in owners if isinstance(op, Operation)}
        assert block is not None
        self.ops = tuple(op for op in block.ops if op in owners)
        self.inputs = tuple(found[argument] for argument in pattern.args)


def find_pattern(pattern: Block, ops: Sequence[Operation]) -> list[PatternMatch]:
    """
    Returns the groups among `ops`, ops of one function, that compute `pattern`. The ops
    of a group must have the names and attributes of the pattern's ops, and its
    constants their values. Operands of commutative ops match in any order.
    """
    last, inside = pattern.last_op, set(ops)
    assert isinstance(last, FoundOp)
    found: list[PatternMatch] = []
    for op in ops:
        if len(op.results) == 1:
            match = next(_matches(last.value, op.results[0], {}, inside), None)
            if match is not None:
                found.append(PatternMatch(pattern, match))
    return found


def _matches(
    wanted: SSAValue, value: SSAValue, known: _Found, inside: set[Operation]
) -> Iterator[_Found]:
    """
    Yields all ways in which `value` computes the value `wanted` of a pattern. `known`
    holds the values matched so far; each way extends it. Matching ops must be in
    `inside`.
    """
    if wanted in known:
        if known[wanted] is value:
            yield known
        return
    owner = wanted.owner
    if isinstance(wanted, BlockArgument):
        yield {**known, wanted: value}
    elif isinstance(owner, ConstantOp):
        if _is_constant(value, owner.value.value.data):
            yield {**known, wanted: value}
    elif isinstance(owner, NodeOp) and value not in known.values():
        op = value.owner
        if not isinstance(op, OnnxOp) or op not in inside or not _is_like(owner, op):
            return
        operands = list(op.operands)
        orders = [operands]
        if op.name in COMMUTATIVE and len(operands) == len(owner.inputs):
            orders = [list(order) for order in permutations(operands)]
        for order in orders:
            yield from _all_match(owner.inputs, order, {**known, wanted: value}, inside)


def _all_match(
    wanted: Sequence[SSAValue],
    values: Sequence[SSAValue],
    known: _Found,
    inside: set[Operation],
) -> Iterator[_Found]:
    if not wanted:
        yield known
        return
    for match in _matches(wanted[0], values[0], known, inside):
        yield from _all_match(wanted[1:], values[1:], match, inside)


def _is_constant(value: SSAValue, number: float) -> bool:
    known = direct_constant(value)
    if known is None:
        return False
    array = np.asarray(known)
    if array.dtype.kind not in "fiuV" or not array.size:
        return False
    if array.dtype.kind in "iu":
        return bool((array == number).all())
    wide = array.astype(np.float64)
    return all(close(float(n), number, value) for n in np.unique(wide))


def _is_like(node: NodeOp, op: OnnxOp) -> bool:
    """Whether `op` has the kind and the attributes of the pattern's node `node`."""
    if op.name != node.op.data or len(op.operands) < len(node.inputs):
        return False
    if op.omitted and min(op.omitted) < len(node.inputs):
        return False
    rank = rank_of(op.operands[0].type) if op.operands else 0
    if node.swaps is not None:
        return _swaps(op, [n.value.data % max(rank, 1) for n in node.swaps.data], rank)
    having = node.having.data if isinstance(node.having, DictionaryAttr) else {}
    for name, attr in having.items():
        if name not in op.SCHEMA.attributes:
            return False
        own, wanted = op.attribute(name), attribute_to_python(attr)
        if name in _FROM_THE_END and isinstance(own, int) and isinstance(wanted, int):
            own, wanted = own % max(rank, 1), wanted % max(rank, 1)
        if isinstance(own, float) and isinstance(wanted, float):
            if not close(own, wanted, op.operands[0]):
                return False
        elif own != wanted:
            return False
    return True


def _swaps(op: OnnxOp, dims: Sequence[int], rank: int) -> bool:
    """Whether a Transpose exchanges exactly the two dimensions `dims`."""
    order = list(range(rank))
    a, b = dims
    order[a], order[b] = order[b], order[a]
    return list(op.attribute("perm") or reversed(range(rank))) == order
