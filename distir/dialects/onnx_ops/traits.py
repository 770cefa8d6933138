"""
Facts about ONNX operators that several parts of DistIR need: one table per fact, by op
name. Ops of other dialects state such facts on their classes (`OpFacts`). A `Fact`
covers both kinds of ops.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from xdsl.ir import Operation

from distir.dialects.onnx_ops.elementwise import OPERATORS
from distir.dialects.op_facts import OpFacts


def _named(names: str) -> frozenset[str]:
    return frozenset(f"onnx.{name}" for name in names.split())


@dataclass(frozen=True)
class Fact:
    """
    A fact that holds for the ONNX operators in `names`, and for ops of other dialects
    whose classes state it. `stated` is the name of the attribute of `OpFacts`.
    """

    names: Set[str]
    stated: str

    def of(self, op: Operation) -> bool:
        """Whether the fact holds for `op`."""
        return op.name in self.names or (
            isinstance(op, OpFacts) and bool(getattr(op, self.stated))
        )

    def __or__(self, names: Set[str]) -> Fact:
        """
        Returns a fact that holds for the ops of this fact and for the ops in `names`.
        """
        return Fact(self.names | names, self.stated)


RESHAPES = _named("Flatten Reshape Squeeze Unsqueeze")
"""
Operators that keep the elements of the first operand in order and change its shape.
"""

PERMUTATIONS = RESHAPES | _named("Identity Transpose")
"""
Operators that keep every element of the first operand exactly once, in another order or
shape.
"""

VIEWS = Fact(RESHAPES | _named("Identity"), "IS_VIEW")
"""
Ops whose result is the memory of the first operand, or a part of this memory, in
another shape.
"""

REARRANGEMENTS = PERMUTATIONS | _named("Concat Split")
"""
Operators that keep every element of the operands exactly once, at other positions.
"""

REPETITIONS = _named("Expand Tile")
"""Operators that repeat the elements of the first operand."""

SAME_VALUES = REARRANGEMENTS | REPETITIONS | _named("Cast")
"""
Operators whose results hold exactly the values of the operands, at other positions or
in another type. Operands that are shapes do not count.
"""

SELECTIONS = _named("Clip Gather Max Min Mod Pad Slice")
"""
Operators that keep some elements of the first operand and replace all other elements.
"""

COPIES = Fact(frozenset(), "IS_COPY")
"""Ops whose result holds the values of the operand, in another form or place."""

FRESH = Fact(
    _named(
        "Add Conv Div Gemm LayerNormalization MatMul Mul RMSNormalization Softmax Sub "
        "TensorScatter"
    ),
    "IS_FRESH",
)
"""Ops whose results have memory of their own in PyTorch."""

CACHE_WRITES = Fact(_named("TensorScatter"), "IS_CACHE_WRITE")
"""
Ops that replace a part of their first operand, and can do so in the operand's own
memory if nothing else needs it.
"""

PRODUCTS = _named("MatMul Gemm")
"""Operators that multiply two matrices, or batches of matrices."""

SUMS = _named("Add Gemm Sub Sum")
"""
Operators whose result is zero where all their terms are zero. The product of a Gemm
counts as one term.
"""

ZEROS_OF_FIRST = Fact(
    PERMUTATIONS
    | _named(
        "Cast Expand Neg Pad RMSNormalization ReduceSum RotaryEmbedding Slice Split"
    ),
    "KEEPS_ZEROS",
)
"""
Ops that keep zeros of their first operand. A result element is zero if it comes from
zeros of the first operand only: from one zero, or from a sum of zeros.
"""

ZEROS_OF_ANY = _named("MatMul Mul")
"""
Operators that keep zeros of any operand. A result element is zero if it comes from
zeros of that operand only: from one zero, or from a sum of products with zeros.
"""

STRIDED = _named("Slice Split Transpose")
"""Operators whose results other operators can read in place, in memory of the operand."""

IN_ROTARY = _named("Concat Mul Neg Split")
"""
Operators of rotary positions: products with cosines and sines, and the exchange of two
halves, one of them negated. A sum ends the computation.
"""

ARITHMETIC = _named("Add Sub Mul Div")
"""Addition, subtraction, multiplication and division."""

COMMUTATIVE = _named(
    "Add Mul Max Min Sum Mean Equal And Or Xor BitwiseAnd BitwiseOr BitwiseXor"
)
"""Operators whose result stays the same if two operands are exchanged."""

SIGNLESS = _named(
    """
    Compress CumProd CumSum DepthToSpace Einsum GatherElements GatherND NonZero Pad
    ReverseSequence ScatterElements ScatterND Slice SpaceToDepth TensorScatter Trilu
    """
) | {"train.scatter_sum", "train.gather_grad"}
"""
Operators that give the same bits for unsigned and for signed integers, because they
move, add or multiply elements. For elementwise operators, the field `unsigned` of their
rows states this.
"""

LOOK_UPS = _named(
    """
    Gather GatherElements NegativeLogLikelihoodLoss ScatterElements SoftmaxCrossEntropyLoss
    """
)
"""
Operators whose second operand holds integers that index a dimension of the first
operand: the second dimension for losses, and the dimension in the attribute `axis` for
all other operators.
"""

OPTIMIZERS = Fact(frozenset(), "IS_UPDATE")
"""Ops that update a parameter with its gradient."""

ELEMENTWISE = Fact(frozenset(f"onnx.{name}" for name in OPERATORS), "IS_ELEMENTWISE")
"""
Ops that compute each result element from the operand elements at the same position.
"""

WITHOUT_GRADIENT = frozenset(
    f"onnx.{name}" for name, row in OPERATORS.items() if row.gradient == "0"
) | _named("ArgMax ArgMin NonZero Shape Size Constant ConstantOfShape EyeLike")
"""
Operators without a gradient. Their results are constant almost everywhere, such as
steps and truth values, or depend only on positions, shapes and constants.
"""

SIZE_OPERANDS: dict[str, tuple[int, ...]] = {
    "onnx.CenterCropPad": (1,),
    "onnx.ConstantOfShape": (0,),
    "onnx.Expand": (1,),
    "onnx.OneHot": (1,),
    "onnx.Pad": (1, 3),
    "onnx.Range": (0, 1, 2),
    "onnx.Reshape": (1,),
    "onnx.Resize": (1, 2, 3),
    "onnx.Slice": (1, 2, 3, 4),
    "onnx.Split": (1,),
    "onnx.Squeeze": (1,),
    "onnx.Tile": (1,),
    "onnx.TopK": (1,),
    "onnx.Unsqueeze": (1,),
}
"""
The positions of the operands whose values determine the result's shape, by op name.
"""

WEIGHT_OPERANDS: dict[str, tuple[int, ...]] = {
    "onnx.BatchNormalization": (1, 2),
    "onnx.Conv": (1, 2),
    "onnx.ConvTranspose": (1, 2),
    "onnx.GRU": (1, 2, 3),
    "onnx.Gather": (0,),
    "onnx.Gemm": (0, 1, 2),
    "onnx.GroupNormalization": (1, 2),
    "onnx.InstanceNormalization": (1, 2),
    "onnx.LSTM": (1, 2, 3),
    "onnx.LayerNormalization": (1, 2),
    "onnx.MatMul": (0, 1),
    "onnx.PRelu": (1,),
    "onnx.RMSNormalization": (1,),
    "onnx.RNN": (1, 2, 3),
}
"""
The positions of the operands that are taken for weights if a model's file does not mark
its weights, by op name.
"""

RECURRENT: dict[str, tuple[str, ...]] = {
    "onnx.RNN": ("tanh",),
    "onnx.GRU": ("sigmoid", "tanh"),
    "onnx.LSTM": ("sigmoid", "tanh", "tanh"),
}
"""The recurrent layers, with their default activations, which are also PyTorch's."""

LOW_PRECISION = _named(
    "Attention Conv ConvTranspose Einsum GRU Gemm LSTM MatMul PRelu RNN"
)
"""
The operators that correspond to functions that PyTorch's autocast runs in 16 bits.
"""

FULL_PRECISION = _named(
    """
    Acos Asin Cosh CumProd CumSum Exp GroupNormalization LayerNormalization Log LogSoftmax
    LpNormalization NegativeLogLikelihoodLoss Pow RMSNormalization Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSum ReduceSumSquare Resize Sinh
    SoftmaxCrossEntropyLoss Softmax Softplus Tan
    """
)
"""
The operators that correspond to functions that PyTorch's autocast runs in 32 bits.
"""

FOLLOWS_PRECISION = _named(
    """
    Add AveragePool Concat Div Dropout Expand Flatten Gelu HardSwish Identity LeakyRelu Max
    MaxPool Min Mul Neg Relu Reshape Sigmoid Slice Split Squeeze Sub Swish Tanh Transpose
    Unsqueeze Where
    """
)
"""
The operators that autocast does not list and that occur between matrix products. They
compute in 16 bits if their operands have 16 bits.
"""

_ALONG_AXIS = "[*a@axis, k, *b] -> [*a, k, *b] keep k"
_POOLED = "[n, c, *s] -> [n, c, *t] keep s t"

FACTORS: dict[str, str] = {
    **{
        f"onnx.{name}": "[*d] -> [*d] linear 0" if row.linear else "[*d] -> [*d]"
        for name, row in sorted(OPERATORS.items())
        if not row.of_several and row.linear != "own"
    },
    "onnx.AveragePool": f"{_POOLED} linear 0",
    "onnx.Det": "[*b, n, m] -> [*b] keep n m",
    "onnx.GlobalAveragePool": f"{_POOLED} linear 0",
    "onnx.GlobalMaxPool": f"{_POOLED} linear max 0",
    "onnx.GridSample": "[n, c, *s], [n, *p, ?] -> [n, c, *p] keep s linear 0",
    "onnx.Hardmax": _ALONG_AXIS,
    "onnx.Identity": "[*d] -> [*d] linear any 0",
    "onnx.InstanceNormalization": "[n, c, *s], [c], [c] -> [n, c, *s] keep s",
    "onnx.LogSoftmax": _ALONG_AXIS,
    "onnx.LpNormalization": _ALONG_AXIS,
    "onnx.LpPool": _POOLED,
    "onnx.LRN": "[n, c, *s] -> [n, c, *s] keep c",
    "onnx.Softmax": _ALONG_AXIS,
}
"""
The sharding rules of operators whose rules follow from shapes and attributes alone, in
the notation of `distir.sharding.factor_text`.
"""
