"""Replaces Slices that divide a tensor along one dimension by one Split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from xdsl.dialects.builtin import TensorType, i64
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.match import array_of


class _SlicedPart(NamedTuple):
    """
    The range of a dimension that a Slice takes: elements `start` to `end - 1` of
    `axis`.
    """

    axis: int
    start: int
    end: int


def raise_split(op: OnnxOp) -> bool:
    """
    Replaces Slices by one Split if the Slices together take every element of a value
    exactly once. The gradient of a Split is a Concat instead of a sum of padded parts.
    `op` is any of the Slices. Returns whether they were replaced.
    """
    part = _part(op)
    if part is None or layout_of(op.operands[0]) is not None:
        return False
    found: dict[_SlicedPart, OnnxOp] = {}
    for use in op.operands[0].uses:
        user = use.operation
        own = _part(user) if isinstance(user, OnnxOp) and use.index == 0 else None
        if not isinstance(user, OnnxOp) or own is None or own.axis != part.axis:
            continue
        if own in found:
            return False
        found[own] = user
    parts = sorted(found)
    shape = known_shape(op.operands[0])
    assert shape is not None
    ends = [0, *(p.end for p in parts)]
    if len(parts) < 2 or ends != [*(p.start for p in parts), shape[part.axis]]:
        return False
    _split(op, [found[p] for p in parts], parts)
    return True


def _split(op: OnnxOp, slices: list[OnnxOp], parts: list[_SlicedPart]) -> None:
    sizes = np.array([p.end - p.start for p in parts], np.int64)
    given = operator("Constant").build_op(
        [], [TensorType(i64, [len(parts)])], {"value": sizes}
    )
    types = [s.results[0].type for s in slices]
    split = operator("Split").build_op(
        [op.operands[0], given.results[0]],
        types,
        {"axis": parts[0].axis},
        dict(op.attributes),
    )
    Rewriter.insert_op([given, split], InsertPoint.before(op))
    for old, new in zip(slices, split.results, strict=True):
        new.name_hint = old.results[0].name_hint
        old.results[0].replace_all_uses_with(new)


def _part(op: OnnxOp) -> _SlicedPart | None:
    """
    Returns the range that a Slice takes if it has a single axis and step 1, else None.
    """
    if op.name != "onnx.Slice":
        return None
    shape = known_shape(op.operands[0])
    starts, ends, axes = (array_of(op.input(i)) for i in (1, 2, 3))
    steps = array_of(op.input(4))
    if shape is None or starts is None or ends is None or starts.size != 1:
        return None
    if axes is None or (
        op.input(4) is not None and (steps is None or steps.item() != 1)
    ):
        return None
    axis = axes.item() % len(shape)
    start, end, _ = slice(starts.item(), ends.item()).indices(shape[axis])
    return _SlicedPart(axis, start, end) if start < end else None
