"""
Asynchronous tensor parallelism: computes matrix products in pieces. Devices communicate
one piece while they compute the next. If devices sum the terms of a product, they sum
one piece while they compute the next piece. If devices gather the rows of a product
first (sequence parallelism), they gather the next piece while they compute the product
of the current piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import PRODUCTS, VIEWS
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.float8 import (
    Float8ProductOp,
    ToFloat8Op,
    rounds_to_float8,
)
from distir.program import made_with
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.overlap.kinds import REDUCTIONS, kind_of
from distir.transforms.placed_ops import PlacedOps

_BEFORE_MATRICES = VIEWS | {"onnx.Constant", "onnx.Transpose", "onnx.Cast"}
"""The names of ops that rearrange a parameter."""


def _prepares_matrix(op: Operation) -> bool:
    """
    Whether an op may be between a parameter and the matrix product that uses the
    parameter.
    """
    return _BEFORE_MATRICES.of(op) or rounds_to_float8(op)


def products_in_pieces(module: ModuleOp, pieces: int, *, gathered: bool) -> bool:
    """
    Divides the rows of products of activations and matrices into `pieces` pieces, each
    with a separate collective. Applies to products whose result is reduced over devices
    by communication of kind `tp`, and with `gathered` also to products of gathered
    rows. Rows are tokens or sequences. If devices split the dimension of the rows, each
    device divides its part. Transposed products, and products whose rows cannot be
    divided, stay unchanged.

    Returns whether a product was divided. With `gathered`, returns whether a product of
    gathered rows was divided.
    """
    known = meshes(module)
    found = False
    for op in [op for op in module.walk() if kind_of(op) == "tp"]:
        layout = layout_of(op.results[0])
        if layout is None:
            continue
        mesh = known[layout.mesh]
        if isinstance(op, REDUCTIONS):
            found |= _reduce_in_pieces(op, pieces, mesh) and not gathered
        elif gathered and isinstance(op, AllGatherOp):
            found |= _gather_in_pieces(op, pieces, mesh)
    return found


@dataclass(frozen=True)
class _RowPieces:
    """
    A division of the rows of a tensor along the dimension `dim`. Devices split the
    dimension into `parts` parts. Each part is divided into `pieces` pieces.
    """

    dim: int
    parts: int
    pieces: int

    @property
    def axis(self) -> int:
        """
        The index, in a shape that `together` returns, of the dimension that counts
        pieces.
        """
        return self.dim if self.parts == 1 else self.dim + 1

    def together(self, shape: Sequence[int], count: int) -> list[int]:
        """
        Returns the shape of `count` joined pieces of a tensor with the shape `shape`.
        If devices split the dimension `dim`, three dimensions replace it: the parts,
        the pieces of a part, and the array elements of a piece.
        """
        own = shape[self.dim] // (self.parts * self.pieces)
        middle = [own * count] if self.parts == 1 else [self.parts, count, own]
        return [*shape[: self.dim], *middle, *shape[self.dim + 1 :]]

    def piece_type(self, value: SSAValue) -> TensorType[Any]:
        """Returns the type of one piece of the tensor `value`."""
        type_, layout = value.type, layout_of(value)
        assert isinstance(type_, TensorType) and layout is not None
        shape = shape_of(type_)
        if self.parts > 1:
            dims = list(layout.full_dims(len(shape)))
            dims[self.dim : self.dim + 1] = [dims[self.dim], (), ()]
            layout = Layout(layout.mesh, tuple(dims), layout.partial)
        plain = TensorType(type_.element_type, self.together(shape, 1))
        return with_layout(plain, layout)

    def pieces_of(self, build: PlacedOps, value: SSAValue) -> Sequence[SSAValue]:
        """
        Builds the ops that divide the tensor `value`, and returns the pieces. A tensor
        that is cast to 8-bit floats is divided before the cast, because ONNX cannot
        divide 8-bit tensors.
        """
        cast = value.owner
        if isinstance(cast, ToFloat8Op):
            return [
                build.like(cast, [piece, cast.scale], shape_of(piece.type))
                for piece in self.pieces_of(build, cast.x)
            ]
        type_ = self.piece_type(value)
        if self.parts > 1:
            shape = self.together(shape_of(value.type), self.pieces)
            value = build.shaped("Reshape", value, shape)
        given = {"axis": self.axis, "num_outputs": self.pieces}
        types = [type_] * self.pieces
        return build.put(
            operator("Split").build_op([value], types, given, build.labels)
        )

    def joined(
        self, build: PlacedOps, pieces: Sequence[SSAValue], like: SSAValue
    ) -> SSAValue:
        """
        Builds the ops that concatenate `pieces` to a tensor of the type of `like`, and
        returns this tensor.
        """
        shape = shape_of(like.type)
        together = self.together(shape, self.pieces)
        whole = build.add("Concat", pieces, together, axis=self.axis)
        if self.parts > 1:
            whole = build.shaped("Reshape", whole, shape)
        assert whole.type == like.type, f"{whole.type} instead of {like.type}"
        whole.name_hint = like.name_hint
        return whole


def _reduce_in_pieces(op: CollectiveOp, pieces: int, mesh: Mesh) -> bool:
    """
    Replaces a reduction of a product by reductions of its pieces. Returns False, and
    changes nothing, if the product cannot be divided.
    """
    product = op.source.owner
    if not _is_product(product) or len(list(op.source.uses)) > 1:
        return False
    cut = _row_pieces([product], op.source, op.result, pieces, mesh)
    if cut is None:
        return False
    build = PlacedOps(mesh, _labels(product))
    reduced: list[SSAValue] = []
    for piece in cut.pieces_of(build, product.operands[0]):
        own = _product(build, product, piece)
        end = made_with(op, [own], [cut.piece_type(op.result)])
        reduced += build.put(end)
    whole = cut.joined(build, reduced, op.result)
    Rewriter.replace_op(op, build.ops, [whole])
    Rewriter.erase_op(product)
    return True


def _gather_in_pieces(op: AllGatherOp, pieces: int, mesh: Mesh) -> bool:
    """
    Replaces matrix products of gathered rows by products of pieces. Each piece is
    gathered while the product of the previous piece is computed. Returns False, and
    changes nothing, if the rows cannot be divided.
    """
    block = op.parent
    assert block is not None
    place = {each: i for i, each in enumerate(block.ops)}
    users = sorted({use.operation for use in op.result.uses}, key=lambda u: place[u])
    moved: dict[Operation, list[Operation]] = {}
    for user in users:
        if _is_product(user) and user.operands.index(op.result) == 0:
            found = _ops_after(user.operands[1], place[users[0]], place)
            if found is not None:
                moved[user] = found
    cut = _row_pieces(list(moved), op.result, op.source, pieces, mesh)
    if not moved or cut is None:
        return False
    early = {each for found in moved.values() for each in found}
    for each in sorted(early, key=lambda each: place[each]):
        each.detach()
        Rewriter.insert_op(each, InsertPoint.before(users[0]))
    build = PlacedOps(mesh, _labels(op))
    gathers = [
        made_with(op, [piece], [cut.piece_type(op.result)])
        for piece in cut.pieces_of(build, op.source)
    ]
    rows = [gather.results[0] for gather in gathers]
    parts: dict[Operation, list[SSAValue]] = {product: [] for product in moved}
    build.put(gathers[0])
    for i, piece in enumerate(rows):
        for following in gathers[i + 1 : i + 2]:
            build.put(following)
        for product, own in parts.items():
            own.append(_product(build, product, piece))
    for product, own in parts.items():
        whole = cut.joined(build, own, product.results[0])
        product.results[0].replace_all_uses_with(whole)
    if len(parts) < len(users):
        op.result.replace_all_uses_with(cut.joined(build, rows, op.result))
    Rewriter.insert_op(build.ops, InsertPoint.before(users[0]))
    for product in parts:
        Rewriter.erase_op(product)
    Rewriter.erase_op(op)
    return True


def _product(build: PlacedOps, product: Operation, rows: SSAValue) -> SSAValue:
    """
    Builds a copy of `product` with `rows` as its first operand, and returns its result.
    """
    columns = shape_of(product.results[0].type)[-1]
    operands = [rows, *product.operands[1:]]
    return build.like(product, operands, [*shape_of(rows.type)[:-1], columns])


def _labels(op: Operation) -> dict[str, Attribute]:
    return {name: a for name, a in op.attributes.items() if name == SCOPE}


def _is_product(op: object) -> TypeGuard[OnnxOp | Float8ProductOp]:
    """
    Whether `op` multiplies rows, its first operand, by a matrix. For a product in 8
    bits, its rows must be cast to 8 bits with a single scale, and must not be
    transposed before.
    """
    if isinstance(op, Float8ProductOp):
        cast = _before_gather(op.a).owner
        if not isinstance(cast, ToFloat8Op) or rank_of(op.scale_a.type) != 0:
            return False
        before = cast.x.owner
        return not (isinstance(before, Operation) and before.name == "onnx.Transpose")
    if not isinstance(op, OnnxOp) or len(op.operands) != 2:
        return False
    if op.name == "onnx.Gemm" and op.attribute("transA"):
        return False
    is_product = op.name in PRODUCTS
    return is_product and rank_of(op.operands[1].type) == 2


def _before_gather(value: SSAValue) -> SSAValue:
    """
    Returns the operand of the gather that computes `value`, or `value` itself if it is
    not gathered.
    """
    owner = value.owner
    return owner.source if isinstance(owner, AllGatherOp) else value


def _row_pieces(
    products: Sequence[Operation],
    whole: SSAValue,
    parts: SSAValue,
    pieces: int,
    mesh: Mesh,
) -> _RowPieces | None:
    """
    Returns the division into pieces for the rows of `products`, along the largest
    dimension that can be divided. Returns None if no dimension can be divided. A
    collective makes one of the values `whole` and `parts` from the other. A device
    holds all rows of `whole`, and may hold only a part of the rows of `parts`.
    """
    shape, layouts = shape_of(whole.type), [layout_of(v) for v in (whole, parts)]
    is_flat = any(product.name == "onnx.Gemm" for product in products)
    found: list[tuple[int, int, _RowPieces]] = []
    for dim, size in enumerate(shape[:-1]):
        before, after = (layout.dim(dim) if layout else () for layout in layouts)
        count = prod(mesh.size(shard.axis) for shard in after)
        if any(s.run for s in after) or before != after[: len(before)]:
            continue
        if is_flat and count > 1:
            continue  # its rows have one dimension, and a cut would make more
        if size and size % (count * pieces) == 0:
            found.append((size // count, -count, _RowPieces(dim, count, pieces)))
    return max(found, key=lambda each: each[:2], default=(0, 0, None))[2]


def _ops_after(
    value: SSAValue, place: int, places: Mapping[Operation, int]
) -> list[Operation] | None:
    """
    Returns the ops at or after the position `place` that lead from a parameter to
    `value`. Returns None if one of these ops is not in `_BEFORE_MATRICES`. `places` has
    the position of each op.
    """
    found: list[Operation] = []
    pending = [value]
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and places[owner] >= place:
            if not _prepares_matrix(owner):
                return None
            found.append(owner)
            pending += owner.operands
    return found
