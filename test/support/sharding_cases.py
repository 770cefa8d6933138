"""At least one case for every ONNX operator that has a sharding rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distir.dialects.onnx_ops.elementwise import OPERATORS
from distir.dialects.onnx_ops.values import constant_attr
from support.sharding_harness import Array, Case

_rng = np.random.default_rng(7)


class Const:
    """An input that comes from an onnx.Constant."""

    def __init__(self, value: Any, dtype: Any = np.int64):
        self.array = np.array(value, dtype=dtype)


def f(*shape: int) -> Array:
    """Returns whole numbers from -4 to 4, so that sums are exact."""
    return _rng.integers(-4, 5, shape).astype(np.float32)


def real(*shape: int) -> Array:
    return _rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return _rng.uniform(0.5, 1.0, shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    return _rng.integers(low, high, shape).astype(dtype)


def boolean(*shape: int) -> Array:
    return _rng.integers(0, 2, shape).astype(bool)


CASES: list[Case] = []


def case(
    name: str,
    *inputs: Array | Const | None,
    results: int = 1,
    label: str = "",
    **attributes: Any,
) -> None:
    CASES.append(
        Case(
            name,
            [i.array if isinstance(i, Const) else i for i in inputs],
            attributes,
            frozenset(p for p, i in enumerate(inputs) if isinstance(i, Const)),
            results,
            label
            or ",".join(f"{k}={v}" for k, v in attributes.items()).replace(" ", ""),
        )
    )


# Elementwise
_DOMAIN: dict[str, Sequence[Any]] = {
    "Acosh": [positive(6, 4) + 1],
    "Atanh": [positive(6, 4) / 2],
    "BitwiseNot": [integers(0, 99, 6, 4)],
    "Not": [boolean(6, 4)],
    "Reciprocal": [positive(6, 4)],
}
for _name, _row in sorted(OPERATORS.items()):
    if _row.of_several or _row.linear:
        continue
    _data = _DOMAIN.get(_name, [positive(6, 4)])
    _attributes: dict[str, Any] = {"to": 6} if _name == "BitCast" else {}
    case(_name, *_data, **_attributes)
for _name in ("And", "Or", "Xor"):
    case(_name, boolean(6, 4), boolean(4))
for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    case(_name, integers(0, 99, 6, 4), integers(0, 99, 6, 1))
for _name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
    case(_name, f(6, 4), f(2, 1, 4))
case(
    "BitShift",
    integers(0, 99, 6, 4, dtype=np.uint32),
    integers(0, 5, 4, dtype=np.uint32),
    direction="LEFT",
)
case("Mod", integers(0, 99, 6, 4), integers(1, 9, 4))
case("Pow", positive(6, 4), positive(6, 1))
case("PRelu", f(6, 4), f(4))
case("SwiGLU", real(6, 4), real(6, 4))
case("Clip", f(6, 4), Const(-1, np.float32), np.array(2, np.float32))
case("Clip", f(6, 4), None, np.array(2, np.float32))
for _name in ("Add", "Sub", "Mul"):
    case(_name, f(6, 4), f(6, 4))
    case(_name, f(2, 1, 4), f(6, 1))
    case(_name, integers(-4, 5, 6, 4), integers(-4, 5, 4))
    case(_name, f(6, 4), f())
case("Div", f(6, 4), positive(4))
case("Div", integers(1, 99, 6, 4), integers(1, 9, 4), label="integers")
for _name in ("Sum", "Mean", "Max", "Min"):
    case(_name, f(6, 4), f(4), f(6, 1))
    case(_name, f(6, 4))
case("Where", boolean(6, 1), f(6, 4), f(4))
case("Where", boolean(6, 1), f(6, 4), Const(0, np.float32), label="else zero")
case("Where", boolean(6, 1), Const(0, np.float32), f(6, 4), label="if zero")
case("Where", boolean(6, 1), f(6, 4), Const(1, np.float32), label="else one")
case("Neg", f(6, 4))
case("Identity", f(6, 4))
case("Identity", integers(-9, 9, 6, 4))
case("Cast", f(6, 4), to=11)
case("Cast", f(6, 4).astype(np.float16), to=1)
case("Cast", f(6, 4), to=10)
case("Cast", integers(-4, 4, 6, 4), to=1)
case("CastLike", f(6, 4), np.zeros((6, 4), np.float64))
case("CastLike", f(6, 4), np.zeros((4,), np.float16))
case("Dropout", f(6, 4))
case("Dropout", f(6, 4), Const(0.5, np.float32), Const(False, bool))
case("Dropout", f(6, 4), Const(0.5, np.float32), results=2)
case("QuantizeLinear", real(6, 4), np.array(0.1, np.float32), np.array(3, np.uint8))
case(
    "QuantizeLinear", real(6, 4), positive(4), integers(0, 9, 4, dtype=np.uint8), axis=1
)
case("DequantizeLinear", integers(0, 99, 6, 4, dtype=np.uint8), positive(6), axis=0)

# Contractions
case("MatMul", f(6, 4), f(4, 12))
case("MatMul", f(2, 6, 4), f(4, 12))
case("MatMul", f(2, 6, 6, 4), f(2, 6, 4, 2))
case("MatMul", f(6, 1, 6, 4), f(2, 4, 2))
case("MatMul", f(4), f(4, 6))
case("MatMul", f(6, 4), f(4))
case("MatMul", f(4), f(6, 4, 2))
case("MatMul", f(12), f(12))
case(
    "MatMulInteger",
    integers(0, 9, 6, 4, dtype=np.uint8),
    integers(0, 9, 4, 12, dtype=np.uint8),
    np.array(2, np.uint8),
)
case(
    "MatMulInteger",
    integers(0, 9, 6, 4, dtype=np.uint8),
    integers(0, 9, 4, 12, dtype=np.uint8),
)
case("Gemm", f(6, 4), f(4, 12))
case("Gemm", f(6, 4), f(4, 12), f(12))
case("Gemm", f(4, 6), f(12, 4), f(6, 1), transA=1, transB=1, alpha=0.5, beta=2.0)
case("Gemm", f(6, 4), f(12, 4), transB=1, alpha=0.5)
case("Gemm", f(6, 4), f(4, 12), f())
case("Einsum", f(2, 6, 4), f(4, 6), equation="bij,jk->bik")
case("Einsum", f(2, 6, 4), f(2, 6, 4), equation="b h d, b k d -> b h k", label="spaces")
case("Einsum", f(6, 4), equation="ij->j")
case("Einsum", f(2, 6, 4), f(2, 6, 8), equation="zba,zbc->ac", label="order")
case("Einsum", f(6, 4), f(4, 6), equation="ij,jk")
case("Einsum", f(6, 6), equation="ii->i")
case("Einsum", f(6, 4), f(6), f(4), equation="ij,i,j->ji")
case("Einsum", f(2, 6, 4), equation="...ij->...ji")

# Regrouping dimensions
case("Transpose", f(2, 6, 4))
case("Transpose", f(2, 6, 4, 3), perm=[0, 2, 1, 3])
for _source, _target in (
    ((24,), (2, 12)),
    ((2, 12), (24,)),
    ((2, 6, 12), (2, 6, 3, 4)),
    ((2, 6, 3, 4), (2, 6, 12)),
    ((4, 6), (6, 4)),
    ((2, 6, 4), (12, 1, 4)),
    ((6, 4, 4), (24, 4)),
    ((36, 1), (4, 9)),
    ((6, 4, 10), (12, 20)),
    ((1, 1), (1,)),
):
    case("Reshape", f(*_source), Const(_target))
case("Reshape", f(4, 12), Const([0, -1, 3]), label="copied")
case("Reshape", f(4, 12), np.array([4, 4, 3]), label="argument")
case("Flatten", f(2, 6, 4), axis=2)
case("Flatten", f(2, 6, 4), axis=0)
case("Squeeze", f(2, 1, 6, 1))
case("Squeeze", f(2, 1, 6, 1), Const([1]))
case("Unsqueeze", f(2, 6), Const([0, 2]))
case("Constant", value=constant_attr(np.full((6, 4), 2.5, np.float32)), label="equal")
case("Constant", value=constant_attr(np.arange(6)), label="others")
case("ConstantOfShape", Const([6, 4]))
case("Expand", f(6, 1), Const([2, 6, 4]))
case("Expand", f(2, 6, 4), Const([6, 1]), label="smaller")
case("Tile", f(6, 4), Const([2, 3]))
case("Tile", f(6, 4), np.array([1, 2]))
case("DepthToSpace", f(2, 24, 4, 6), blocksize=2)
case("DepthToSpace", f(2, 24, 4, 6), blocksize=2, mode="CRD")
case("SpaceToDepth", f(2, 6, 4, 12), blocksize=2)

# Parts
case("Concat", f(6, 4), f(6, 4), f(6, 4), axis=1)
case("Concat", f(6, 4), f(6, 12), f(6, 8), axis=-1)
case("Concat", f(6, 4), f(6, 3), axis=1)
case("Concat", f(6, 4), axis=0)
case("Concat", f(6, 0), f(6, 4), axis=1)
case("Slice", f(6, 12), Const([2]), Const([2]), Const([1]))
case("Split", f(6, 4), Const([4, 0]), results=2, axis=1)
case("Split", f(6, 36), results=3, axis=1, num_outputs=3)
case("Split", f(6, 36), Const([12, 12, 12]), results=3, axis=-1)
case("Split", f(6, 24), Const([12, 6, 6]), results=3, axis=1)
case("Split", f(7, 6), results=3, num_outputs=3)
case("Slice", f(6, 12), Const([0]), Const([6]), Const([1]))
case("Slice", f(6, 12), Const([6]), Const([2**62]), Const([-1]), Const([1]))
case("Slice", f(6, 12), Const([0, -12]), Const([2**62, 12]))
case("Slice", f(6, 12), Const([-1]), Const([-(2**62)]), Const([0]), Const([-1]))
case("Slice", f(6, 12), Const([1, 4]), Const([5, 8]), Const([0, 1]), Const([2, 1]))
case("Slice", f(6, 12), np.array([1]), np.array([3]), np.array([0]), label="arguments")
case(
    "Slice",
    f(6, 12),
    np.array([0]),
    np.array([-12]),
    np.array([1]),
    np.array([-1]),
    label="step argument",
)
case("Pad", f(6, 4), Const([0, 1, 0, 2]))
case("Pad", f(6, 4), Const([1, 2]), np.array(3, np.float32), Const([0]))
case("Pad", f(6, 4), Const([1, -1]), np.array(3, np.float32), Const([0]), label="shift")
case("Pad", f(6, 4), Const([0, 1, 0, 2]), mode="reflect")
case("Pad", f(6, 4), np.array([0, 1, 0, 2]), label="argument")

# Look-ups
case("Gather", f(12, 4), integers(-12, 12, 2, 6))
case("Gather", f(12, 4), integers(0, 12, 6, dtype=np.int32))
case("Gather", f(4, 12, 6), integers(-12, 12, 6), axis=1)
case("Gather", f(4, 12), integers(-12, 12, 6, 2), axis=-1)
case("Gather", f(12, 4), integers(0, 12))
case("Gather", boolean(12, 4), integers(0, 12, 6))
case("Gather", integers(0, 99, 12), integers(0, 12, 6))
case("GatherElements", f(6, 12), integers(-12, 12, 6, 4), axis=1)
case("GatherElements", f(12, 6), integers(0, 12, 4, 3), axis=0)
case("GatherND", f(2, 6, 4), integers(0, 2, 4, 2))
case("GatherND", f(2, 6, 4), integers(0, 6, 2, 6, 1), batch_dims=1)
case("ScatterElements", f(6, 4), np.array([[1, 3, 0, 2]] * 6), f(6, 4), axis=1)
case("ScatterElements", f(6, 4), integers(0, 6, 2, 4), f(2, 4), reduction="add")
case("ScatterElements", f(6, 4), integers(0, 6, 2, 3), f(2, 3), reduction="max")
case("ScatterND", f(6, 4), np.array([[1], [4]]), f(2, 4))
case("ScatterND", f(6, 4, 2), integers(0, 4, 3, 2), f(3, 2), reduction="add")
case("ScatterND", f(6, 4), integers(0, 6, 12, 1), f(12, 4), reduction="add")
case("ScatterElements", f(6, 4), integers(0, 6, 12, 4), f(12, 4), reduction="add")
case("TensorScatter", f(2, 6, 12, 4), f(2, 6, 2, 4), np.array([1, 3]))
case("OneHot", integers(0, 4, 6, 2), Const(4), Const([0, 1], np.float32))
case("OneHot", integers(0, 4, 6, 2), Const(4), Const([0, 1], np.float32), axis=0)
case("Trilu", f(6, 4, 4))
case("Trilu", f(6, 4, 4), np.array(1), upper=0)

# Reductions
for _name in (
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceProd",
):
    case(_name, f(6, 4, 12), Const([1]))
    case(_name, f(6, 4, 12), Const([0, -1]), keepdims=0)
    case(_name, f(6, 4))
    case(_name, f(6, 4), noop_with_empty_axes=1)
for _name in ("ReduceLogSum", "ReduceLogSumExp"):
    case(_name, positive(6, 4, 12), Const([-1]))
case("ReduceSum", f(6, 4), np.array([1]), label="argument")
case("ReduceMean", integers(0, 99, 6, 4), Const([1]), label="integers")
case("ReduceMax", boolean(6, 4), Const([1]), label="booleans")
case("ArgMax", real(6, 4), axis=1, keepdims=0)
case("ArgMin", real(6, 4), axis=-2)
case("TopK", real(6, 4), Const([2]), results=2)
case("CumSum", f(6, 4), Const(1))
case("CumSum", f(6, 4), np.array(0), label="argument")
case("CumProd", f(6, 4), Const(1))
case("GridSample", real(4, 6, 5, 3), real(4, 6, 2, 2))
case("GridSample", real(2, 4, 2, 3, 2), real(2, 4, 2, 3, 3), label="of volumes")
case("Det", real(6, 4, 3, 3))
case("DFT", real(6, 4, 2))
case("DFT", real(6, 4, 12, 1), None, Const(1), label="of real numbers")
case("DFT", real(4, 6, 2), None, Const(0), inverse=1)

# Normalisation
for _name in ("Softmax", "LogSoftmax", "Hardmax"):
    case(_name, real(6, 4, 12))
    case(_name, real(6, 4, 12), axis=1)
case("LpNormalization", real(6, 4), axis=0)
case("LayerNormalization", real(2, 6, 4), real(4), real(4))
case("LayerNormalization", real(2, 6, 4), real(6, 4), axis=-2, results=3)
case("RMSNormalization", real(2, 6, 4), real(4))
case("MeanVarianceNormalization", real(2, 6, 4, 4))
case("LRN", real(2, 6, 4, 4), size=3)
case("InstanceNormalization", real(2, 6, 4, 4), real(6), real(6))
case("GroupNormalization", real(2, 12, 4, 4), real(12), real(12), num_groups=6)
case("BatchNormalization", real(2, 6, 4), real(6), real(6), real(6), positive(6))
case(
    "BatchNormalization",
    real(2, 6, 4),
    real(6),
    real(6),
    real(6),
    positive(6),
    training_mode=1,
    results=3,
)

# Attention
case("Attention", real(2, 6, 4, 4), real(2, 6, 6, 4), real(2, 6, 6, 2))
case("Attention", real(2, 12, 4, 4), real(2, 6, 6, 4), real(2, 6, 6, 2), is_causal=1)
case("Attention", real(2, 6, 4, 4), real(2, 1, 6, 4), real(2, 1, 6, 4), scale=0.5)
case(
    "Attention",
    real(2, 4, 24),
    real(2, 6, 24),
    real(2, 6, 12),
    q_num_heads=6,
    kv_num_heads=6,
)
case(
    "Attention",
    real(2, 4, 48),
    real(2, 6, 24),
    real(2, 6, 12),
    q_num_heads=12,
    kv_num_heads=6,
    is_causal=1,
)
case(
    "Attention",
    real(2, 4, 48),
    real(2, 6, 8),
    real(2, 6, 8),
    boolean(4, 6),
    q_num_heads=12,
    kv_num_heads=2,
)
case(
    "Attention",
    real(2, 6, 4, 4),
    real(2, 6, 6, 4),
    real(2, 6, 6, 2),
    real(6, 4, 6),
    label="head mask",
)
case(
    "Attention",
    real(2, 6, 4, 4),
    real(2, 6, 6, 4),
    real(2, 6, 6, 2),
    real(2, 1, 1, 6),
    label="batch mask",
)
case(
    "Attention",
    real(2, 6, 4, 4),
    real(2, 6, 2, 4),
    real(2, 6, 2, 2),
    real(4, 6),
    real(2, 6, 4, 4),
    real(2, 6, 4, 2),
    results=4,
    label="past",
)
case(
    "Attention",
    real(2, 4, 24),
    real(2, 2, 24),
    real(2, 2, 24),
    None,
    real(2, 6, 4, 4),
    real(2, 6, 4, 4),
    results=3,
    is_causal=1,
    q_num_heads=6,
    kv_num_heads=6,
)
case(
    "Attention",
    real(2, 6, 4, 4),
    real(2, 6, 6, 4),
    real(2, 6, 6, 4),
    None,
    None,
    None,
    np.array([3, 5]),
    label="lengths",
)
case(
    "RotaryEmbedding", real(2, 6, 4, 8), real(12, 4), real(12, 4), integers(0, 12, 2, 4)
)
case("RotaryEmbedding", real(2, 4, 48), real(2, 4, 4), real(2, 4, 4), num_heads=6)
case(
    "RotaryEmbedding",
    real(2, 6, 4, 8),
    real(2, 4, 2),
    real(2, 4, 2),
    rotary_embedding_dim=4,
    num_heads=6,
)

# Convolution and pooling
case("Conv", f(2, 6, 5, 5), f(4, 6, 3, 3), pads=[1, 1, 1, 1])
case("Conv", f(2, 6, 8), f(4, 6, 3), f(4), strides=[2])
case("Conv", f(2, 12, 5, 5), f(12, 2, 3, 3), group=6)
case("Conv", f(2, 6, 5, 5), f(6, 1, 3, 3), f(6), group=6)
case("ConvTranspose", f(2, 6, 5, 5), f(6, 4, 3, 3))
case("ConvTranspose", f(2, 6, 5), f(6, 2, 3), f(4), group=2, strides=[2])
case("AveragePool", f(2, 6, 4, 4), kernel_shape=[2, 2], strides=[2, 2])
case("MaxPool", f(2, 6, 4, 4), kernel_shape=[2, 2], strides=[2, 2])
case("MaxPool", f(2, 6, 4, 4), kernel_shape=[2, 2], strides=[2, 2], results=2)
case("LpPool", f(2, 6, 4, 4), kernel_shape=[2, 2])
for _name in ("GlobalAveragePool", "GlobalMaxPool"):
    case(_name, f(2, 6, 4, 4))

# Questions about shapes
case("Shape", f(2, 6, 4))
case("Shape", f(2, 6, 4), start=1)
case("Shape", f(2, 6, 4), start=-2, end=-1)
case("Size", f(2, 6, 4))

case("Resize", f(2, 6, 4, 4), None, None, Const([2, 6, 8, 8]))
case("Resize", f(2, 6, 4, 4), None, Const([1, 1, 2, 2], np.float32), mode="linear")
case("Resize", f(2, 6, 4, 4), None, None, Const([8, 8]), axes=[2, 3])

# Losses
for _name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
    for _reduction in ("mean", "sum", "none"):
        case(_name, real(6, 5), integers(0, 5, 6), reduction=_reduction)
        case(_name, real(6, 5, 4), integers(0, 5, 6, 4), reduction=_reduction)
    case(_name, real(6, 5), integers(0, 5, 6), positive(5), reduction="mean")
    case(_name, real(6, 5), integers(0, 5, 6), ignore_index=2, reduction="sum")
    case(_name, real(6, 5), integers(0, 5, 6), ignore_index=2, reduction="mean")
for _reduction in ("mean", "sum"):
    # As many classes as can be split.
    _rows = real(6, 4), integers(0, 4, 6)
    case("SoftmaxCrossEntropyLoss", *_rows, reduction=_reduction)
    case("SoftmaxCrossEntropyLoss", *_rows, reduction=_reduction, ignore_index=2)
for _reduction in ("mean", "sum", "none"):
    case(
        *("SoftmaxCrossEntropyLoss", real(6, 5), integers(0, 5, 6)),
        results=2,
        reduction=_reduction,
    )

# Recurrent layers
case("LSTM", real(3, 6, 4), real(1, 8, 4), real(1, 8, 2), results=3, hidden_size=2)
case(
    "GRU",
    real(3, 6, 4),
    real(1, 6, 4),
    real(1, 6, 2),
    None,
    None,
    real(1, 6, 2),
    results=2,
    hidden_size=2,
)
case(
    "RNN",
    real(6, 3, 4),
    real(1, 2, 4),
    real(1, 2, 2),
    results=2,
    hidden_size=2,
    layout=1,
)
_both: dict[str, Any] = {"hidden_size": 2, "direction": "bidirectional"}
case(
    *("LSTM", real(3, 6, 4), real(2, 8, 4), real(2, 8, 2), real(2, 16), None),
    *(real(2, 6, 2), real(2, 6, 2), real(2, 6)),
    results=3,
    **_both,
)
case("GRU", real(3, 6, 4), real(2, 6, 4), real(2, 6, 2), results=2, **_both)
case(
    *("RNN", real(3, 6, 4), real(2, 2, 4), real(2, 2, 2)),
    results=2,
    activations=["Tanh", "Tanh"],
    **_both,
)
