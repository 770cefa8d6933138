"""Our kernels against onnxruntime, where `onnx.reference` is wrong or slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.thoroughness import tries
from xdsl.dialects.builtin import TensorType, UnrankedTensorType, f32
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import element_type_of_dtype
from distir.errors import DistIRError
from distir.interpreters.onnx_evaluator import evaluate


def both(
    name: str, inputs: list[Any], results: int = 1, **attributes: Any
) -> tuple[list[Any], list[Any]]:
    """The results of our evaluator and those of onnxruntime."""
    block = Block()
    operands = [
        block.insert_arg(TensorType(element_type_of_dtype(a.dtype), a.shape), i)
        for i, a in enumerate(inputs)
    ]
    own, is_layer = operands[0].type.element_type, "hidden_size" in attributes
    elements = [own] * 3 if is_layer else [own, element_type_of_dtype(np.int64)]
    op = operator(name).build_op(
        operands, [UnrankedTensorType(elements[i]) for i in range(results)], attributes
    )
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(name, names, outputs, **attributes)
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in zip(names, inputs, strict=True)
    ]
    kinds = [infos[0].type.tensor_type.elem_type, 7]
    kinds = kinds[:1] * 3 if is_layer else kinds
    graph = helper.make_graph(
        [node],
        "g",
        infos,
        [
            helper.make_tensor_value_info(o, k, None)
            for o, k in zip(outputs, kinds, strict=False)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, dict(zip(names, inputs, strict=True)))
    return evaluate(op, inputs), list(expected)


def agree(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_gather_elements(axis: int) -> None:
    data = numbers(100, 80)
    indices = np.random.default_rng(1).integers(-80, 80, (90, 70))
    agree(*both("GatherElements", [data, indices], axis=axis))


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_gather_nd(batch: int, count: int) -> None:
    sizes = (2, 3, 4, 5)
    draw = np.random.default_rng(1).integers
    places = [draw(-n, n, (*sizes[:batch], 7)) for n in sizes[batch : batch + count]]
    indices = np.stack(places, -1)
    agree(*both("GatherND", [numbers(*sizes), indices], batch_dims=batch))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    agree(*both("Gelu", [numbers(7, 9) * 4], approximate=approximate))


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """The dimensions of space of an input, and attributes of windows over them."""
    rank = draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    space = [draw(st.integers(5, 9)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
    }
    mode = draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if mode == "pads":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        attributes["auto_pad"] = mode
        # onnxruntime refuses the negative padding that longer strides would mean.
        steps = zip(attributes["strides"], kernel, strict=True)
        attributes["strides"] = [min(step, k) for step, k in steps]
    if not mode.startswith("SAME"):
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in kernel]
    return space, attributes


@settings(max_examples=tries(40), deadline=None)
@given(windows(), st.booleans(), st.booleans(), st.integers(1, 2))
def test_max_pool(
    case: tuple[list[int], dict[str, Any]], ceil: bool, columns: bool, results: int
) -> None:
    space, attributes = case
    if not attributes.get("auto_pad"):
        attributes["ceil_mode"] = int(ceil)
    x = numbers(2, 3, *space)
    # onnxruntime gives column-major positions for two dimensions of space only.
    if results == 2 and len(space) == 2:
        attributes["storage_order"] = int(columns)
    agree(*both("MaxPool", [x], results, **attributes))


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_window_that_lacks_less_than_a_stride_exists(kernel: int) -> None:
    x = numbers(1, 2, 1, 4)
    options: dict[str, Any] = {"kernel_shape": [kernel, 2], "strides": [2, 2]}
    agree(*both("MaxPool", [x], **options))
    agree(*both("AveragePool", [x], **options))


def test_a_kernel_larger_than_its_input_is_refused() -> None:
    block = Block(arg_types=[TensorType(f32, s) for s in ([1, 1, 1, 4], [3, 1, 2, 2])])
    with pytest.raises(VerifyException, match="larger than the 1 of the padded input"):
        operator("Conv").build_op(
            list(block.args), [TensorType(f32, [1, 3, 1, 2])], {"strides": [2, 2]}
        ).verify()


@settings(max_examples=tries(40), deadline=None)
@given(windows(), st.sampled_from([1, 2]), st.booleans())
def test_convolution(
    case: tuple[list[int], dict[str, Any]], groups: int, bias: bool
) -> None:
    space, attributes = case
    x = numbers(2, 4, *space)
    w = numbers(6, 4 // groups, *attributes["kernel_shape"])
    inputs = [x, w, numbers(6)] if bias else [x, w]
    agree(*both("Conv", inputs, group=groups, **attributes))


def test_what_cannot_be_computed_is_an_error() -> None:
    block = Block(arg_types=[TensorType(element_type_of_dtype(np.float32), [2])] * 2)
    op = operator("MatMul").build_op(
        list(block.args), [TensorType(element_type_of_dtype(np.float32), [])]
    )
    with pytest.raises(DistIRError, match=r"onnx\.MatMul cannot be computed on"):
        evaluate(op, [np.zeros(2, np.float32), np.zeros(3, np.float32)])


def test_an_empty_list_as_attribute() -> None:
    """A scalar's permutation: an empty list does not show its type."""
    scalar = TensorType(f32, [])
    x = Block(arg_types=[scalar]).args[0]
    op = operator("Transpose").build_op([x], [scalar], {"perm": []})
    assert evaluate(op, [np.array(3, np.float32)])[0] == 3


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_global_max_pool_of_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    agree(*both("GlobalMaxPool", [numbers(*shape)]))


def test_mean_of_a_scalar_and_a_matrix() -> None:
    agree(*both("Mean", [numbers(), numbers(4, 8)]))
    agree(*both("Mean", [numbers(4, 1), numbers(8), numbers(4, 8)]))


def test_hard_swish_in_64_bits() -> None:
    """A sixth in 32 bits would be off by 3e-8, which chains of batch norms amplify."""
    x = np.linspace(-4, 4, 33)
    type_ = TensorType(element_type_of_dtype(x.dtype), x.shape)
    block = Block(arg_types=[type_])
    op = operator("HardSwish").build_op(block.args, [type_])
    (found,) = evaluate(op, [x])
    expected = x * np.minimum(np.maximum(x + 3, 0), 6) / 6
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-15)


EXTREME = np.array([[0, 200, -300, 4, 4], [1, 2, 3, 4, 5]], np.float32)


def test_logarithms_of_a_softmax_are_finite() -> None:
    (found,), (expected,) = both("LogSoftmax", [EXTREME], axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(found).all() and found.min() < -200


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("options", [{}, dict(ignore_index=2)], ids=["all", "some"])
def test_losses_of_extreme_scores(reduction: str, options: dict[str, Any]) -> None:
    labels, weights = np.array([2, 4], np.int64), np.arange(1, 6).astype(np.float32)
    for inputs in ([EXTREME, labels], [EXTREME, labels, weights]):
        (found,), (expected,) = both(
            "SoftmaxCrossEntropyLoss", inputs, reduction=reduction, **options
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "options", [{}, dict(exclusive=1), dict(exclusive=1, reverse=1)]
)
def test_sums_along_an_axis(options: dict[str, int]) -> None:
    inputs = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([-1])]
    (found,), (expected,) = both("CumSum", inputs, **options)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_sequences_end_at_their_lengths(kind: str, direction: str) -> None:
    """Beyond its end a sequence has outputs of 0, and it is read backwards from there."""
    gates, d = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], 1 + (direction[0] == "b")
    given = [
        *(numbers(5, 4, 3), numbers(d, gates * 2, 3), numbers(d, gates * 2, 2)),
        *(numbers(d, gates * 4), np.array([5, 2, 1, 2], np.int32), numbers(d, 4, 2)),
    ]
    if kind == "LSTM":
        given.append(numbers(d, 4, 2) + 1)
    count = 3 if kind == "LSTM" else 2
    agree(*both(kind, given, count, hidden_size=2, direction=direction))
