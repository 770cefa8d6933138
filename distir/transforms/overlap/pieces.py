"""
Computes products whose terms devices add up (tensor parallelism) in pieces, so that one piece
is added up while the next one is computed: asynchronous tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)

from distir.dialects.dist import SCOPE, Layout, layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_op import OnnxOp
from distir.program import made_with
from distir.transforms.overlap.kinds import REDUCTIONS, kind_of


def products_in_pieces(module: ModuleOp, pieces: int) -> bool:
    """
    Divides the rows of each product of activations and a matrix whose result is reduced over
    devices (kind `tp`, see `write_kinds`) into so many pieces, with a collective for each.
    Rows are tokens or sequences, of a dimension that is split over no devices. Products that
    have no such dimension, and transposed ones, stay. Returns whether there were any.
    """
    walker = PatternRewriteWalker(_InPieces(pieces), apply_recursively=False)
    return walker.rewrite_module(module)


class _InPieces(RewritePattern):
    """Replaces a reduction of a product by the parts of its reduced pieces."""

    def __init__(self, pieces: int):
        self._pieces = pieces

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, REDUCTIONS) or kind_of(op) != "tp":
            return
        product = op.source.owner
        if not isinstance(product, OnnxOp) or len(list(op.source.uses)) > 1:
            return
        dim = _divided_dim(product, op.result, self._pieces)
        if dim is None:
            return
        rows, matrix = product.operands
        labels = {n: a for n, a in product.attributes.items() if n == SCOPE}
        split = operator("Split").build_op(
            [rows],
            [_part(rows, dim, self._pieces)] * self._pieces,
            {"axis": dim, "num_outputs": self._pieces},
            labels,
        )
        made: list[Operation] = [split]
        reduced: list[SSAValue] = []
        for piece in split.results:
            type_ = _part(product.results[0], dim, self._pieces)
            own = made_with(product, [piece, matrix], [type_])
            end = made_with(op, own.results, [_part(op.result, dim, self._pieces)])
            made += [own, end]
            reduced += end.results
        whole = operator("Concat").build_op(
            reduced, [op.result.type], {"axis": dim}, labels
        )
        whole.results[0].name_hint = op.result.name_hint
        rewriter.replace(op, [*made, whole], whole.results)
        rewriter.erase(product)


def _divided_dim(product: OnnxOp, result: SSAValue, pieces: int) -> int | None:
    """
    Returns the largest dimension of the rows of a product that no devices split and whose
    size is a multiple of `pieces`; None if there is none, or for another op.
    """
    if product.name not in ("onnx.MatMul", "onnx.Gemm") or len(product.operands) != 2:
        return None
    if product.name == "onnx.Gemm" and product.attribute("transA"):
        return None
    rows, matrix = (_tensor(operand) for operand in product.operands)
    if len(matrix.get_shape()) != 2:
        return None
    layouts = [layout_of(v) for v in (product.operands[0], result)]
    known = [layout for layout in layouts if layout is not None]
    shape = rows.get_shape()
    fitting = [
        dim
        for dim, size in enumerate(shape[:-1])
        if size % pieces == 0 and _is_whole(known, dim) and size > 0
    ]
    return max(fitting, key=lambda dim: shape[dim], default=None)


def _is_whole(layouts: Sequence[Layout], dim: int) -> bool:
    """Whether none of these layouts splits a dimension."""
    return not any(layout.dim(dim) for layout in layouts)


def _tensor(value: SSAValue) -> TensorType[Any]:
    assert isinstance(value.type, TensorType)
    return value.type


def _part(value: SSAValue, dim: int, pieces: int) -> TensorType[Any]:
    """Returns the type of one of equal parts of a tensor along a dimension."""
    type_ = _tensor(value)
    shape = list(type_.get_shape())
    shape[dim] //= pieces
    return TensorType(type_.element_type, shape, type_.encoding)
