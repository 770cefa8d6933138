"""
Checks of an op's dimensions that ONNX's inference leaves out.

`SHAPES` lists the names of dimensions for each operand and result. Dimensions with
equal names must have equal sizes, `*S` stands for any number of dimensions, and a
number is a size. `shape_checks` has the checks that names cannot express.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NoReturn

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import tensor_type

Shape = tuple[int, ...]

SHAPES: dict[str, str] = {
    "BatchNormalization": "N C *S, C, C, C, C -> N C *S, C, C",
    "Conv": "N C *S, M I *K, M -> N M *T",
    "ConvInteger": "N C *S, M I *K -> N M *T",
    "ConvTranspose": "N C *S, C O *K, M -> N M *T",
    "AveragePool": "N C *S -> N C *T",
    "CumProd": "*D, *A -> *D",
    "CumSum": "*D, *A -> *D",
    "ConstantOfShape": "R",
    "DepthToSpace": "N C H W -> N D I J",
    "Expand": "*D, R",
    "GlobalAveragePool": "N C *S -> N C *T",
    "GlobalMaxPool": "N C *S -> N C *T",
    "GroupNormalization": "N C *S, C, C -> N C *S",
    "InstanceNormalization": "N C *S, C, C -> N C *S",
    "LRN": "N C *S -> N C *S",
    "LpPool": "N C *S -> N C *T",
    "MaxPool": "N C *S -> N C *T, N C *T",
    "MeanVarianceNormalization": "*D -> *D",
    "NegativeLogLikelihoodLoss": "N C *S, N *S, C",
    "Pad": "*D, P, , A",
    "Reshape": "*D, R",
    "ScatterElements": "*D, *I, *I -> *D",
    "Slice": "*D, R, R, R, R",
    "SoftmaxCrossEntropyLoss": "N C *S, N *S, C -> *L, N C *S",
    "SpaceToDepth": "N C H W -> N D I J",
    "Split": "*D, R",
    "Squeeze": "*D, R",
    "Tile": "*D, R -> *T",
    "TopK": "*D, 1",
    "Transpose": "*D",
    "Unsqueeze": "*D, R",
}
"""
For each operator, the dimensions of each operand, `->`, and the dimensions of each
result. Operands and results that are missing or empty here may have any shape.
"""


def agree(a: Sequence[int], b: Sequence[int]) -> bool:
    """
    Whether two shapes have equal known sizes and equal ranks. A size of -1 is unknown.
    """
    return len(a) == len(b) and all(
        m < 0 or n < 0 or m == n for m, n in zip(a, b, strict=True)
    )


@cache
def _patterns(text: str) -> tuple[list[list[str]], list[list[str]]]:
    operands, _, results = text.partition("->")
    return [p.split() for p in operands.split(",")], [
        p.split() for p in results.split(",")
    ]


class Shapes:
    """
    The shapes of an op's operands and results. A shape is None if the value is omitted
    or its rank is unknown.
    """

    def __init__(self, op: OnnxOp, operand_types: Sequence[Attribute]):
        self.op = op
        self.types = operand_types
        types = iter(operand_types)
        self.operands = [
            None if v is None else _shape(next(types)) for v in op.input_values
        ]
        self.results = [_shape(v.type) for v in op.results]

    def __getitem__(self, position: int) -> Shape | None:
        """
        Returns the shape of the operand at schema position `position`, or None if the
        operand is absent or its rank is unknown.
        """
        return self.operands[position] if position < len(self.operands) else None

    def fail(self, text: str) -> NoReturn:
        """Raises VerifyException. The message gives the operand types, then `text`."""
        shown = ", ".join(str(bare_type(type_)) for type_ in self.types)
        raise VerifyException(f"cannot take operands of types ({shown}): {text}")

    def require(self, holds: bool, text: str) -> None:
        """Raises VerifyException with `text` unless `holds` is true."""
        if not holds:
            self.fail(text)

    def axis(self, rank: int, name: str = "axis") -> int:
        """
        Returns the axis in the attribute `name`, counted from 0, for a tensor of `rank`
        dimensions. Raises VerifyException if the axis is out of range.
        """
        axis = self.op.attribute(name)
        self.require(
            -rank <= axis < rank, f"{name} {axis} is outside of {rank} dimensions"
        )
        return axis % rank

    def divides(self, divisor: int, size: int, text: str) -> None:
        """
        Raises VerifyException with `text` unless `size` is unknown or a multiple of
        `divisor`.
        """
        holds = divisor > 0 and (size < 0 or size % divisor == 0)
        self.require(holds, f"{size} {text} {divisor}")

    def fits(self, position: int, expected: Sequence[int]) -> None:
        """
        Raises VerifyException if the operand at schema position `position` has a known
        shape that differs from `expected`.
        """
        shape = self[position]
        if shape is not None and not agree(shape, expected):
            formals = self.op.SCHEMA.inputs
            self.fail(
                f"{formals[position].name} is {_shown(shape)}, expected "
                f"{_shown(expected)}"
            )

    def equal(self, a: int, b: int, text: str) -> None:
        """
        Raises VerifyException with `text` unless sizes `a` and `b` are equal, or one of
        them is unknown.
        """
        self.require(a < 0 or b < 0 or a == b, f"{text}, got {a} and {b}")

    def match(self, text: str) -> None:
        """
        Raises VerifyException unless the shapes agree with `text`, a line of `SHAPES`.
        """
        sizes: dict[str, int] = {}
        runs: dict[str, Shape] = {}
        schema = self.op.SCHEMA
        sides = (self.operands, schema.inputs), (self.results, schema.outputs)
        for (values, formals), patterns in zip(sides, _patterns(text), strict=True):
            for i, (shape, names) in enumerate(zip(values, patterns, strict=False)):
                if shape is not None and names and not _fits(shape, names, sizes, runs):
                    self.fail(
                        f"{formals[i].name} is {_shown(shape)}, which does not fit the "
                        f"others in {text} (equal letters are equal sizes, *S any number "
                        f"of dimensions)"
                    )


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join('?' if n < 0 else str(n) for n in shape)}]"


def bare_type(type_: Attribute) -> Attribute:
    """Returns a type without its layout, as ONNX sees it."""
    if not isinstance(type_, TensorType):
        return type_
    return tensor_type(type_.get_shape(), type_.element_type)


def _shape(type_: Attribute) -> Shape | None:
    return type_.get_shape() if isinstance(type_, TensorType) else None


def _fits(
    shape: Shape, names: Sequence[str], sizes: dict[str, int], runs: dict[str, Shape]
) -> bool:
    run = next((i for i, name in enumerate(names) if name[0] == "*"), None)
    extra = len(shape) - len(names) + (run is not None)
    if extra < 0 or (run is None and extra):
        return False
    dims = list(zip(names, shape, strict=False))
    if run is not None:
        middle = shape[run : run + extra]
        known = runs.setdefault(names[run], middle)
        if not agree(known, middle):
            return False
        after = shape[run + extra :]
        dims = [
            *zip(names[:run], shape[:run], strict=True),
            *zip(names[run + 1 :], after, strict=True),
        ]
    for name, size in dims:
        if size < 0:
            continue
        if (int(name) if name.isdigit() else sizes.setdefault(name, size)) != size:
            return False
    return True
