"""
Dropout whose random numbers depend only on an element's position in the whole tensor:
dropout of a tensor, and of the probabilities of fused attention.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    TensorType,
    i1,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, where
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionOp,
    FusedAttentionGradOp,
    FusedAttentionOp,
)
from distir.dialects.train_ops.base import (
    F64,
    I64,
    INTEGERS,
    FormulaOp,
    TrainOp,
    Types,
    like,
)
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_float,
    check_shape,
    check_type,
)
from distir.dialects.train_ops.splits import Split, shape_of_part, splits_of


class DrawingOp(TrainOp):
    """
    Base of ops that drop elements of a tensor of shape `drawn_shape` by random numbers.

    An element is kept if its random number is at least `ratio * 2^32`, rounded. Kept
    elements are multiplied by `1 / (1 - ratio)`. The random numbers are

        key = threefry((seed, stream), counter)
        random number = threefry(key, position)[0]

    where threefry(key, counter) is Threefry-2x32-20. Each pair (lower, upper) holds the
    two 32-bit halves of a 64-bit number. An element's position is its row-major index
    in the whole tensor. A program thus draws the same numbers however it is
    distributed, and numbers can be drawn again at any time.

    - `counter`: an i64 scalar that differs for each training step and for each call of
      the function that contains the op;
    - `stream`: 32 bits that differ for each op; `seed`: the 32-bit seed of the whole
      program.

    In the per-rank form, on one device's part of a tensor, the op also takes the
    device's coordinate along each axis that splits the tensor. `global_shape` is then
    the shape of the whole tensor. `splits` has one entry `[dimension, parts, run]` per
    coordinate, with the axes of one dimension major to minor.
    """

    counter = operand_def(TensorType)
    coordinates = var_operand_def(TensorType)
    ratio = prop_def(F64)
    seed = prop_def(I64)
    stream = prop_def(I64)
    global_shape = opt_prop_def(INTEGERS)
    splits = opt_prop_def(ArrayAttr.constr(INTEGERS))

    @property
    @abstractmethod
    def drawn_shape(self) -> tuple[int, ...]:
        """
        The shape of the tensor, or of this device's part of the tensor, whose elements
        may be dropped.
        """

    @property
    def drawing(self) -> dict[str, Any]:
        """The properties that determine the random numbers, by name."""
        names = ("ratio", "seed", "stream", "global_shape", "splits")
        return {name: self.properties.get(name) for name in names}

    @property
    def threshold(self) -> int:
        """The smallest 32-bit random number of an element that is kept."""
        return round(self.ratio.value.data * 2**32)

    @property
    def kept_factor(self) -> float:
        """The number by which kept elements are multiplied."""
        return 1 / (1 - self.ratio.value.data)

    @property
    def parts(self) -> tuple[Split, ...]:
        """
        The splits of the tensor, one for each operand of `coordinates`. The operand
        holds this device's position in the split.
        """
        return splits_of(self.splits)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        if self.global_shape is None:
            return self.drawn_shape
        return tuple(int(v) for v in self.global_shape.get_values())

    def verify_(self) -> None:
        super().verify_()
        for name, value in (
            ("counter", self.counter),
            *(("a coordinate", c) for c in self.coordinates),
        ):
            check_type(self, name, value, TensorType(i64, []))
        check_ratio(self, self.ratio)
        for name, number in (("seed", self.seed), ("stream", self.stream)):
            if not 0 <= number.value.data < 2**32:
                raise VerifyException(
                    f"{self.name}: {name} is {number.value.data}, expected 32 bits"
                )
        self._verify_part()

    def _verify_part(self) -> None:
        entries = () if self.splits is None else self.splits.data
        if len(entries) != len(self.coordinates) or (
            (self.global_shape is None) != (not self.coordinates)
        ):
            raise VerifyException(
                f"{self.name}: coordinates, global_shape and one of splits for each "
                f"coordinate go together"
            )
        if not entries:
            return
        left, drawn = shape_of_part(self.whole_shape, self.parts), self.drawn_shape
        if left is None:
            raise VerifyException(
                f"{self.name}: a tensor with global_shape {list(self.whole_shape)} "
                f"cannot be split by {', '.join(str([*s]) for s in self.parts)}"
            )
        if list(drawn) != left:
            raise VerifyException(
                f"{self.name}: what elements are dropped of has shape {list(drawn)}, "
                f"expected {left}"
            )


@irdl_op_definition
class DropoutOp(DrawingOp):
    """
    Dropout: `y = x / (1 - ratio)` for kept elements, else 0. `DrawingOp` defines which
    elements are kept. Without `mask`, the gradient is the same op applied to `dy`, and
    needs only the counter.

    - `mask`: an optional second result, one boolean per element: whether the element is
      kept. The gradient then uses the mask (`train.dropout_grad`) instead of drawing
      numbers again. The mask costs a byte of memory per element and saves work.
    """

    name = "train.dropout"
    IS_ELEMENTWISE: ClassVar[bool] = True
    # No partial sums pass, so that elements are rounded as in the sequential program.
    FACTORS: ClassVar[str] = "[*d], [], [] -> [*d], [*d]"

    x = operand_def(TensorType)
    y = result_def(TensorType)
    mask = opt_result_def(TensorType)

    TYPES: ClassVar[Types] = {"y": like("x")}

    assembly_format = (
        "$x `,` $counter (`at` `(` $coordinates^ `)`)? attr-dict `:` "
        "functional-type(operands, results)"
    )

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        return shape_of(self.x)

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        super().verify_()
        if self.mask is not None:
            check_mask(self, self.mask, self.x)


@irdl_op_definition
class DropoutGradOp(FormulaOp):
    """
    The gradient of dropout with a mask: `dx = dy / (1 - ratio)` where the mask is true,
    else 0.
    """

    name = "train.dropout_grad"
    IS_ELEMENTWISE: ClassVar[bool] = True
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ()
    TORCH: ClassVar[str] = "torch.where({1}, {0} * {op.scale}, 0)"

    dy = operand_def(TensorType)
    mask = operand_def(TensorType)
    ratio = prop_def(F64)
    dx = result_def(TensorType)

    @property
    def scale(self) -> float:
        """The number by which gradients of kept elements are multiplied."""
        return 1 / (1 - self.ratio.value.data)

    def verify_(self) -> None:
        check_float(self, "dy", self.dy)
        check_mask(self, self.mask, self.dy)
        check_ratio(self, self.ratio)
        super().verify_()

    @staticmethod
    def formula(dy: Expr, mask: Expr, *, ratio: float) -> Expr:
        return where(mask, dy * (1 / (1 - ratio)), 0)


def check_mask(op: IRDLOperation, mask: SSAValue, like: SSAValue) -> None:
    """Raises VerifyException unless `mask` has one boolean per element of `like`."""
    check_shape(op, "mask", mask, shape_of(like))
    check_element_type(op, "mask", mask, i1)


def check_ratio(op: IRDLOperation, ratio: FloatAttr[Float64Type]) -> None:
    """Raises VerifyException unless `ratio` is at least 0 and less than 1."""
    if not 0 <= ratio.value.data < 1:
        raise VerifyException(
            f"{op.name}: ratio is {ratio.value.data}, expected at least 0 and less than 1"
        )


def _assembly(operands: str, results: str) -> str:
    """
    Returns the assembly format of an op with the given `operands` and `results`, which
    are names separated by spaces. The format adds the operands mask, counter and
    coordinates.
    """
    first = " `,` ".join(f"${name}" for name in operands.split())
    types = " `,` ".join(f"type(${name})" for name in operands.split())
    ends = " `,` ".join(f"type(${name})" for name in results.split())
    return (
        f"{first} (`mask` $mask^)? `,` $counter (`at` `(` $coordinates^ `)`)? attr-dict `:` "
        f"{types} (`mask` type($mask)^)? `,` type($counter) "
        f"(`at` `(` type($coordinates)^ `)`)? `->` {ends}"
    )


class DroppedAttentionBase(FusedAttentionOp, DrawingOp):
    """
    Base of attention with dropout on its probabilities, and of its gradient. The
    probabilities P [batch, query heads, queries, keys] are defined in
    `FusedAttentionOp`; `DrawingOp` defines which probabilities are kept.
    """

    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        return self.sizes.scores


@irdl_op_definition
class DroppedAttentionOp(DroppedAttentionBase):
    """
    Attention with dropout: y = D v, where D is P / (1 - ratio) for kept probabilities
    P, else 0. The gradient draws the same random numbers again, so the op stores
    neither P nor the dropout mask. The gradient needs the second result:

        logsumexp: log(sum(exp(cap(scale * q k') + mask)) along keys), 0 for a query that
        sees no key: [batch, query heads, queries], f64 for f64 and f32 for other types.
    """

    name = "train.dropped_attention"

    y = result_def(TensorType)
    logsumexp = result_def(TensorType)

    assembly_format = _assembly("q k v", "y logsumexp")

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None,
        counter: SSAValue,
        coordinates: Any = (),
        **settings: Any,
    ):
        """
        Makes the op from its operands, and from its properties by name. Result types
        are derived.
        """
        heads = {n: settings.get(n) for n in ("q_num_heads", "kv_num_heads")}
        known = {
            name: count.value.data if isinstance(count, IntegerAttr) else count
            for name, count in heads.items()
        }
        y, logsumexp = AttentionOp.types_of(q, v, **known)
        TrainOp.__init__(
            self,
            *(q, k, v, mask, counter, coordinates),
            y=y,
            logsumexp=logsumexp,
            **settings,
        )

    def without_dropout(self) -> AttentionOp:
        """
        Returns the same attention without dropout, with the same operands and types.
        """
        given = [self.q, self.k, self.v, *([] if self.mask is None else [self.mask])]
        names = AttentionOp.get_irdl_definition().properties
        return AttentionOp.create(
            operands=given,
            result_types=[r.type for r in self.results],
            properties={n: a for n, a in self.properties.items() if n in names},
            attributes=dict(self.attributes),
        )

    def verify_(self) -> None:
        super().verify_()
        self.check_result("y", self.y)
        self.check_logsumexp(self.logsumexp)


@irdl_op_definition
class DroppedAttentionGradOp(FusedAttentionGradOp, DroppedAttentionBase):
    """
    The gradient of `train.dropped_attention`, from its results `y` and `logsumexp`.
    Without a soft cap, and with kept = 1 / (1 - ratio) for kept elements, else 0,

        P = exp(scale * q k' + mask - logsumexp)
        dv = (P * kept)' dy, dP = (dy v') * kept, dS = P * (dP - sum(dy * y) along features)
        dq = scale * dS k, dk = scale * dS' q

    where `dk` and `dv` are sums over the query heads of a key head.
    """

    name = "train.dropped_attention_grad"

    assembly_format = _assembly("dy y logsumexp q k v", "dq dk dv")


OPS = [DropoutOp, DropoutGradOp, DroppedAttentionOp, DroppedAttentionGradOp]
