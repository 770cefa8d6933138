"""
Facts of ONNX operators that several parts of DistIR ask for, one table per fact, by the names
of ops. Ops of other dialects state theirs on their classes (`OpFacts`): a `Fact` is of both.
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
    A fact of the ONNX operators with these names, and of the ops of other dialects
    whose classes state it: `stated` is an attribute of `OpFacts`.
    """

    names: Set[str]
    stated: str

    def of(self, op: Operation) -> bool:
        """Whether it holds of an op."""
        return op.name in self.names or (
            isinstance(op, OpFacts) and bool(getattr(op, self.stated))
        )

    def __or__(self, names: Set[str]) -> Fact:
        """Returns the fact that holds of ops with these names, too."""
        return Fact(self.names | names, self.stated)


RESHAPES = _named("Flatten Reshape Squeeze Unsqueeze")
"""The elements of the first operand in their order, under another shape."""

PERMUTATIONS = RESHAPES | _named("Identity Transpose")
"""Every element of the first operand once, in another order or under another shape."""

VIEWS = Fact(RESHAPES | _named("Identity"), "IS_VIEW")
"""The memory of the first operand, or a part of it, under another shape."""

REARRANGEMENTS = PERMUTATIONS | _named("Concat Split")
"""Every element of the operands once, at other positions."""

REPETITIONS = _named("Expand Tile")
"""Every element of the first operand, several times."""

SAME_VALUES = REARRANGEMENTS | REPETITIONS | _named("Cast")
"""Exactly the values of the operands that are no shapes, at other positions or in another type."""

SELECTIONS = _named("Clip Gather Max Min Mod Pad Slice")
"""Some elements of the first operand, beside others that stand in their place."""

COPIES = Fact(frozenset(), "IS_COPY")
"""The values of the operand, in another form or place."""

FRESH = Fact(
    _named(
        "Add Conv Div Gemm LayerNormalization MatMul Mul RMSNormalization Softmax Sub"
    ),
    "IS_FRESH",
)
"""In PyTorch, results in memory of their own."""

PRODUCTS = _named("MatMul Gemm")
"""Products of two matrices, or of batches of them."""

SUMS = _named("Add Gemm Sub Sum")
"""Zero where each of their terms is zero (the product of a Gemm is one)."""

ZEROS_OF_FIRST = Fact(
    PERMUTATIONS
    | _named(
        "Cast Expand Neg Pad RMSNormalization ReduceSum RotaryEmbedding Slice Split"
    ),
    "KEEPS_ZEROS",
)
"""Zero where the first operand is zero, and sums of such."""

ZEROS_OF_ANY = _named("MatMul Mul")
"""Zero where one of the operands is zero, and sums of such."""

ARITHMETIC = _named("Add Sub Mul Div")
"""The four operations."""

COMMUTATIVE = _named(
    "Add Mul Max Min Sum Mean Equal And Or Xor BitwiseAnd BitwiseOr BitwiseXor"
)
"""The same result with two operands exchanged."""

SIGNLESS = _named(
    """
    Compress CumProd CumSum DepthToSpace Einsum GatherElements GatherND NonZero Pad
    ReverseSequence ScatterElements ScatterND Slice SpaceToDepth TensorScatter Trilu
    """
)
"""
The same bits for unsigned integers as for signed ones: elements are moved, added or multiplied.
Rows of elementwise operators say it as `unsigned`.
"""

LOOK_UPS = _named(
    """
    Gather GatherElements NegativeLogLikelihoodLoss ScatterElements SoftmaxCrossEntropyLoss
    """
)
"""Integers in the second operand index a dimension of the first: `axis`, of losses the second."""

OPTIMIZERS = Fact(frozenset(), "IS_UPDATE")
"""Updates of a parameter by its gradient."""

ELEMENTWISE = Fact(frozenset(f"onnx.{name}" for name in OPERATORS), "IS_ELEMENTWISE")
"""Each element from those of the operands at its place."""

WITHOUT_GRADIENT = frozenset(
    f"onnx.{name}" for name, row in OPERATORS.items() if row.gradient == "0"
) | _named("ArgMax ArgMin NonZero Shape Size Constant ConstantOfShape EyeLike")
"""
Constant almost everywhere, as steps and truth values are, or of positions, shapes and
constants alone.
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
"""The positions of operands whose values decide the shape of the result."""

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
"""The positions of operands that are weights where a model's file does not say what they are."""

RECURRENT: dict[str, tuple[str, ...]] = {
    "onnx.RNN": ("tanh",),
    "onnx.GRU": ("sigmoid", "tanh"),
    "onnx.LSTM": ("sigmoid", "tanh", "tanh"),
}
"""Recurrent layers, with the activations that they have by default and in PyTorch."""

LOW_PRECISION = _named(
    "Attention Conv ConvTranspose Einsum GRU Gemm LSTM MatMul PRelu RNN"
)
"""The operators for functions in PyTorch's list of those that autocast runs in 16 bits."""

FULL_PRECISION = _named(
    """
    Acos Asin Cosh CumProd CumSum Exp GroupNormalization LayerNormalization Log LogSoftmax
    LpNormalization NegativeLogLikelihoodLoss Pow RMSNormalization Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd ReduceSum ReduceSumSquare Resize Sinh
    SoftmaxCrossEntropyLoss Softmax Softplus Tan
    """
)
"""The operators for functions in PyTorch's list of those that autocast runs in 32 bits."""

FOLLOWS_PRECISION = _named(
    """
    Add AveragePool Concat Div Dropout Expand Flatten Gelu HardSwish Identity LeakyRelu Max
    MaxPool Min Mul Neg Relu Reshape Sigmoid Slice Split Squeeze Sub Swish Tanh Transpose
    Unsqueeze Where
    """
)
"""
The operators in neither list that stand between matrix products, and compute in 16 bits where their
operands have 16 bits.
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
The sharding rules of operators of which shapes and attributes alone say it, in the notation of
`distir.sharding.factor_text`.
"""
