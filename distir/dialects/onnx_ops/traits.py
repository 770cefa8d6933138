"""
Facts of ONNX operators that several parts of DistIR ask for, one table per fact, by the names
of ops. Ops of `train` state theirs on their classes (`op_facts`), and are in the tables that
say so.
"""

from __future__ import annotations

from distir.dialects.onnx_ops.elementwise import OPERATORS
from distir.dialects.op_facts import OpFacts
from distir.dialects.train import Train


def _named(names: str) -> frozenset[str]:
    return frozenset(f"onnx.{name}" for name in names.split())


def _stated(trait: str) -> frozenset[str]:
    """Returns the names of ops of `train` whose classes have a trait of `OpFacts`."""
    facts = [op for op in Train.operations if issubclass(op, OpFacts)]
    return frozenset(op.name for op in facts if getattr(op, trait))


RESHAPES = _named("Flatten Reshape Squeeze Unsqueeze")
"""The elements of the first operand in their order, under another shape."""

VIEWS = RESHAPES | _named("Identity") | _stated("IS_VIEW")
"""The memory of the first operand, or a part of it, under another shape."""

REARRANGEMENTS = RESHAPES | _named("Concat Identity Split Transpose")
"""Every element of the operands once, at other positions."""

REPETITIONS = _named("Expand Tile")
"""Every element of the first operand, several times."""

COPIES = _stated("IS_COPY")
"""The values of the operand, in another form or place."""

PRODUCTS = _named("MatMul Gemm")
"""Products of two matrices, or of batches of them."""

SUMS = _named("Add Gemm Sub Sum")
"""Zero where each of their terms is zero (the product of a Gemm is one)."""

COMMUTATIVE = _named(
    "Add Mul Max Min Sum Mean Equal And Or Xor BitwiseAnd BitwiseOr BitwiseXor"
)
"""The same result with two operands exchanged."""

OPTIMIZERS = _stated("IS_UPDATE")
"""Updates of a parameter by its gradient."""

UNARY = frozenset(
    f"onnx.{name}"
    for name, row in OPERATORS.items()
    if not row.of_several and not row.passes_partial
)
"""Each element from the one at its place, by a function that is not linear."""

OF_SEVERAL = frozenset(
    f"onnx.{name}"
    for name, row in OPERATORS.items()
    if row.of_several and not row.passes_partial
)
"""Each element from those of several operands at its place, by a function that is not linear."""

ELEMENTWISE = frozenset(f"onnx.{name}" for name in OPERATORS) | _stated(
    "IS_ELEMENTWISE"
)
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
    "onnx.Resize": (2, 3),
    "onnx.Slice": (1, 2, 3, 4),
    "onnx.Split": (1,),
    "onnx.Squeeze": (1,),
    "onnx.Tile": (1,),
    "onnx.TopK": (1,),
    "onnx.Unsqueeze": (1,),
}
"""The positions of operands whose values decide the shape of the result."""

_ALONG_AXIS = "[*a@axis, k, *b] -> [*a, k, *b] keep k"
_POOLED = "[n, c, *s] -> [n, c, *t] keep s t"

FACTORS: dict[str, str] = {
    **dict.fromkeys(sorted(UNARY), "[*d] -> [*d]"),
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
    "onnx.Neg": "[*d] -> [*d] linear 0",
    "onnx.Softmax": _ALONG_AXIS,
}
"""
The sharding rules of operators of which shapes and attributes alone say it, in the notation of
`distir.sharding.factor_text`.
"""
