"""Scans are unrolled and FlexAttention is written out; other bodies are refused."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.programs import ops_of, round_trip

from distir.errors import DistIRError
from distir.frontends.onnx.importer import import_onnx
from distir.frontends.onnx.loops import MAX_NODES
from distir.interpreters.reference import run_program
from distir.program import scope_of

F32 = TensorProto.FLOAT


def value(name: str, shape):
    return helper.make_tensor_value_info(name, F32, shape)


def scan_model(steps, opset: int = 28, **attributes) -> ModelProto:
    """
    Running sum of x, scaled by a value of the surrounding graph and a constant of the
    body; the second output has the state before each step.
    """
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["x_in", "scale"], ["scaled"]),
            helper.make_node("Mul", ["scaled", "two"], ["twice"]),
            helper.make_node("Add", ["s_in", "twice"], ["s_out"]),
            helper.make_node("Identity", ["s_in"], ["row"]),
        ],
        "body",
        [value("s_in", [2]), value("x_in", [2])],
        [value("s_out", [2]), value("row", [2])],
        [numpy_helper.from_array(np.float32(2), "two")],
    )
    node = helper.make_node(
        "Scan",
        ["s", "x"],
        ["last", "rows"],
        name="/cell/Scan",
        body=body,
        num_scan_inputs=1,
        **attributes,
    )
    in_axis = attributes.get("scan_input_axes", [0])[0]
    out_axis = attributes.get("scan_output_axes", [0])[0]
    shapes = {0: [steps, 2], 1: [2, steps], -1: [2, steps]}
    return helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [value("s", [2]), value("x", shapes[in_axis]), value("scale", [2])],
            [value("last", [2]), value("rows", shapes[out_axis])],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def scanned(
    s,
    x,
    scale,
    scan_input_axes=(0,),
    scan_input_directions=(0,),
    scan_output_axes=(0,),
    scan_output_directions=(0,),
):
    """What `scan_model` computes."""
    elements = np.moveaxis(x, scan_input_axes[0], 0)
    rows = []
    for element in elements[::-1] if scan_input_directions[0] else elements:
        rows.append(s)
        s = s + 2 * element * scale
    rows = rows[::-1] if scan_output_directions[0] else rows
    return s, np.stack(rows, scan_output_axes[0])


@pytest.mark.parametrize("opset", [9, 12, 13, 21, 28])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_axes": [1]},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1], "scan_output_axes": [-1]},
    ],
)
def test_scan(opset: int, attributes):
    model = scan_model(3, opset, **attributes)
    imported = import_onnx(model)
    round_trip(imported.module)
    assert {scope_of(op) for op in ops_of(imported.module, "Add")} == {"cell"}
    generator = np.random.default_rng(0)
    inputs = {
        i.name: generator.standard_normal(
            [d.dim_value for d in i.type.tensor_type.shape.dim], np.float32
        )
        for i in model.graph.input
    }
    expected = scanned(**inputs, **attributes)
    outputs = run_program(imported.module, list(inputs.values()))
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-6)


def test_scan_of_a_length_that_is_given():
    imported = import_onnx(scan_model("steps"), {"steps": 3})
    assert len(ops_of(imported.module, "Add")) == 3


def test_scan_of_unknown_length():
    model = scan_model("steps")
    [scan] = model.graph.node
    chosen = helper.make_node("Compress", ["x", "kept"], ["some"], axis=0)
    scan.input[1] = "some"
    del model.graph.node[:]
    model.graph.node.extend([chosen, scan])
    kept = helper.make_tensor_value_info("kept", TensorProto.BOOL, [3])
    model.graph.input.append(kept)
    with pytest.raises(DistIRError, match=r"Scan '/cell/Scan' .*number of steps"):
        import_onnx(model, {"steps": 3})


def test_scan_that_is_too_long():
    with pytest.raises(DistIRError, match=rf"more than the {MAX_NODES} nodes"):
        import_onnx(scan_model(MAX_NODES))


def test_flex_attention():
    shapes = {"q": [1, 2, 3, 4], "k": [1, 2, 5, 4], "v": [1, 2, 5, 4]}
    node = helper.make_node(
        "FlexAttention", list(shapes), ["y"], domain="ai.onnx.preview"
    )
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [value(n, s) for n, s in shapes.items()],
            [value("y", [1, 2, 3, 4])],
        ),
        opset_imports=[
            helper.make_opsetid("", 26),
            helper.make_opsetid("ai.onnx.preview", 1),
        ],
        ir_version=10,
    )
    imported = import_onnx(model)
    round_trip(imported.module)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(s, np.float32) for s in shapes.values())
    scores = np.exp(q @ k.swapaxes(2, 3) / 2)
    expected = scores / scores.sum(-1, keepdims=True) @ v
    [output] = run_program(imported.module, [q, k, v])
    np.testing.assert_allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize("missing", ["body", "num_scan_inputs"])
def test_scan_without_what_it_must_have(missing: str):
    model = scan_model(4)
    kept = [a for a in model.graph.node[0].attribute if a.name != missing]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(kept)
    with pytest.raises(DistIRError, match=f"Scan.*{missing}"):
        import_onnx(model)


@pytest.mark.parametrize(("wrong", "value"), [("body", 3), ("num_scan_inputs", [1, 1])])
def test_scan_with_attributes_of_other_kinds(wrong: str, value: object):
    model = scan_model(4)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name != wrong]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(wrong, value)])
    with pytest.raises(DistIRError, match=f"Scan.* in its attribute '{wrong}'"):
        import_onnx(model)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_scan_inputs": 3}, "num_scan_inputs"),
        ({"num_scan_inputs": 0}, "num_scan_inputs"),
        ({"scan_input_axes": [0, 0]}, "scan_input_axes"),
        ({"scan_output_directions": []}, "scan_output_directions"),
    ],
)
def test_scan_whose_numbers_contradict_its_operands(attributes, message: str):
    model = scan_model(4)
    node = model.graph.node[0]
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    for name, given in attributes.items():
        kind = 7 if isinstance(given, list) else None
        node.attribute.append(helper.make_attribute(name, given, attr_type=kind))
    with pytest.raises(DistIRError, match=message):
        import_onnx(model)
