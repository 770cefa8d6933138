"""Branches and loops whose course is known before the program runs become its ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from support.programs import names_by_role, ops_of, round_trip
from xdsl.context import Context

from distir.errors import DistIRError
from distir.frontends.onnx import loops
from distir.frontends.onnx.importer import import_onnx
from distir.interpreters.reference import run_program
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import scope_of

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

node = helper.make_node


def value(name: str, shape: Any, element: int = F32) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def constant(name: str, array: Any) -> NodeProto:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.array(array)))


def graph(nodes: Any, inputs: Any, outputs: Any, **arrays: Any) -> GraphProto:
    tensors = [numpy_helper.from_array(np.array(a), n) for n, a in arrays.items()]
    return helper.make_graph(nodes, "g", inputs, outputs, tensors)


def model_of(inner: GraphProto, opset: int = 17) -> ModelProto:
    return helper.make_model(
        inner, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )


def agrees(
    model: ModelProto, dims: Any = None, numbers: Any = None, **inputs: Any
) -> Any:
    """
    Returns the program of a model, which computes what onnxruntime does. `numbers` are
    inputs that the program does not take.
    """
    numbers = numbers or {}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    types = {i.name: i.type for i in session.get_inputs()}
    fixed = {
        name: np.array(number, np.float32 if "float" in types[name] else np.int64)
        for name, number in numbers.items()
    }
    expected = session.run(None, inputs | fixed)
    imported = import_onnx(model, dims, numbers=numbers)
    FoldShapesPass().apply(Context(), imported.module)
    round_trip(imported.module)
    found = run_program(imported.module, [*inputs.values(), *imported.weights.values()])
    for own, its in zip(found, expected, strict=True):
        assert own.dtype == its.dtype and own.shape == its.shape
        np.testing.assert_allclose(own, its, rtol=1e-5, atol=1e-6)
    return imported.module


def if_node(condition: str, then: GraphProto, other: GraphProto) -> NodeProto:
    return node("If", [condition], ["y"], "h/If", then_branch=then, else_branch=other)


RELU = graph([node("Relu", ["x"], ["r"])], [], [value("r", None)])
SCALED = graph(
    [node("MatMul", ["x", "w"], ["r"]), node("Add", ["r", "b"], ["s"])],
    [],
    [value("s", None)],
    w=np.arange(2500, dtype=np.float32).reshape(50, 50) / 1000,
    b=np.ones(50, np.float32),
)


class TestIf:
    @pytest.mark.parametrize(("size", "op"), [(1, "Relu"), (3, "MatMul")])
    @pytest.mark.parametrize("opset", [11, 17, 21])
    def test_condition_on_a_size(self, size: int, op: str, opset: int):
        nodes = [
            node("Shape", ["x"], ["shape"]),
            constant("zero", 0),
            node("Gather", ["shape", "zero"], ["n"]),
            constant("one", 1),
            node("Equal", ["n", "one"], ["c"]),
            if_node("c", RELU, SCALED),
        ]
        model = model_of(
            graph(nodes, [value("x", ["n", 50])], [value("y", None)]), opset
        )
        x = np.random.default_rng(0).standard_normal((size, 50), np.float32)
        module = agrees(model, {"n": size}, x=x)
        assert ops_of(module, op) and not ops_of(module, "Shape")
        # A branch's own weights are the model's.
        kept = [] if op == "Relu" else ["w", "b"]
        assert names_by_role(module).get("parameter", []) == kept

    def test_branch_inside_of_a_branch(self):
        inner = if_node("c2", RELU, SCALED)
        outer = graph([constant("c2", False), inner], [], [value("y", None)])
        nodes = [constant("c", True), if_node("c", outer, RELU)]
        model = model_of(graph(nodes, [value("x", [2, 50])], [value("y", None)]))
        module = agrees(model, x=np.ones((2, 50), np.float32))
        [op] = ops_of(module, "MatMul")
        assert not ops_of(module, "Relu") and scope_of(op) == ""

    def test_condition_on_an_input_with_a_value(self):
        nodes = [
            constant("wideband", 16000),
            node("Equal", ["sr", "wideband"], ["c"]),
            if_node("c", RELU, SCALED),
        ]
        inputs = [value("x", [2, 50]), value("sr", [], I64)]
        model = model_of(graph(nodes, inputs, [value("y", None)]))
        x = np.ones((2, 50), np.float32)
        module = agrees(model, numbers={"sr": 16000}, x=x)
        assert names_by_role(module) == {"input": ["x"]}
        assert ops_of(agrees(model, numbers={"sr": 8000}, x=x), "MatMul")
        with pytest.raises(DistIRError, match=r"'sr'.*--value sr=NUMBER"):
            import_onnx(model)

    def test_condition_on_data(self):
        nodes = [
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            constant("zero", np.float32(0)),
            node("Greater", ["m", "zero"], ["c"]),
            if_node("c", RELU, SCALED),
        ]
        model = model_of(graph(nodes, [value("x", [2, 50])], [value("y", None)]))
        with pytest.raises(
            DistIRError, match=r"If 'h/If'.*values of 'x'.*control flow"
        ):
            import_onnx(model)


class TestValues:
    """Inputs that a user gives a number."""

    MODEL = model_of(
        graph(
            [node("Mul", ["x", "f"], ["p"]), node("Pow", ["p", "n"], ["y"])],
            [value("x", [2]), value("f", [1]), value("n", [], I64)],
            [value("y", [2])],
        )
    )

    def test_numbers(self):
        x = np.float32([2, 3])
        imported = import_onnx(self.MODEL, numbers={"f": 0.5, "n": 3})
        assert names_by_role(imported.module) == {"input": ["x"]}
        assert not imported.weights
        [y] = run_program(imported.module, [x])
        np.testing.assert_allclose(y, [1, 3.375])
        assert len(self.MODEL.graph.input) == 3  # the caller's model is as it was

    @pytest.mark.parametrize(
        ("numbers", "message"),
        [
            ({"k": 1}, r"no input 'k'.*'f', 'n'"),
            ({"x": 1}, r"'x' is not a single number"),
            ({"n": 1.5}, r"'n' is int64, which 1.5 is not"),
        ],
    )
    def test_wrong_numbers(self, numbers: Any, message: str):
        with pytest.raises(DistIRError, match=message):
            import_onnx(self.MODEL, numbers=numbers)


def loop(
    nodes: Any, scans: Any = (), inputs: Any = ("n", "on", "x"), results: Any = ("y",)
) -> NodeProto:
    """A Loop whose body computes `on_out`, `x_out` and `scans` of `i`, `on_in`, `x_in`."""
    body = graph(
        nodes,
        [value("i", [], I64), value("on_in", [], BOOL), value("x_in", None)],
        [value("on_out", [], BOOL), value("x_out", None), *scans],
    )
    return node("Loop", list(inputs), list(results), "cell/Loop", body=body)


class TestLoop:
    STEP = [
        node("MatMul", ["x_in", "w"], ["m"]),
        node("Cast", ["i"], ["f"], to=F32),
        node("Add", ["m", "f"], ["x_out"]),
    ]
    W = np.float32([[0.5, 0.25], [-1, 2]])
    X = np.float32([[1, 2], [3, 4], [5, 6]])

    @pytest.mark.parametrize("opset", [11, 13, 18])
    @pytest.mark.parametrize("condition", ["on", ""])
    def test_number_of_steps(self, opset: int, condition: str):
        nodes = [
            loop(
                [node("Identity", ["on_in"], ["on_out"]), *self.STEP],
                [value("m", [3, 2])],
                ("n", condition, "x"),
                ("y", "rows"),
            )
        ]
        outputs = [value("y", None), value("rows", None)]
        inner = graph(
            nodes, [value("x", [3, 2])], outputs, n=np.int64(3), on=True, w=self.W
        )
        module = agrees(model_of(inner, opset), x=self.X)
        products = ops_of(module, "MatMul")
        assert len(products) == 3 and names_by_role(module)["parameter"] == ["w"]

    def test_steps_follow_from_a_size(self):
        """As converters of TensorFlow write `while_loop`: the condition ends it."""
        nodes = [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["rows"], axis=0),
            node("Less", ["zero", "rows"], ["on"]),
            loop(
                [
                    node("Add", ["i", "one"], ["next"]),
                    node("Less", ["next", "rows"], ["on_out"]),
                    *self.STEP,
                ],
                inputs=("", "on", "x"),
            ),
        ]
        inner = graph(
            nodes,
            [value("x", ["t", 2])],
            [value("y", None)],
            w=self.W,
            zero=np.int64(0),
            one=np.int64(1),
        )
        module = agrees(model_of(inner), {"t": 3}, x=self.X)
        assert len(ops_of(module, "MatMul")) == 3

    def test_no_steps(self):
        nodes = [
            loop(
                [node("Identity", ["on_in"], ["on_out"]), *self.STEP],
                [value("m", [3, 2])],
                results=("y", "rows"),
            )
        ]
        outputs = [value("y", None), value("rows", None)]
        inner = graph(
            nodes, [value("x", [3, 2])], outputs, n=np.int64(0), on=True, w=self.W
        )
        agrees(model_of(inner), x=self.X)

    def test_loop_inside_of_a_loop(self):
        inside = helper.make_graph(
            [
                node("Identity", ["on2"], ["on2_out"]),
                node("Add", ["x2", "x_in"], ["x2_out"]),
            ],
            "inside",
            [value("i2", [], I64), value("on2", [], BOOL), value("x2", None)],
            [value("on2_out", [], BOOL), value("x2_out", None)],
        )
        nodes = [
            loop(
                [
                    node("Identity", ["on_in"], ["on_out"]),
                    node("Loop", ["i", "", "x_in"], ["x_out"], body=inside),
                ]
            )
        ]
        inner = graph(
            nodes, [value("x", [3, 2])], [value("y", None)], n=np.int64(4), on=True
        )
        module = agrees(model_of(inner), x=self.X)
        assert len(ops_of(module, "Add")) == 6

    @pytest.mark.parametrize("known", ["number", "condition"])
    def test_steps_that_depend_on_data(self, known: str):
        nodes = [
            node("ReduceMax", ["x"], ["m0"], keepdims=0),
            node("Cast", ["m0"], ["count"], to=I64),
            node("Greater", ["m0", "half"], ["go"]),
            loop(
                [node("Identity", ["on_in"], ["on_out"]), *self.STEP],
                inputs=("n" if known == "number" else "count", "go", "x"),
            ),
        ]
        inner = graph(
            nodes,
            [value("x", [3, 2])],
            [value("y", None)],
            n=np.int64(3),
            w=self.W,
            half=np.float32(0.5),
        )
        what = "whether it goes on" if known == "number" else "its number of steps"
        with pytest.raises(DistIRError, match=rf"'cell/Loop'.*{what}.*'x'"):
            import_onnx(model_of(inner))

    def test_too_many_steps(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(loops, "MAX_NODES", 200)
        nodes = [loop([node("Identity", ["on_in"], ["on_out"]), *self.STEP])]
        inner = graph(
            nodes,
            [value("x", [3, 2])],
            [value("y", None)],
            n=np.int64(2**62),
            on=True,
            w=self.W,
        )
        with pytest.raises(DistIRError, match="more than the 200 nodes"):
            import_onnx(model_of(inner))


class TestUnknownSizes:
    """Sizes as Paddle's converter writes them."""

    def test_minus_one_and_question_marks(self):
        model = model_of(
            graph(
                [node("Relu", ["x"], ["y"])],
                [value("x", [-1, 3, "?", "?"])],
                [value("y", [-1, 3, "?", "?"])],
            )
        )
        sizes = {"x.0": 2, "x.2": 4, "x.3": 5}
        x = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)
        agrees(model, sizes, x=x)
        with pytest.raises(DistIRError, match=r"--dim x.0=SIZE --dim x.2=SIZE"):
            import_onnx(model)
