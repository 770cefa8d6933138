"""Small ONNX models of many kinds of nodes, and mutations of what is in a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from fuzz.damage import mutated_bytes
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support.random_programs import Draw

FLOATS, INTEGERS = TensorProto.FLOAT, TensorProto.INT64


def _weights(**arrays: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    weights: list[onnx.TensorProto],
    opset: int = 21,
    **more: Any,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, *t) for n, t in outputs.items()],
        weights,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)
    return model.SerializeToString()


def _perceptron() -> bytes:
    one = np.ones
    return _model(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5),
            helper.make_node("Relu", ["h"], ["a"], name="/layer/Relu"),
            helper.make_node("MatMul", ["a", "v"], ["m"]),
            helper.make_node("LayerNormalization", ["m", "s", "t"], ["n"], axis=-1),
            helper.make_node("Softmax", ["n"], ["y"], axis=-1),
        ],
        {"x": (FLOATS, ["batch", 4])},
        {"y": (FLOATS, ["batch", 6])},
        _weights(
            w=one((8, 4), np.float32),
            b=one(8, np.float32),
            v=one((8, 6), np.float32),
            s=one(6, np.float32),
            t=one(6, np.float32),
        ),
    )


def _shapes() -> bytes:
    return _model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
            helper.make_node("Unsqueeze", ["n", "axes"], ["u"]),
            helper.make_node("Concat", ["u", "rest"], ["shape"], axis=0),
            helper.make_node("Reshape", ["x", "shape"], ["r"]),
            helper.make_node("Transpose", ["r"], ["p"], perm=[0, 2, 1]),
            helper.make_node("Slice", ["p", "axes", "two", "one"], ["q"]),
            helper.make_node("Split", ["q"], ["a", "b"], axis=2, num_outputs=2),
            helper.make_node("ReduceMean", ["a", "one"], ["c"], keepdims=1),
            helper.make_node("Add", ["c", "b"], ["y"]),
            helper.make_node("Resize", ["r4", "", "scales"], ["z"], mode="nearest"),
        ],
        {"x": (FLOATS, [2, 24]), "r4": (FLOATS, [1, 1, 4, 4])},
        {"y": (FLOATS, [2, 2, 2]), "z": (FLOATS, [1, 1, 8, 8])},
        _weights(
            zero=np.array(0),
            axes=np.array([0]),
            one=np.array([1]),
            two=np.array([2]),
            rest=np.array([4, 6]),
            scales=np.array([1, 1, 2, 2], np.float32),
        ),
    )


def _branches() -> bytes:
    def body(name: str) -> onnx.GraphProto:
        node = helper.make_node(name, ["x"], [f"{name}_y"])
        result = helper.make_tensor_value_info(f"{name}_y", FLOATS, [2, 4])
        return helper.make_graph([node], name, [], [result])

    loop = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Add", ["v", "x"], ["w"]),
        ],
        "loop",
        [
            helper.make_tensor_value_info("i", INTEGERS, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOATS, [2, 4]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", FLOATS, [2, 4]),
        ],
    )
    return _model(
        [
            helper.make_node(
                "If", ["yes"], ["h"], then_branch=body("Relu"), else_branch=body("Neg")
            ),
            helper.make_node("Loop", ["three", "yes", "h"], ["y"], body=loop),
        ],
        {"x": (FLOATS, [2, 4])},
        {"y": (FLOATS, [2, 4])},
        _weights(yes=np.array(True), three=np.array(3)),
    )


def _functions() -> bytes:
    function = helper.make_function(
        "local",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [helper.make_opsetid("", 21)],
    )
    return _model(
        [
            helper.make_node("Twice", ["x"], ["t"], domain="local"),
            helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0, 3.0, 4.0]),
            helper.make_node("Mul", ["t", "k"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "scale", "zp"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zp"], ["d"]),
            helper.make_node("Cast", ["d"], ["e"], to=TensorProto.FLOAT16),
            helper.make_node("Einsum", ["e", "e"], ["y"], equation="ij,kj->ik"),
        ],
        {"x": (FLOATS, [2, 4])},
        {"y": (TensorProto.FLOAT16, [2, 2])},
        _weights(scale=np.array(0.1, np.float32), zp=np.array(3, np.uint8)),
        functions=[function],
    )


def _images() -> bytes:
    one = np.ones
    return _model(
        [
            helper.make_node(
                "Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]
            ),
            helper.make_node("BatchNormalization", ["h", "s", "s", "s", "s"], ["n"]),
            helper.make_node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2]),
            helper.make_node("GlobalAveragePool", ["p"], ["g"]),
            helper.make_node("Flatten", ["g"], ["f"]),
            helper.make_node("Pad", ["f", "pads"], ["y"]),
        ],
        {"x": (FLOATS, [2, 3, 8, 8])},
        {"y": (FLOATS, [2, 6])},
        _weights(
            w=one((4, 3, 3, 3), np.float32),
            s=one(4, np.float32),
            pads=np.array([0, 1, 0, 1]),
        ),
        opset=18,
    )


def models() -> list[bytes]:
    """Models that can be imported."""
    return [_perceptron(), _shapes(), _branches(), _functions(), _images()]


def _parts(message: Message) -> Iterator[Message]:
    """A message and all that it holds."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if hasattr(value, "__len__") else [value]:
            yield from _parts(part)


NUMBERS = [0, -1, 1, 2, 3, 7, 16, 999, 2**31 - 1, -(2**31), 2**62]
TEXTS = [
    "",
    "x",
    "y",
    "w",
    "Add",
    "Reshape",
    "NoSuchOp",
    "ai.onnx.ml",
    "é",
    "a\x00b",
    "/",
]


def mutated_model(draw: Draw, data: bytes) -> bytes:
    """A model with one to three fields changed, left out or repeated; or its bytes."""
    if draw(st.integers(0, 4)) == 0:
        return mutated_bytes(draw, data)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutated_bytes(draw, data)
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        parts = [part for part in _parts(model) if part.ListFields()]
        _mutate(draw, draw(st.sampled_from(parts)), parts)
    return model.SerializeToString()


def _mutate(draw: Draw, message: Message, parts: list[Message]) -> None:
    field, value = draw(st.sampled_from(message.ListFields()))
    if hasattr(value, "append") or hasattr(value, "add"):
        index = draw(st.integers(0, len(value) - 1))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            del value[index]
        elif kind == 1 and field.message_type is not None:
            value.add().CopyFrom(value[index])
        elif kind == 2 and field.message_type is not None:
            alike = [p for p in parts if type(p) is type(value[index])]
            # By way of a copy: protobuf crashes where one is a part of the other.
            copy = type(value[index])()
            copy.CopyFrom(draw(st.sampled_from(alike)))
            value[index].CopyFrom(copy)
        elif field.message_type is None:
            value[index] = _other(draw, value[index])
        return
    if field.message_type is not None or draw(st.integers(0, 4)) == 0:
        message.ClearField(field.name)
    else:
        try:
            setattr(message, field.name, _other(draw, value))
        except ValueError:
            message.ClearField(field.name)


def _other(draw: Draw, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        numbers = [n for n in NUMBERS if abs(n) < 2**31] + [value + 1, value - 1]
        return draw(st.sampled_from(numbers))
    if isinstance(value, float):
        return draw(st.sampled_from([0.0, -1.0, 1e38, float("nan"), float("inf")]))
    if isinstance(value, bytes):
        return mutated_bytes(draw, value)
    return draw(st.sampled_from([*TEXTS, value + "x"]))
