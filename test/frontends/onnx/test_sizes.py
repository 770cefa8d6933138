"""Constants that only decide sizes are no parameters, whoever wrote the file."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from xdsl.context import Context

from distir.frontends.onnx.importer import import_onnx
from distir.frontends.onnx.weight_roles import decides_sizes
from distir.interpreters.types import infer_types
from distir.passes.fold_shapes import FoldShapesPass
from distir.program import argument_names, entry_function

node = helper.make_node
FLOAT = TensorProto.FLOAT


def anchors() -> helper.ModelProto:
    """Rows that are counted as YOLOv8 counts them; `half` is also added to them."""
    constants = {
        "axis": np.array(2),
        "start": np.array(0, np.float32),
        "step": np.array(1, np.float32),
        "half": np.array([0.5], np.float32),
        "shape": np.array([-1, 1]),
    }
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "axis"], ["rows"], axis=0),
        node("Cast", ["rows"], ["count"], to=FLOAT),
        node("Mul", ["count", "step"], ["end"]),
        node("Range", ["start", "end", "step"], ["counted"]),
        node("Add", ["counted", "half"], ["middle"]),
        node("Reshape", ["middle", "shape"], ["column"]),
        node("Mul", ["x", "column"], ["y"]),
    ]
    shape = [2, 3, 4, 5]
    graph = helper.make_graph(
        nodes,
        "anchors",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="pytorch",
    )


def test_bounds_of_ranges_are_known() -> None:
    imported = import_onnx(anchors())
    assert argument_names(entry_function(imported.module)) == ["x", "half"]
    FoldShapesPass().apply(Context(), imported.module)
    assert infer_types(imported.module)


def test_what_computes_sizes_decides_them_too() -> None:
    found = decides_sizes(anchors().graph)
    assert {"start", "step", "end", "count", "rows", "shape"} <= found
    assert found.isdisjoint({"half", "x", "counted", "middle", "column", "y"})
