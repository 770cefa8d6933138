"""
Samples of ONNX operators in the spirit of PyTorch's OpInfo: an operator with any of its
element types, shapes (empty ones and those without dimensions too) and attributes, and a
function that makes inputs for it, with extreme values among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from fuzz.catalogue import cases
from fuzz.extremes import (
    BOOL,
    DTYPES,
    FLOATS,
    SIGNED,
    Array,
    bounded,
    extreme,
    finite,
    is_float,
    numeric,
    ordinary,
    specials,
    summable,
)
from hypothesis import strategies as st
from onnx import defs, helper
from support.random_programs import Draw
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.versions import OPSET

Inputs = list[Array | None]
SHAPES = [(), (1,), (3,), (5,), (0,), (2, 3), (3, 1), (3, 0), (2, 3, 4), (2, 0, 3)]
"""Of tensors where any shape will do."""


@dataclass(frozen=True)
class Sample:
    """
    An operator with attributes. `inputs` makes its inputs by position (None is omitted);
    those in `constants` come from `onnx.Constant` and are the same each time. `sums` says
    that what it computes is added up, so that rounding errors are as large as those of the
    largest number; `magnified` says by how much that number is larger than the operands
    are. `make` builds ops of other dialects from their operands.
    """

    name: str
    inputs: Callable[[np.random.Generator], Inputs]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constants: frozenset[int] = frozenset()
    results: int = 1
    sums: bool = False
    magnified: Callable[[Sequence[Array | None]], float] = lambda inputs: 1.0
    make: Callable[[Sequence[SSAValue]], Operation] | None = None
    roundings: int = 1
    """The number of roundings of a result, each of which adds to its relative error."""
    once: bool = False
    """Whether shapes of results depend on values."""


@cache
def dtypes(name: str, variable: str = "T") -> list[np.dtype[Any]]:
    """The element types that the standard allows, of those that fuzzers make."""
    schema = defs.get_schema(name, OPSET)
    found: list[np.dtype[Any]] = []
    for constraint in schema.type_constraints:
        if constraint.type_param_str == variable:
            found = [d for d in DTYPES if _type_name(d) in constraint.allowed_type_strs]
    assert found, name
    return found


def _type_name(dtype: np.dtype[Any]) -> str:
    number = helper.np_dtype_to_tensor_dtype(dtype)
    name: str = helper.tensor_dtype_to_string(number).rpartition(".")[2].lower()
    return f"tensor({ {'float': 'float', 'double': 'double'}.get(name, name) })"


def pick(draw: Draw, items: Sequence[Any]) -> Any:
    return draw(st.sampled_from(items))


def share_of(draw: Draw) -> float:
    """How many of the values are special: none, some or most."""
    return pick(draw, [0.0, 0.15, 0.15, 0.6, 1.0])


_UNARY: dict[str, Sequence[Mapping[str, Any]]] = {
    **dict.fromkeys(
        [
            "Abs",
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Ceil",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Floor",
            "Log",
            "Neg",
            "Reciprocal",
            "Round",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Sqrt",
            "Tan",
            "Tanh",
            "HardSwish",
            "Mish",
            "Relu",
            "Softplus",
            "Softsign",
            "Selu",
            "BitwiseNot",
            "Not",
            "IsNaN",
            "Identity",
        ],
        ({},),
    ),
    "IsInf": ({}, {"detect_negative": 0}, {"detect_positive": 0}),
    "Elu": ({}, {"alpha": 0.5}),
    "Celu": ({}, {"alpha": 2.0}),
    "LeakyRelu": ({}, {"alpha": 0.2}),
    "ThresholdedRelu": ({}, {"alpha": 0.5}),
    "HardSigmoid": ({}, {"alpha": 0.5, "beta": 0.25}),
    "Gelu": ({}, {"approximate": "tanh"}),
    "Swish": ({}, {"alpha": 1.5}),
    "Shrink": ({}, {"lambd": 1.0, "bias": 0.5}),
}

_VARIABLES = {"BitwiseNot": "T", "IsNaN": "T1", "IsInf": "T1", "Identity": "V"}


def unary(draw: Draw) -> Sample:
    name = pick(draw, list(_UNARY))
    attributes = pick(draw, _UNARY[name])
    dtype = pick(draw, dtypes(name, _VARIABLES.get(name, "T")))
    shape, share = pick(draw, SHAPES), share_of(draw)
    if name == "Shrink" and not is_float(dtype):
        share = (
            0.0  # What is added to integers is a float, of which large ones have few.
        )

    def inputs(r: np.random.Generator) -> Inputs:
        x = extreme(r, shape, dtype, share)
        if name == "Gelu" and not attributes:
            # Of infinity and of the largest numbers, PyTorch's own kernels for one element and
            # for several give different results.
            wide = np.abs(x.astype(np.float64))
            x = np.where(wide > 1e38, 0, x).astype(dtype)  # infinities, too
        return [x]

    return Sample(name, inputs, attributes)


def _broadcast(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = pick(draw, SHAPES)
    other = pick(draw, [shape, shape, (), shape[1:], (1,) * len(shape)])
    return (shape, other) if draw(st.booleans()) else (other, shape)


_BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Pow",
    "And",
    "Or",
    "Xor",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "PRelu",
    "BitShift",
    "Max",
    "Min",
    "Sum",
    "Mean",
]


def binary(draw: Draw) -> Sample:
    name = pick(draw, _BINARY)
    dtype = pick(draw, dtypes(name, "T"))
    second = pick(draw, dtypes(name, "T1")) if name == "Pow" else dtype
    shape, other = _broadcast(draw)
    share = share_of(draw)
    attributes: dict[str, Any] = {}
    if name == "Mod":
        attributes["fmod"] = 1 if is_float(dtype) else pick(draw, [0, 1])
    if name == "BitShift":
        attributes["direction"] = pick(draw, ["LEFT", "RIGHT"])
    if name == "PRelu":
        shape, other = max(shape, other, key=len), ()

    def inputs(r: np.random.Generator) -> Inputs:
        a, b = extreme(r, shape, dtype, share), extreme(r, other, second, share)
        if name in ("Div", "Mod") and not is_float(dtype):
            # Dividing by 0 is undefined, and ends the process that does it; so is the least
            # number by -1.
            b = np.where(
                (b == 0) | (b == dtype.type(0) - dtype.type(1)), dtype.type(3), b
            )
        if name == "PRelu":
            b = ordinary(r, other, dtype)
        if name == "Pow" and not is_float(second):
            b = ordinary(r, other, second) % second.type(4)  # whole powers that fit
        if name == "Pow" and not is_float(dtype):
            a, b = ordinary(r, shape, dtype), np.abs(ordinary(r, other, second))
        if name == "BitShift":
            b = (b % (8 * dtype.itemsize)).astype(dtype)
        return [a, b]

    return Sample(name, inputs, attributes)


def where(draw: Draw) -> Sample:
    dtype, share = pick(draw, dtypes("Where")), share_of(draw)
    shape, other = _broadcast(draw)
    return Sample(
        "Where",
        lambda r: [
            ordinary(r, shape, BOOL),
            extreme(r, other, dtype, share),
            extreme(r, (), dtype, share),
        ],
    )


def clip(draw: Draw) -> Sample:
    dtype, share, shape = pick(draw, dtypes("Clip")), share_of(draw), pick(draw, SHAPES)
    low, high = draw(st.booleans()), draw(st.booleans())

    def inputs(r: np.random.Generator) -> Inputs:
        bounds = np.sort(ordinary(r, (2,), dtype))
        return [
            extreme(r, shape, dtype, share),
            bounds[0] if low else None,
            bounds[1] if high else None,
        ]

    constants = pick(draw, [frozenset(), frozenset({1}), frozenset({1, 2})])
    given = {i for i, has in ((1, low), (2, high)) if has}
    return Sample("Clip", inputs, constants=constants & given)


def cast(draw: Draw) -> Sample:
    source, target = pick(draw, DTYPES), pick(draw, DTYPES)
    shape, share = pick(draw, SHAPES), share_of(draw)

    def inputs(r: np.random.Generator) -> Inputs:
        x = extreme(r, shape, source, share)
        if is_float(source) and not is_float(target) and target != BOOL:
            # What does not fit, NaN too, may become anything.
            x = np.abs(ordinary(r, shape, source))
        return [x]

    to = helper.np_dtype_to_tensor_dtype(target)
    return Sample("Cast", inputs, {"to": to})


_REDUCTIONS = [
    f"Reduce{kind}"
    for kind in [
        "Sum",
        "Mean",
        "Max",
        "Min",
        "Prod",
        "L1",
        "L2",
        "SumSquare",
        "LogSum",
        "LogSumExp",
    ]
]


def reduction(draw: Draw) -> Sample:
    name = pick(draw, _REDUCTIONS)
    dtype, share, shape = pick(draw, dtypes(name)), share_of(draw), pick(draw, SHAPES)
    rank = len(shape)
    chosen = draw(st.lists(st.integers(-rank, rank - 1), max_size=2)) if rank else []
    axes = list({a % rank: a for a in chosen}.values())
    how = pick(draw, ["constant", "constant", "argument", "omitted"])
    attributes = {
        "keepdims": pick(draw, [0, 1]),
        "noop_with_empty_axes": pick(draw, [0, 0, 1]),
    }
    is_extremum = name in ("ReduceMax", "ReduceMin")
    values = extreme if is_extremum or not is_float(dtype) else summable
    if not is_extremum and name != "ReduceSum" and dtype.itemsize == 8:
        share = share if is_float(dtype) else 0.0  # sums beyond 64 bits mean nothing
    if name in ("ReduceL1", "ReduceL2", "ReduceSumSquare") and not is_float(dtype):
        share = 0.0  # What does not fit wraps around here, and is cut in onnxruntime.

    def inputs(r: np.random.Generator) -> Inputs:
        x = values(r, shape, dtype, share)
        if name == "ReduceProd" and is_float(dtype):
            # Products of tiny numbers are zero, before or after the infinite ones.
            x = np.where((x != 0) & (np.abs(x) < 1e-3), 1, x).astype(dtype)
        if how == "omitted":
            return [x]
        return [x, np.array(axes, np.int64)]

    constants = frozenset({1} if how == "constant" else ())
    factors = math.prod(shape) if name == "ReduceProd" else 1
    return Sample(
        name, inputs, attributes, constants, sums=not is_extremum, roundings=factors
    )


def along_axis(draw: Draw) -> Sample:
    """Softmax and others that need an axis."""
    name = pick(draw, ["Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "ArgMax"])
    name = pick(draw, [name, "ArgMin", "CumSum", "CumProd", "TopK"])
    dtype, share = pick(draw, dtypes(name)), share_of(draw)
    shape = pick(draw, [s for s in SHAPES if s])
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    attributes: dict[str, Any] = {}
    extra: list[Array] = []
    # Where there is NaN, onnxruntime's Hardmax marks nothing; PyTorch has none.
    results, values = 1, numeric if name == "Hardmax" else extreme
    if name in ("CumSum", "CumProd"):
        extra = [np.array(axis, np.int64)]
        attributes = {"exclusive": pick(draw, [0, 1]), "reverse": pick(draw, [0, 1])}
        values = summable
    elif name == "TopK":
        size = shape[axis]
        extra = [np.array([draw(st.integers(0, size))], np.int64)]
        attributes = {"axis": axis, "largest": pick(draw, [0, 1])}
        results = 2
    else:
        attributes["axis"] = axis
    if name == "LpNormalization":
        attributes["p"] = pick(draw, [1, 2])
        values = summable
    if name.startswith("Arg"):
        attributes |= {
            "keepdims": pick(draw, [0, 1]),
            "select_last_index": pick(draw, [0, 0, 1]),
        }
        if attributes["select_last_index"]:
            values = numeric  # PyTorch has no last one, onnxruntime none that is NaN.
    return Sample(
        name,
        lambda r: [values(r, shape, dtype, share), *extra],
        attributes,
        frozenset(range(1, 1 + len(extra))),
        results,
        sums=values is summable,
        roundings=shape[axis] if name == "CumProd" else 1,
    )


def pool(draw: Draw) -> Sample:
    name = pick(draw, ["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"])
    name = pick(draw, [name, name, "GlobalMaxPool", "GlobalLpPool"])
    dtype, share = pick(draw, dtypes(name)), share_of(draw)
    space = pick(draw, [(4,), (5,), (4, 5), (3, 3)])
    attributes: dict[str, Any] = {}
    if not name.startswith("Global"):
        kernel = [draw(st.integers(1, 3)) for _ in space]
        attributes = {
            "kernel_shape": kernel,
            "strides": [draw(st.integers(1, 2)) for _ in space],
            "pads": [draw(st.integers(0, k // 2)) for k in kernel * 2],
            "ceil_mode": pick(draw, [0, 0, 1]),
        }
        if name == "AveragePool":
            attributes["count_include_pad"] = pick(draw, [0, 1])
    if name.endswith("LpPool"):
        attributes["p"] = pick(draw, [1, 2])
    results = pick(draw, [1, 2]) if name == "MaxPool" else 1
    values = extreme if "Max" in name else summable
    pads = attributes.get("pads", [])
    one_sided = pads[: len(space)] != pads[len(space) :]
    if values is extreme and one_sided and (attributes["ceil_mode"] or results == 2):
        # PyTorch pools no such windows. In them onnxruntime loses NaN, and begins with the
        # least finite number, which it gives for those that have -inf alone.
        values = bounded
    elif values is extreme and results == 2:
        values = numeric  # Which of several NaN is the largest is nowhere said.
    return Sample(
        name,
        lambda r: [values(r, (2, 2, *space), dtype, share)],
        attributes,
        results=results,
        sums="Max" not in name,
    )


def product(draw: Draw) -> Sample:
    name = pick(draw, ["MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose"])
    dtype, share = pick(draw, dtypes(name)), share_of(draw)
    # Kernels of convolutions multiply what pads their operands, too, by infinity.
    values = finite if name.startswith("Conv") else summable
    attributes: dict[str, Any] = {}
    shapes: list[tuple[int, ...]]
    if name == "MatMul":
        shapes = pick(
            draw,
            [
                [(2, 3), (3, 4)],
                [(3,), (3,)],
                [(3,), (3, 2)],
                [(2, 2, 3), (3, 4)],
                [(2, 0), (0, 3)],
                [(0, 3), (3, 2)],
                [(2, 1, 2, 3), (2, 3, 2)],
            ],
        )
    elif name == "Gemm":
        shapes = [(2, 3), (3, 4), *pick(draw, [[], [(4,)], [()], [(2, 1)]])]
        if draw(st.booleans()):
            shapes[0], attributes["transA"] = (3, 2), 1
        if draw(st.booleans()):
            shapes[1], attributes["transB"] = (4, 3), 1
        attributes["alpha"] = pick(draw, [1.0, 0.5, 2.0])
        attributes["beta"] = pick(draw, [1.0, 0.5])
    elif name == "Einsum":
        equation, shapes = pick(
            draw,
            [
                ("ij,jk->ik", [(2, 3), (3, 4)]),
                ("bij,bjk->bik", [(2, 2, 3), (2, 3, 1)]),
                ("ij->ji", [(2, 3)]),
                ("ii->i", [(3, 3)]),
                ("ij->", [(2, 3)]),
                ("i,j->ij", [(2,), (0,)]),
            ],
        )
        attributes["equation"] = equation
    else:
        groups = pick(draw, [1, 2])
        weight = (4, 4 // groups)
        space = pick(draw, [(5,), (4, 4)])
        kernel = tuple(draw(st.integers(1, 3)) for _ in space)
        shapes = [(2, 4, *space), (*weight, *kernel)]
        if draw(st.booleans()):
            shapes.append((4,))
        attributes = {
            "group": groups,
            "strides": [draw(st.integers(1, 2)) for _ in space],
            "pads": [draw(st.integers(0, k // 2)) for k in kernel * 2],
        }
    return Sample(
        name,
        lambda r: [values(r, shape, dtype, share) for shape in shapes],
        attributes,
        sums=True,
    )


def normalization(draw: Draw) -> Sample:
    name = pick(
        draw,
        [
            "LayerNormalization",
            "RMSNormalization",
            "BatchNormalization",
            "InstanceNormalization",
            "GroupNormalization",
            "LRN",
            "MeanVarianceNormalization",
        ],
    )
    dtype, share = pick(draw, FLOATS), share_of(draw)
    shape = (2, 4, 3)
    sizes: list[tuple[int, ...]] = []
    attributes: dict[str, Any] = {}
    if name in ("LayerNormalization", "RMSNormalization"):
        attributes["axis"] = axis = pick(draw, [-1, 1])
        sizes = [shape[axis:]] * (1 if name[0] == "R" else pick(draw, [1, 2]))
    elif name == "LRN":
        shape = (2, 4, 3, 3)
        attributes["size"] = pick(draw, [1, 3])
    elif name == "MeanVarianceNormalization":
        shape = (2, 3, 2, 2)
    else:
        sizes = [(4,)] * (4 if name[0] == "B" else 2)
    if name == "GroupNormalization":
        attributes["num_groups"] = pick(draw, [1, 2, 4])

    def inputs(r: np.random.Generator) -> Inputs:
        # onnxruntime spreads NaN to channels that LRN does not read.
        values = finite if name == "LRN" else summable
        found: Inputs = [values(r, shape, dtype, share)]
        found += [ordinary(r, size, dtype) for size in sizes]
        if name[0] == "B":  # variances
            found[4] = np.abs(ordinary(r, (4,), dtype))
        return found

    def magnified(given: Sequence[Any]) -> float:
        # x / s - mean / s: where elements are nearly equal, both are far larger than they.
        if name[0] == "B":
            variances = given[4]
        elif name in _CENTRED:
            groups = attributes.get("num_groups", shape[1])
            x = given[0]
            if name == "MeanVarianceNormalization":
                parts = np.moveaxis(x, 1, 0).reshape(shape[1], -1)
            elif name == "LayerNormalization":
                parts = x.reshape(*shape[: attributes["axis"]], -1)
            else:
                parts = x.reshape(shape[0], groups, -1)
            variances = np.var(parts.astype(np.float64), axis=-1)
        else:
            return 1.0
        variances = variances[np.isfinite(variances)].astype(np.float64)
        return max(1.0, float((np.min(variances, initial=1.0) + 1e-5) ** -0.5))

    return Sample(name, inputs, attributes, sums=True, magnified=magnified)


_CENTRED = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "MeanVarianceNormalization",
)


def attention(draw: Draw) -> Sample:
    dtype, share = pick(draw, FLOATS), share_of(draw)
    kind = pick(draw, ["none", "bool", "added"])
    keys = pick(draw, [1, 3])
    shapes = [(1, 2, 3, 4), (1, 2, keys, 4), (1, 2, keys, 4)]
    attributes = {"is_causal": pick(draw, [0, 0, 1])}
    if draw(st.integers(0, 3)) == 0:
        attributes["softcap"] = 2.0
    if draw(st.booleans()):
        attributes["scale"] = 0.25

    def inputs(r: np.random.Generator) -> Inputs:
        # PyTorch's kernels take a query whose scores are all NaN, or all minus infinity, for
        # one that sees no key; onnxruntime gives NaN.
        found: Inputs = [finite(r, shape, dtype, share) for shape in shapes[:2]]
        found.append(summable(r, shapes[2], dtype, share))
        if kind == "bool":
            found.append(r.random((3, keys)) < pick_share)
        elif kind == "added":
            hidden = r.random((3, keys)) >= pick_share
            mask = np.where(hidden, -np.inf, r.uniform(-1, 1, (3, keys)))
            found.append(mask.astype(dtype))
        return found

    pick_share = pick(draw, [0.0, 0.5, 0.9])
    return Sample("Attention", inputs, attributes, sums=True)


def rearrangement(draw: Draw) -> Sample:
    """Ops that only move values."""
    name = pick(
        draw,
        [
            "Transpose",
            "Reshape",
            "Concat",
            "Split",
            "Tile",
            "Expand",
            "Slice",
            "Pad",
            "Squeeze",
            "Unsqueeze",
            "Trilu",
            "Gather",
            "GatherElements",
            "ScatterElements",
            "Flatten",
            "DepthToSpace",
            "OneHot",
            "NonZero",
            "Unique",
            "Compress",
            "ReverseSequence",
            "Shape",
            "Size",
            "ConstantOfShape",
        ],
    )
    return _REARRANGED[name](draw)


_REARRANGED: dict[str, Callable[[Draw], Sample]] = {}


def rearranged(function: Callable[[Draw], Sample]) -> Callable[[Draw], Sample]:
    _REARRANGED["".join(w.title() for w in function.__name__.split("_"))] = function
    return function


def _moved(
    draw: Draw,
    name: str,
    shape: Sequence[int],
    others: Sequence[Any] = (),
    dtype: Any = None,
    **attributes: Any,
) -> Sample:
    """A sample whose first input has any type and values; the others are constants."""
    kind, share = dtype or pick(draw, DTYPES), share_of(draw)
    extra = [None if o is None else np.array(o, np.int64) for o in others]
    return Sample(
        name,
        lambda r: [extreme(r, tuple(shape), kind, share), *extra],
        attributes,
        frozenset(i for i, o in enumerate(extra, 1) if o is not None),
        once=name in ("NonZero", "Unique"),
    )


@rearranged
def transpose(draw: Draw) -> Sample:
    shape = pick(draw, SHAPES)
    return _moved(
        draw, "Transpose", shape, perm=draw(st.permutations(range(len(shape))))
    )


@rearranged
def reshape(draw: Draw) -> Sample:
    before, after = pick(
        draw,
        [
            ((2, 3), [3, 2]),
            ((2, 3), [-1]),
            ((1,), []),
            ((), [1, 1]),
            ((2, 0), [0, 0]),
            ((2, 3, 4), [0, -1]),
        ],
    )
    return _moved(draw, "Reshape", before, [after])


@rearranged
def concat(draw: Draw) -> Sample:
    dtype, share = pick(draw, DTYPES), share_of(draw)
    axis = pick(draw, [0, -1])
    shapes = pick(draw, [[(2, 3)], [(2, 3), (2, 3)], [(0,), (3,)], [(2, 0), (2, 0)]])
    return Sample(
        "Concat",
        lambda r: [extreme(r, shape, dtype, share) for shape in shapes],
        {"axis": axis},
    )


@rearranged
def split(draw: Draw) -> Sample:
    sizes = pick(draw, [[1, 2], [0, 3], [3]])
    found = _moved(draw, "Split", (3, 2), [sizes], axis=0)
    return Sample(**{**vars(found), "results": len(sizes)})


@rearranged
def tile(draw: Draw) -> Sample:
    shape, repeats = pick(draw, [((2, 3), [2, 1]), ((3,), [0]), ((2, 0), [1, 3])])
    return _moved(draw, "Tile", shape, [repeats])


@rearranged
def expand(draw: Draw) -> Sample:
    shape, wanted = pick(
        draw, [((3, 1), [2, 1, 4]), ((), [2]), ((1,), [0]), ((2, 3), [1]), ((2,), [])]
    )
    return _moved(draw, "Expand", shape, [wanted])


@rearranged
def slice(draw: Draw) -> Sample:
    far = 2**63 - 1
    begin, end, step = pick(
        draw,
        [
            (0, far, 1),
            (-1, -far - 1, -1),
            (1, 3, 1),
            (3, 1, 1),
            (10, 20, 1),
            (-100, far, 2),
            (far, 0, -2),
        ],
    )
    shape = pick(draw, [(5,), (2, 4), (0, 3)])
    axis = pick(draw, [0, -1])
    return _moved(draw, "Slice", shape, [[begin], [end], [axis], [step]])


@rearranged
def pad(draw: Draw) -> Sample:
    mode = pick(draw, ["constant", "reflect", "edge", "wrap"])
    low = -1 if mode == "constant" else 0
    pads = [draw(st.integers(low, 2)) for _ in range(4)]
    return _moved(draw, "Pad", (3, 4), [pads], mode=mode)


@rearranged
def squeeze(draw: Draw) -> Sample:
    shape, axes = pick(draw, [((1, 3), [0]), ((1, 1), []), ((3, 1), [-1])])
    return _moved(draw, "Squeeze", shape, [axes] if axes else [])


@rearranged
def unsqueeze(draw: Draw) -> Sample:
    shape, axes = pick(draw, [((3,), [0, 2]), ((), [0]), ((0,), [-1])])
    return _moved(draw, "Unsqueeze", shape, [axes])


@rearranged
def trilu(draw: Draw) -> Sample:
    shape = pick(draw, [(3, 4), (2, 3, 3), (0, 3)])
    return _moved(
        draw, "Trilu", shape, [pick(draw, [0, 1, -2, 9])], upper=pick(draw, [0, 1])
    )


@rearranged
def gather(draw: Draw) -> Sample:
    shape, axis = pick(draw, [((4, 3), 0), ((2, 4), 1), ((4,), 0)])
    places = pick(draw, [0, -1, [0, 3, -4], [[1], [2]], np.zeros((0,), np.int64)])
    return _moved(draw, "Gather", shape, [places], axis=axis)


@rearranged
def gather_elements(draw: Draw) -> Sample:
    axis = pick(draw, [0, 1, -1])
    places = pick(draw, [[[0, -1, 2], [1, 0, 0]], [[0], [-2]]])
    return _moved(draw, "GatherElements", (3, 3), [places], axis=axis)


@rearranged
def scatter_elements(draw: Draw) -> Sample:
    dtype, share = pick(draw, DTYPES), share_of(draw)
    reduction = pick(draw, ["none", "add", "mul", "max", "min"])
    if dtype == BOOL:
        reduction = "none"
    places = np.array([[0, 1], [-1, 0]] if reduction == "none" else [[0, 0], [2, 1]])
    values = extreme if reduction in ("none", "max", "min") else summable
    return Sample(
        "ScatterElements",
        lambda r: [
            values(r, (3, 2), dtype, share),
            places,
            values(r, (2, 2), dtype, share),
        ],
        {"axis": 0, "reduction": reduction},
        frozenset({1}),
        sums=values is summable,
    )


@rearranged
def flatten(draw: Draw) -> Sample:
    shape, axis = pick(draw, [((2, 3, 4), 1), ((2, 3), 0), ((3,), 1), ((2, 0), -1)])
    return _moved(draw, "Flatten", shape, axis=axis)


@rearranged
def depth_to_space(draw: Draw) -> Sample:
    mode = pick(draw, ["DCR", "CRD"])
    return _moved(draw, "DepthToSpace", (1, 8, 2, 1), blocksize=2, mode=mode)


@rearranged
def one_hot(draw: Draw) -> Sample:
    dtype = pick(draw, DTYPES)
    axis = pick(draw, [-1, 0])
    share = share_of(draw)
    return Sample(
        "OneHot",
        lambda r: [
            r.integers(-5, 5, (3,)),  # some of them out of range
            np.array(4, np.int64),
            extreme(r, (2,), dtype, share),
        ],
        {"axis": axis},
        frozenset({1}),
    )


@rearranged
def non_zero(draw: Draw) -> Sample:
    return _moved(draw, "NonZero", pick(draw, [s for s in SHAPES if s]))


@rearranged
def unique(draw: Draw) -> Sample:
    dtype = pick(draw, [*SIGNED, *FLOATS[:2]])
    shape = pick(draw, [(0,), (5,), (2, 3)])
    return Sample(
        "Unique",
        lambda r: [ordinary(r, shape, dtype)],
        {"sorted": 1},
        results=pick(draw, [1, 4]),
        once=True,
    )


@rearranged
def compress(draw: Draw) -> Sample:
    dtype, share = pick(draw, DTYPES), share_of(draw)
    return Sample(
        "Compress",
        lambda r: [extreme(r, (3, 2), dtype, share), ordinary(r, (3,), BOOL)],
        pick(draw, [{"axis": 0}, {}]),
        once=True,
    )


@rearranged
def reverse_sequence(draw: Draw) -> Sample:
    return _moved(draw, "ReverseSequence", (3, 2), [[3, 1]], batch_axis=1, time_axis=0)


@rearranged
def shape(draw: Draw) -> Sample:
    return _moved(draw, "Shape", pick(draw, SHAPES))


@rearranged
def size(draw: Draw) -> Sample:
    return _moved(draw, "Size", pick(draw, SHAPES))


@rearranged
def constant_of_shape(draw: Draw) -> Sample:
    value = np.array([pick(draw, list(specials(pick(draw, DTYPES))))])
    wanted = np.array(pick(draw, [[], [0], [2, 3]]), np.int64)
    return Sample(
        "ConstantOfShape", lambda r: [wanted], {"value": value}, frozenset({0})
    )


def quantization(draw: Draw) -> Sample:
    name = pick(draw, ["QuantizeLinear", "DequantizeLinear"])
    kind = np.dtype(pick(draw, ["uint8", "int8", "uint16", "int16"]))
    dtype, share = np.dtype(pick(draw, ["float32", "float16"])), share_of(draw)
    has_zero = draw(st.booleans())

    def inputs(r: np.random.Generator) -> Inputs:
        scale = np.array(r.uniform(0.01, 2), dtype)
        zero = r.integers(0, 9, ()).astype(kind if has_zero else np.uint8)
        if name == "DequantizeLinear":
            x = extreme(r, (2, 3), kind, share)
        else:
            x = extreme(r, (2, 3), dtype, share)
            x = np.where(np.isnan(x), dtype.type(1), x)  # NaN has no integer
        return [x, scale, np.asarray(zero) if has_zero else None]

    return Sample(name, inputs)


QUOTIENTS = frozenset(("train.cumprod_grad",))
"""Ops that divide by what they multiplied before, as PyTorch does: not for denormals."""


FACTORING = frozenset(("Det", "train.slogdet", "train.slogdet_grad"))
"""
Ops that factor matrices. PyTorch's LAPACK multiplies by the reciprocal of the largest element
of a column, which is infinite for a denormal, so that `torch.linalg.det` is NaN for a
matrix with a row of denormals: not for numbers whose products are denormals.
"""


INVERTING = frozenset(("train.slogdet", "train.slogdet_grad"))
"""
Those of them that are not defined for singular matrices. Rounding decides whether such a
matrix has a logarithm of -inf or -40, and an inverse of NaN, infinities or huge numbers.
"""


LARGEST_CONDITION = 1e3
"""
Of these matrices: the error of an inverse grows with the square of the condition number, and
is large enough at this one in 32 bits.
"""


def known_case(draw: Draw) -> Sample:
    """
    An op of the tests of sharding rules, of any dialect, with special numbers in the place of
    some of its floats. They are finite: how NaN and infinities spread in gradients and in
    what is interpolated, no standard says, and PyTorch's own kernels differ in it.
    """
    case = pick(draw, cases())
    share = 0.0 if case.name in QUOTIENTS else pick(draw, [0.0, 0.0, 0.1, 0.4])

    def inputs(r: np.random.Generator) -> Inputs:
        found: Inputs = []
        for position, array in enumerate(case.inputs):
            changes = array is not None and position not in case.constants
            if not changes or not is_float(array.dtype):
                found.append(array)
                continue
            new = finite(r, array.shape, array.dtype, 1.0)
            if case.name in FACTORING:
                new = np.where(np.abs(new) < 1e-8, 0, new).astype(array.dtype)
            new = np.where(r.random(array.shape) < share, new, array)
            if case.name in INVERTING and array.ndim >= 2:
                is_regular = _conditions(new) <= LARGEST_CONDITION
                new = np.where(is_regular[..., None, None], new, array)
            found.append(new)
        return found

    return Sample(
        case.name.removeprefix("onnx."),
        inputs,
        case.attributes,
        case.constants,
        case.results,
        sums=True,
        magnified=lambda given: _magnified(case.name, given),
        make=case.make,
    )


def _conditions(matrices: Array) -> Array:
    """The condition numbers of matrices [..., n, n]."""
    return np.asarray(np.linalg.cond(matrices.astype(np.float64)))


def _magnified(name: str, given: Sequence[Any]) -> float:
    """
    By how much rounding errors grow: those of a determinant, relative to it, by the condition
    number of the matrix, and those of an inverse, relative to its norm, by the same.
    """
    if name not in INVERTING:
        return 1.0
    matrices = next(a for a in given if a is not None and a.ndim >= 2)
    conditions = _conditions(matrices)
    if name == "train.slogdet_grad":
        inverses = np.linalg.inv(matrices.astype(np.float64))
        conditions = conditions * np.linalg.norm(inverses, axis=(-2, -1))
    return float(np.max(conditions, initial=1.0))


FAMILIES = [
    *(unary, unary, unary, binary, binary, reduction, reduction, along_axis, pool),
    *(
        product,
        normalization,
        attention,
        rearrangement,
        rearrangement,
        where,
        clip,
        cast,
    ),
    *(quantization, known_case, known_case, known_case),
]


def any_sample(draw: Draw) -> Sample:
    return pick(draw, FAMILIES)(draw)


def typed_shape(value: SSAValue) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.get_shape()
