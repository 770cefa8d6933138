"""
Removes operators with a body that are in fact straight-line code: a Scan with a known
number of steps is unrolled, FlexAttention is written out as ONNX defines it.

Each body becomes a local function, which ONNX's inliner then expands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)

from distir.dialects.onnx_inference import ONNX_ERRORS
from distir.errors import DistIRError
from distir.frontends.onnx_names import domain_of, node_name, opset_versions
from distir.frontends.onnx_scopes import node_scope, set_scope

_BODIES = "distir.bodies"
"""The domain of the functions made here."""

MAX_NODES = 20_000
"""A Scan that would grow to more nodes than this is refused."""


class BodyExpander:
    """Rewrites the nodes of one model; `functions` are the bodies that they call."""

    def __init__(self, model: ModelProto):
        self.versions = opset_versions(model)
        self.functions: list[FunctionProto] = []
        self.types = _value_types(model)
        self.names = {n for node in model.graph.node for n in node.output}

    def expand(self, node: NodeProto) -> list[NodeProto]:
        if node.op_type == "FlexAttention" and domain_of(node) == "ai.onnx.preview":
            return [self._flex_attention(node)]
        if node.op_type == "Scan" and not domain_of(node) and self.versions[""] >= 9:
            return self._scan(node)
        return [node]

    def _call(self, function: FunctionProto, node: NodeProto) -> NodeProto:
        """Returns the node as a call of a function that stands for it."""
        function.name, function.domain = f"body{len(self.functions)}", _BODIES
        del function.opset_import[:]
        function.opset_import.extend(
            helper.make_opsetid(d, v) for d, v in self.versions.items()
        )
        self.functions.append(function)
        scope = node_scope(node)
        for inner in function.node:
            if scope and not node_scope(inner):
                set_scope(inner, scope)
        call = NodeProto()
        call.CopyFrom(node)
        call.op_type, call.domain = function.name, _BODIES
        return call

    def _flex_attention(self, node: NodeProto) -> NodeProto:
        schema = defs.get_schema(
            "FlexAttention", self.versions["ai.onnx.preview"], "ai.onnx.preview"
        )
        types = [self.types.get(n, TypeProto()).SerializeToString() for n in node.input]
        # The stubs of onnx leave this method out.
        define: Any = getattr(schema, "get_context_dependent_function")  # noqa: B009
        body = FunctionProto.FromString(define(node.SerializeToString(), types))
        call = self._call(body, node)
        kept = [a for a in call.attribute if a.type != AttributeProto.GRAPH]
        del call.attribute[:]
        call.attribute.extend(kept)
        return call

    def _scan(self, node: NodeProto) -> list[NodeProto]:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        body, scans, states, outputs = _scan_form(node, attributes)
        in_axes = attributes.get("scan_input_axes", [0] * scans)
        in_reversed = attributes.get("scan_input_directions", [0] * scans)
        out_axes = attributes.get("scan_output_axes", [0] * outputs)
        out_reversed = attributes.get("scan_output_directions", [0] * outputs)
        steps = self._steps(node, node.input[states], in_axes[0])
        if steps * len(body.node) > MAX_NODES:
            raise DistIRError(
                f"{node_name(node)} has {steps} steps of {len(body.node)} nodes, more "
                f"than the {MAX_NODES} nodes that DistIR unrolls; export the model for "
                "a shorter sequence"
            )
        captured = _captured(body)
        function = _function_of(body, captured)
        nodes: list[NodeProto] = []
        state = list(node.input[:states])
        parts: list[list[str]] = [[] for _ in range(outputs)]
        for step in range(steps):
            elements: list[str] = []
            for k in range(scans):
                index = steps - 1 - step if in_reversed[k] else step
                nodes += self._element(node, states + k, index, in_axes[k])
                elements.append(nodes[-1].output[0])
            results = [self._new(node, o.name, step) for o in body.output]
            call = helper.make_node("", [*state, *elements, *captured], results)
            call.name = node.name
            call.metadata_props.extend(node.metadata_props)
            nodes.append(self._call(_copy(function), call))
            state = results[:states]
            for k in range(outputs):
                nodes += self._row(results[states + k], out_axes[k])
                parts[k].append(nodes[-1].output[0])
        for source, name in zip(state, node.output[:states], strict=True):
            if name:
                nodes.append(helper.make_node("Identity", [source], [name]))
        for k, name in enumerate(node.output[states:]):
            if name:
                rows = parts[k][::-1] if out_reversed[k] else parts[k]
                nodes.append(helper.make_node("Concat", rows, [name], axis=out_axes[k]))
        return nodes

    def _steps(self, node: NodeProto, name: str, axis: int) -> int:
        shape = self.types.get(name, TypeProto()).tensor_type.shape.dim
        if not -len(shape) <= axis < len(shape) or shape[axis].dim_value < 1:
            raise DistIRError(
                f"{node_name(node)} has a body and an unknown number of steps, but a "
                "program of DistIR is straight-line code; export the model with static "
                "shapes"
            )
        return shape[axis].dim_value

    def _element(
        self, node: NodeProto, position: int, index: int, axis: int
    ) -> list[NodeProto]:
        """Returns nodes the last of which computes one element of a scanned input."""
        constant = self._new(node, f"index{position}", index)
        value = numpy_helper.from_array(np.array(index, np.int64))
        output = self._new(node, f"element{position}", index)
        return [
            helper.make_node("Constant", [], [constant], value=value),
            helper.make_node(
                "Gather", [node.input[position], constant], [output], axis=axis
            ),
        ]

    def _row(self, name: str, axis: int) -> list[NodeProto]:
        """
        Returns nodes the last of which gives a result of the body a dimension of size 1.
        """
        output = f"{name}.row"
        if self.versions[""] < 13:
            return [helper.make_node("Unsqueeze", [name], [output], axes=[axis])]
        value = numpy_helper.from_array(np.array([axis], np.int64))
        return [
            helper.make_node("Constant", [], [f"{name}.axis"], value=value),
            helper.make_node("Unsqueeze", [name, f"{name}.axis"], [output]),
        ]

    def _new(self, node: NodeProto, name: str, step: int) -> str:
        stem = f"{next(o for o in node.output if o)}.{name}.{step}"
        while stem in self.names:
            stem += "_"
        self.names.add(stem)
        return stem


def expand_bodies(model: ModelProto) -> ModelProto:
    """Returns the model with every such operator replaced by calls of local functions."""
    kinds = {n.op_type for n in model.graph.node}
    if not kinds & {"Scan", "FlexAttention"}:
        return model
    expander = BodyExpander(model)
    nodes = [new for node in model.graph.node for new in expander.expand(node)]
    if not expander.functions:
        return model
    expanded = ModelProto()
    expanded.CopyFrom(model)
    del expanded.graph.node[:]
    expanded.graph.node.extend(nodes)
    expanded.functions.extend(expander.functions)
    expanded.opset_import.append(helper.make_opsetid(_BODIES, 1))
    return expanded


def _value_types(model: ModelProto) -> dict[str, TypeProto]:
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    except ONNX_ERRORS:
        inferred = model.graph  # The importer says what is wrong, node by node.
    values = [*inferred.input, *inferred.value_info, *inferred.output]
    types = {v.name: v.type for v in values}
    for tensor in inferred.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(
            tensor.data_type, list(tensor.dims)
        )
    return types


def _scan_form(
    node: NodeProto, attributes: Mapping[str, Any]
) -> tuple[GraphProto, int, int, int]:
    """
    Returns the body of a Scan and its numbers of scanned operands, states and stacked
    results. Raises DistIRError for one that does not conform to the standard.
    """

    def require(holds: bool, text: str) -> None:
        if not holds:
            raise DistIRError(f"{node_name(node)} {text}; export the model again")

    body, scans = attributes.get("body"), attributes.get("num_scan_inputs")
    for name, found in (("body", body), ("num_scan_inputs", scans)):
        require(found is not None, f"is a Scan without its attribute {name!r}")
    assert isinstance(body, GraphProto) and isinstance(scans, int)
    count = len(node.input)
    require(0 < scans <= count, f"has num_scan_inputs {scans} of {count} operands")
    states = count - scans
    outputs = len(node.output) - states
    require(
        len(body.input) == count and len(body.output) == len(node.output) >= states,
        f"has {count} operands and {len(node.output)} results, but a body with "
        f"{len(body.input)} and {len(body.output)}",
    )
    for name, expected in (
        ("scan_input_axes", scans),
        ("scan_input_directions", scans),
        ("scan_output_axes", outputs),
        ("scan_output_directions", outputs),
    ):
        given = len(attributes.get(name, [0] * expected))
        require(given == expected, f"has {given} {name} instead of {expected}")
    return body, scans, states, outputs


def _captured(body: GraphProto) -> list[str]:
    """Returns the values of the surrounding graph that a body reads."""
    inner = {i.name for i in body.input} | {t.name for t in body.initializer}
    inner |= {o for n in body.node for o in n.output}
    read = [i for n in body.node for i in n.input] + [o.name for o in body.output]
    return [name for name in dict.fromkeys(read) if name and name not in inner]


def _function_of(body: GraphProto, captured: list[str]) -> FunctionProto:
    constants = [
        helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer
    ]
    return helper.make_function(
        _BODIES,
        body.name,
        [*(i.name for i in body.input), *captured],
        [o.name for o in body.output],
        [*constants, *body.node],
        [],
    )


def _copy(function: FunctionProto) -> FunctionProto:
    copy = FunctionProto()
    copy.CopyFrom(function)
    return copy
