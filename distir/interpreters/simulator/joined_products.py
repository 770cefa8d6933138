"""
Products that training libraries compute as one: the fusion `products` of
`distir.interpreters.simulator.fusion`.

Libraries keep the weights of queries, keys and values in one matrix, and the weights of
a gate and of the gated tensor in another. So all products that multiply the same input
become one joint product, with the columns of all their matrices. The gradient of this
input is a joint product, too: its sums run over the columns of all matrices, where a
program adds up separate products. Products that are computed in pieces of their rows
write each piece to its place in the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import PRODUCTS, RESHAPES
from distir.dialects.tensors import element_type, rank_of, shape_of
from distir.dialects.train_ops.float8 import Float8ProductOp
from distir.interpreters.simulator.work import Product

JOINED = "products"
"""The name of this fusion in profiles."""


@dataclass(frozen=True)
class JoinedProducts:
    """
    The joint product that a library computes in place of several products. `columns` is
    the number of columns of the joint product, and `inner` the length of its sums, both
    as multiples of those of one product of the program.
    """

    columns: float = 1.0
    inner: float = 1.0

    @property
    def count(self) -> float:
        """
        The number of floating-point operations of the joint product, as a multiple of
        the number for the program's product.
        """
        return self.columns * self.inner

    def product(self, single: Product) -> Product:
        """Returns the joint product. `single` is the program's product."""
        batch, m, n, k, rows = single
        n, k = round(n * self.columns), round(k * self.inner)
        return Product(batch, m, n, k, rows)

    def moved(self, first: float, second: float, result: float) -> float:
        """
        Returns the bytes that the joint product moves. The arguments are the bytes of
        the two factors and of the result of the program's product.
        """
        return first * self.inner + second * self.count + result * self.columns


def is_product(op: Operation) -> bool:
    """Whether an op multiplies two matrices."""
    return op.name in PRODUCTS or isinstance(op, Float8ProductOp)


def joined_products(op: Operation) -> JoinedProducts | None:
    """
    Returns the joint product in which a library computes `op`, or None if a library
    computes `op` by itself.
    """
    if not is_product(op) or rank_of(op.operands[1].type) != 2:
        return None
    own_rows, own_columns = _sizes(op)
    terms = _terms(op)
    if terms:
        return JoinedProducts(inner=sum(_sizes(t)[0] for t in terms) / own_rows)
    alike = _of_one_input(op)
    if len(alike) > 1:
        return JoinedProducts(columns=sum(_sizes(p)[1] for p in alike) / own_columns)
    return None


def is_inside_products(op: Operation) -> bool:
    """
    Whether the kernel of a product does the work of `op`: `op` adds up the products
    that form a joint product, joins the pieces of a product, or adds a bias to these
    pieces.
    """
    if op.name == "onnx.Add":
        return _added(op) is not None or _adds_bias_to_pieces(op)
    return _joins_pieces(op)


def _sizes(op: Operation) -> tuple[int, int]:
    """Returns the rows and the columns of the matrix that a product multiplies by."""
    rows, columns = shape_of(op.operands[1].type)
    _, is_turned = _turns(op)
    return (columns, rows) if is_turned else (rows, columns)


def _of_one_input(op: Operation) -> list[Operation]:
    """
    Returns the products in the block of `op` that multiply the first operand of `op` in
    the same way, including `op`. The matrices of these products have one element type,
    and devices split their columns alike.
    """
    layout = layout_of(op.results[0])
    split = layout.dim(-1) if layout else ()
    found: list[Operation] = []
    for use in op.operands[0].uses:
        user = use.operation
        if use.index or user.name != op.name or user.parent is not op.parent:
            continue
        own = layout_of(user.results[0])
        if (
            rank_of(user.operands[1].type) == 2
            and element_type(user.operands[1]) == element_type(op.operands[1])
            and (own.dim(-1) if own else ()) == split
            and _turns(user) == _turns(op)
        ):
            found.append(user)
    return found


def _turns(op: Operation) -> tuple[bool, bool]:
    """Tells for each factor of a product whether the product reads it transposed."""
    if not isinstance(op, OnnxOp) or op.name != "onnx.Gemm":
        return False, False
    return bool(op.attribute("transA")), bool(op.attribute("transB"))


def _terms(op: Operation) -> list[Operation]:
    """
    Returns the products that are added up to one tensor, including the product `op`.
    The list is empty if `op` is not added to another product.
    """
    value = op.results[0]
    terms: list[Operation] = []
    while (add := _only_add(value)) is not None:
        found = _added(add)
        if found is None:
            break
        terms, value = found, add.results[0]
    return terms


def _only_add(value: SSAValue) -> Operation | None:
    """
    Returns the addition that is the only user of `value`, or of a reshaped view of
    `value`. Returns None if there is no such addition.
    """
    while True:
        users = users_of(value)
        if len(users) != 1:
            return None
        if users[0].name == "onnx.Add":
            return users[0]
        if users[0].name not in RESHAPES:
            return None
        value = users[0].results[0]


def _added(add: Operation) -> list[Operation] | None:
    """
    Returns the products that the addition `add`, together with the additions before it,
    adds up. Returns None if one of the added tensors has a second user, or is not a
    product with a single matrix.
    """
    found: list[Operation] = []
    for value in add.operands:
        owner = _source(value).owner
        if not isinstance(owner, Operation) or len(users_of(value)) != 1:
            return None
        if owner.name == "onnx.Add":
            before = _added(owner)
            if before is None:
                return None
            found += before
        elif is_product(owner) and rank_of(owner.operands[1].type) == 2:
            found.append(owner)
        else:
            return None
    return found


def _source(value: SSAValue) -> SSAValue:
    """Returns the value of which `value` is a reshaped view, or `value` itself."""
    while isinstance(owner := value.owner, Operation) and owner.name in RESHAPES:
        value = owner.operands[0]
    return value


def _adds_bias_to_pieces(op: Operation) -> bool:
    """Whether a sum adds a bias to a product that is computed in pieces."""
    for value, other in zip(op.operands, reversed(op.operands), strict=True):
        owner = _source(value).owner
        if (
            rank_of(other.type) == 1
            and isinstance(owner, Operation)
            and _joins_pieces(owner)
        ):
            return all(
                isinstance(v.owner, Operation) and is_product(v.owner)
                for v in owner.operands
            )
    return False


def _joins_pieces(op: Operation) -> bool:
    return op.name == "onnx.Concat" and all(_is_piece(v.owner) for v in op.operands)


def _is_piece(owner: Operation | Block) -> bool:
    """
    Whether an op computes or communicates some of the rows of a product, in a program
    that computes the product in pieces.
    """
    if isinstance(owner, CollectiveOp):
        return True
    return isinstance(owner, Operation) and is_product(owner)


def users_of(value: SSAValue) -> list[Operation]:
    """
    Returns the ops of the program that use a value. An op that a pass has detached from
    the program is left out.
    """
    # Not `isinstance`, which is slow where the answer is no.
    block = value.block if type(value) is BlockArgument else value.owner.parent
    return [use.operation for use in value.uses if use.operation.parent is block]
