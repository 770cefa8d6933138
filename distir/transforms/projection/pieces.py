"""
Builds one device's ops that cut or join the pieces of a value, for a send between
meshes of different shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import constant_attr, element_type_of_dtype
from distir.dialects.tensors import shape_of
from distir.sharding.placement import COMBINED_BY
from distir.sharding.sends import Box, SentPiece
from distir.transforms.projection.collectives import placeholder


class PieceOps:
    """Collects ops that cut pieces from local tensors or join pieces."""

    def __init__(self) -> None:
        self.ops: list[Operation] = []

    def taken(self, value: SSAValue, box: Box) -> SSAValue:
        """
        Returns the part of a tensor inside `box`, which has the bounds of the part in
        each dimension. Returns `value` itself if the box contains the whole tensor.
        """
        shape = shape_of(value.type)
        cut = [
            dim
            for dim, (bounds, size) in enumerate(zip(box, shape, strict=True))
            if bounds != (0, size)
        ]
        if not cut:
            return value
        kept = [stop - start for start, stop in box]
        starts, ends = ([box[dim][side] for dim in cut] for side in (0, 1))
        bounds = [self._constant(numbers) for numbers in (starts, ends, cut)]
        assert isinstance(value.type, TensorType)
        type_ = TensorType(value.type.element_type, kept)
        return self._add("Slice", [value, *bounds], type_)

    def joined(
        self,
        pieces: Sequence[tuple[SentPiece, SSAValue]],
        type_: TensorType,
        reduction: str,
    ) -> SSAValue:
        """
        Returns the tensor of type `type_` that consists of the given pieces. If the
        tensor is a sum of several terms, the pieces cover the tensor once for each
        term, and `reduction` combines the terms. Returns zeros if there are no pieces.
        """
        terms: dict[int, dict[Box, SSAValue]] = {}
        for piece, value in pieces:
            terms.setdefault(piece.term, {})[piece.placed] = value
        if not terms:
            self.ops.append(placeholder(type_))
            return self.ops[-1].results[0]
        total, *others = [self._term(parts, type_) for parts in terms.values()]
        for term in others:
            total = self._add(COMBINED_BY[reduction], [total, term], type_)
        return total

    def _term(self, parts: dict[Box, SSAValue], type_: TensorType) -> SSAValue:
        """
        Returns the tensor of type `type_` that consists of `parts`, which maps boxes to
        values. A box has the bounds of a part in each dimension. Parts are joined along
        the last dimension first.
        """
        for dim in reversed(range(type_.get_num_dims())):
            rows: dict[Box, list[SSAValue]] = {}
            for box in sorted(parts):
                rows.setdefault(box[:dim], []).append(parts[box])
            parts = {box: self._joined(row, dim) for box, row in rows.items()}
        return parts[()]

    def _joined(self, row: Sequence[SSAValue], dim: int) -> SSAValue:
        if len(row) == 1:
            return row[0]
        first = row[0].type
        assert isinstance(first, TensorType)
        shape = list(first.get_shape())
        shape[dim] = sum(shape_of(v.type)[dim] for v in row)
        type_ = TensorType(first.element_type, shape)
        return self._add("Concat", row, type_, axis=dim)

    def _constant(self, numbers: Sequence[int]) -> SSAValue:
        array = np.array(numbers, dtype=np.int64)
        type_ = TensorType(element_type_of_dtype(array.dtype), array.shape)
        return self._add("Constant", [], type_, value=constant_attr(array))

    def _add(
        self,
        name: str,
        operands: Sequence[SSAValue],
        type_: Attribute,
        **attributes: object,
    ) -> SSAValue:
        op = operator(name).build_op(operands, [type_], attributes)
        self.ops.append(op)
        return op.results[0]
