"""
What fuzzing found of NaN, infinities, large integers and empty tensors: the reference
interpreter and the generated package, next to PyTorch and onnxruntime.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fuzz.operator_samples import Sample
from fuzz.operators import Operator, Wrong

NAN, INF = np.nan, np.inf


def f32(*values: Any) -> Any:
    return np.array(values, np.float32)


def image(first: float) -> Any:
    found = np.ones((1, 1, 3, 3), np.float32)
    found[0, 0, 0, 0] = first
    return found


QKV = [np.random.default_rng(i).standard_normal((1, 1, 2, 4)) for i in range(3)]
QKV = [x.astype(np.float32) for x in QKV]
HIDDEN = np.array([[False, False], [True, False]])
BF16 = ml_dtypes.bfloat16
LARGE = np.array([3, 2**64 - 1, 2**63], np.uint64)

CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "mean of i32": ("ReduceMean", [np.full(4, 2_000_000_000, np.int32)], {}),
    "mean of u32": ("ReduceMean", [np.full(4, 2**32 - 1, np.uint32)], {}),
    "mean of none": ("ReduceMean", [np.zeros(0, np.int32)], {}),
    "norm of i32": ("ReduceL2", [np.array([2147483646], np.int32)], {}),
    "norm of i64": ("ReduceL2", [np.array([2**40, 2**40], np.int64)], {}),
    "norm of u64": ("ReduceL1", [LARGE], {}),
    "logarithms of inf": ("ReduceLogSumExp", [f32(INF, 1)], {}),
    "maximum of u64": ("ReduceMax", [LARGE], {}),
    "minimum of bf16": ("ReduceMin", [f32(1, NAN, 2).astype(BF16)], {}),
    "place of u64": ("ArgMax", [LARGE], {}),
    "NaN in a mean pool": ("AveragePool", [image(NAN)], {"kernel_shape": [2, 2]}),
    "NaN in a norm pool": ("LpPool", [image(NAN)], {"kernel_shape": [2, 2], "p": 2}),
    **{
        f"{name} {options} of less than a window": (
            name,
            [np.arange(-5, 3, dtype=np.float32).reshape(1, 2, 1, 4)],
            {"kernel_shape": [2, 2], "strides": [2, 2], **options},
        )
        for name, options in (
            ("MaxPool", {}),
            ("LpPool", {}),
            ("AveragePool", {}),
            ("AveragePool", {"count_include_pad": 1}),
            ("AveragePool", {"count_include_pad": 1, "ceil_mode": 1}),
        )
    },
    "sign of NaN": ("Sign", [f32(NAN, -2, 0)], {}),
    "gelu of large numbers": ("Gelu", [f32(3e38, -3e38)], {"approximate": "tanh"}),
    "attention that sees no key": ("Attention", [*QKV, HIDDEN], {}),
    "masks of infinity": (
        "Attention",
        [*QKV, np.where(HIDDEN, 0, -INF).astype(np.float32)],
        {},
    ),
    "infinite values": ("Attention", [*QKV[:2], QKV[2] * INF, HIDDEN], {}),
    "norm of infinity": ("LpNormalization", [f32(1.5, INF)], {"axis": 0, "p": 2}),
    "hardmax of none": ("Hardmax", [np.zeros((2, 0), np.float32)], {"axis": 0}),
    "one-hot infinity": ("OneHot", [np.array([0, 5]), np.array(3), f32(-INF, 1)], {}),
    "mean in f16": ("Mean", [f32(-65504).astype(np.float16)] * 2, {}),
    "quantised infinity": (
        "QuantizeLinear",
        [f32(65504, -65504).astype(np.float16), np.float16([0.4])[0]],
        {},
    ),
    "products of u64": ("CumProd", [LARGE, np.array(0)], {}),
    "sums of none": (
        "CumSum",
        [np.zeros((0,), np.int64), np.array(0)],
        {"exclusive": 1},
    ),
    "gathered u32": (
        "GatherElements",
        [np.array([1, 2**32 - 1], np.uint32), np.array([1, 0])],
        {},
    ),
    "scattered NaN": (
        "ScatterElements",
        [f32(1, NAN, 3), np.array([0, 1]), f32(NAN, 1)],
        {"axis": 0, "reduction": "min"},
    ),
    "u16 in einsum": (
        "Einsum",
        [np.full((2, 2), 60000, np.uint16)] * 2,
        {"equation": "ij,jk->ik"},
    ),
    "clipped u16": (
        "Clip",
        [np.array([1, 65535], np.uint16), np.uint16(3), np.uint16(9)],
        {},
    ),
    "slopes of u32": (
        "PRelu",
        [np.array([7], np.uint32), np.array([3], np.uint32)],
        {},
    ),
    "powers of bf16": (
        "Pow",
        [np.full(2, 1e-38, BF16), np.array(-0.58642578125, np.float16)],
        {},
    ),
    "f16 powers of one f32": (
        "Pow",
        [np.array(-1e-7, np.float32), np.array([-3, 2], np.float16)],
        {},
    ),
    "i8 powers of one i32": (
        "Pow",
        [np.array(300, np.int32), np.array([2, 3], np.int8)],
        {},
    ),
    "thresholds of NaN": ("ThresholdedRelu", [f32(NAN, 2).astype(BF16)], {}),
    "instances in bf16": (
        "InstanceNormalization",
        [
            (np.arange(16) * 0.37 % 3 - 1.5).reshape(1, 2, 8).astype(BF16),
            f32(3, 2).astype(BF16),
            f32(0, 1).astype(BF16),
        ],
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_ours_are_like_others(name: str) -> None:
    operator, inputs, attributes = CASES[name]
    inputs = [np.asarray(a) for a in inputs]
    constants = frozenset(
        i
        for i, a in enumerate(inputs)
        if i and (operator == "Clip" or (a.dtype == np.int64 and a.ndim == 0))
    )
    sample = Sample(operator, lambda r: inputs, attributes, constants, sums=True)
    assert Operator(sample, inputs).judge(inputs) != "refused"


def test_places_of_the_least_number_are_not_those_of_padding() -> None:
    x = np.zeros((1, 1, 4), np.uint8)
    attributes = {"kernel_shape": [2], "pads": [1, 0], "strides": [2]}
    sample = Sample("MaxPool", lambda r: [x], attributes, results=2)
    assert Operator(sample, [x]).judge([x]) != "refused"


def test_an_exponent_is_not_rounded_to_the_type_of_the_base() -> None:
    inputs = [np.full(2, -1, np.float16), np.array(2049, np.float32)]
    operator = Operator(Sample("Pow", lambda r: inputs), inputs)
    assert operator.judge(inputs) != "refused"


def test_a_wrong_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample("Relu", lambda r: [f32(-1, 2)])
    operator = Operator(sample, [f32(-1, 2)])
    monkeypatch.setattr(operator, "_run", lambda inputs: list(inputs))
    with pytest.raises(Wrong, match="the package"):
        operator.judge([f32(-1, 2)])
