"""
Turns operators with bodies into straight-line code, if their control flow is known
before the program runs. An If becomes the branch that is taken, Loops and Scans are
unrolled, and FlexAttention is written out as ONNX defines it.

Conditions and numbers of steps may follow from constants, from sizes, and from inputs
for which the user gave a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
)

from distir.frontends.onnx.file import is_large
from distir.frontends.onnx.loops import (
    body_of,
    require,
    unrolled_loop,
    unrolled_scan,
)
from distir.frontends.onnx.names import domain_of, node_scope, set_scope
from distir.frontends.onnx.writer import GraphWriter, Names

_FUNCTIONS = "distir.bodies"
"""The domain of the local functions that this module makes."""

_SCAN_WITHOUT_BATCH = 9
"""The opset from which on a Scan has no batch dimension."""


@dataclass(frozen=True)
class Expanded:
    """
    A model in which all operators with bodies are expanded. `tensors` are the
    initializers of the former bodies. Large initializers are inputs of `model`, without
    their data.
    """

    model: ModelProto
    tensors: Sequence[TensorProto] = ()


def expand_bodies(
    model: ModelProto, inputs: Mapping[str, TypeProto], dims: Mapping[str, int]
) -> Expanded:
    """
    Returns the model with each operator that has a body replaced by the body's nodes.
    FlexAttention becomes a call of a local function.

    - `inputs`: the types of the inputs.
    - `dims`: the sizes of symbolic dimensions.

    Raises DistIRError if a condition or a number of steps is known only at run time.
    """
    kinds = {n.op_type for n in model.graph.node}
    if not kinds & {"If", "Loop", "Scan", "FlexAttention"}:
        return Expanded(model)
    expander = _BodyExpander(model, inputs, dims)
    for node in model.graph.node:
        expander.write(node, None)
    expanded = ModelProto()
    expanded.CopyFrom(model)
    del expanded.graph.node[:]
    expanded.graph.node.extend(expander.nodes)
    for tensor in expander.tensors:
        if is_large(tensor):
            info = helper.make_tensor_value_info(
                tensor.name, tensor.data_type, list(tensor.dims)
            )
            expanded.graph.input.append(info)
        else:
            expanded.graph.initializer.append(tensor)
    if expander.functions:
        expanded.functions.extend(expander.functions)
        expanded.opset_import.append(helper.make_opsetid(_FUNCTIONS, 1))
    return Expanded(expanded, expander.tensors)


class _BodyExpander(GraphWriter):
    """
    Expands the operators with bodies of one graph. `functions` are the local functions
    made for FlexAttention.
    """

    def __init__(
        self,
        model: ModelProto,
        inputs: Mapping[str, TypeProto],
        dims: Mapping[str, int],
    ):
        super().__init__(model, inputs, dims)
        self.functions: list[FunctionProto] = []

    def write(self, node: NodeProto, names: Names | None, scope: str = "") -> Names:
        inputs = [n if names is None else names.get(n, n) for n in node.input]
        results = self._expanded(node, inputs, names, node_scope(node) or scope)
        if results is None:
            return self._copied(node, inputs, names, scope)
        named = dict(zip(node.output, results, strict=True))
        named.pop("", None)
        if names is None:  # nodes after it and results of the graph have these names
            for name, source in named.items():
                node = helper.make_node("Identity", [source], [name])
                self.emit(node, lazily=False)
        return named

    def _copied(
        self, node: NodeProto, inputs: Sequence[str], names: Names | None, scope: str
    ) -> Names:
        copy = NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(inputs)
        if names is not None:
            outputs = [self.new_name(o) if o else "" for o in node.output]
            del copy.output[:]
            copy.output.extend(outputs)
        if scope and not node_scope(copy):
            set_scope(copy, scope)
        if _is_flex_attention(copy):
            self.facts.learn(copy)
            copy = self._flex_attention(copy)
        self.emit(copy, lazily=names is not None)
        return dict(zip(node.output, copy.output, strict=True))

    def _expanded(
        self, node: NodeProto, inputs: Sequence[str], names: Names | None, scope: str
    ) -> list[str] | None:
        """
        Writes the bodies of `node`, and returns the names of its results. Returns None
        if the node stays unchanged.
        """
        if domain_of(node):
            return None
        match node.op_type:
            case "If":
                return self._branch(node, inputs, names, scope)
            case "Loop":
                return unrolled_loop(self, node, inputs, names, scope)
            case "Scan" if self.facts.versions[""] >= _SCAN_WITHOUT_BATCH:
                return unrolled_scan(self, node, inputs, names, scope)
            case _:
                return None

    def _branch(
        self, node: NodeProto, inputs: Sequence[str], names: Names | None, scope: str
    ) -> list[str]:
        require(node, len(inputs) == 1, f"is an If with {len(inputs)} operands")
        holds = self.known(node, inputs[0], "which of its two branches it takes")
        name = "then_branch" if holds else "else_branch"
        body = body_of(node, name)
        require(
            node,
            len(body.output) == len(node.output),
            f"has {len(node.output)} results, but a {name} with {len(body.output)}",
        )
        return self.splice(body, {}, names, scope)

    def _flex_attention(self, node: NodeProto) -> NodeProto:
        """
        Returns `node`, a FlexAttention, as a call of a new local function that computes
        it.
        """
        versions = self.facts.versions
        schema = defs.get_schema(
            "FlexAttention", versions["ai.onnx.preview"], "ai.onnx.preview"
        )
        types = [
            self.facts.types.get(n, TypeProto()).SerializeToString() for n in node.input
        ]
        # The stubs of onnx leave this method out.
        define: Any = getattr(schema, "get_context_dependent_function")  # noqa: B009
        function = FunctionProto.FromString(define(node.SerializeToString(), types))
        function.name, function.domain = f"body{len(self.functions)}", _FUNCTIONS
        del function.opset_import[:]
        function.opset_import.extend(
            helper.make_opsetid(d, v) for d, v in versions.items()
        )
        self.functions.append(function)
        scope = node_scope(node)
        for inner in function.node:
            if scope and not node_scope(inner):
                set_scope(inner, scope)
        call = NodeProto()
        call.CopyFrom(node)
        call.op_type, call.domain = function.name, _FUNCTIONS
        kept = [a for a in call.attribute if a.type != AttributeProto.GRAPH]
        del call.attribute[:]
        call.attribute.extend(kept)
        return call


def _is_flex_attention(node: NodeProto) -> bool:
    return node.op_type == "FlexAttention" and domain_of(node) == "ai.onnx.preview"
