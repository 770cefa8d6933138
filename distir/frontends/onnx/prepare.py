"""
Converts an ONNX model to the form that the importer reads: no local functions, the
dialect's opset, and only operators of the `onnx` dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    defs,
    helper,
    version_converter,
)
from onnx.defs import OpSchema

from distir.dialects.onnx import OPERATORS
from distir.dialects.onnx_ops.inference import ONNX_ERRORS
from distir.dialects.onnx_ops.versions import DOMAIN_VERSIONS, OPSET
from distir.errors import DistIRError
from distir.frontends.custom_operators import custom_import
from distir.frontends.onnx.bodies import Expanded, expand_bodies
from distir.frontends.onnx.file import is_large
from distir.frontends.onnx.names import domain_of, node_name, opset_versions

_RESIZE_WITH_MODES = 11
"""
The opset from which on Resize has attributes that determine which elements it samples.
"""


def prepare(
    model: ModelProto, inputs: Mapping[str, TypeProto], dims: Mapping[str, int]
) -> Expanded:
    """
    Returns an equivalent model without local functions and bodies, at the dialect's
    opset. Large initializers become inputs of the graph without data.

    - `inputs`: the types of the inputs.
    - `dims`: the sizes of symbolic dimensions.

    Raises DistIRError if the model is not valid or cannot be converted.
    """
    expanded = expand_bodies(inline_functions(without_weights(model)), inputs, dims)
    model = inline_functions(expanded.model)
    check_operators(model)
    _check_model(model)
    model = convert(model)
    for node in model.graph.node:
        _check_known(node)
    return Expanded(model, expanded.tensors)


def _check_model(model: ModelProto) -> None:
    """Raises DistIRError if ONNX's checker rejects the model."""
    outputs = [output.type.tensor_type for output in model.graph.output]
    # The checker demands their shape, but exporters leave it out and runtimes do without.
    shapeless = [t for t in outputs if t.elem_type and not t.HasField("shape")]
    for type_ in shapeless:
        type_.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except ONNX_ERRORS as error:
        raise DistIRError(
            f"the ONNX model is not valid: {_first_line(error)}; export it again"
        ) from error
    for type_ in shapeless:
        type_.ClearField("shape")


def inline_functions(model: ModelProto) -> ModelProto:
    """
    Returns the model with the calls of its local functions inlined. Raises DistIRError
    if this is not possible.
    """
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except ONNX_ERRORS as error:
        raise DistIRError(
            f"the functions of the ONNX model cannot be inlined: {_first_line(error)}; "
            "export it without local functions"
        ) from error


def check_operators(model: ModelProto) -> None:
    """
    Raises DistIRError if the model uses an operator with a body, or an operator that
    neither the standard nor an installed package defines.
    """
    versions = opset_versions(model)
    if versions.get("", 0) > OPSET:
        raise DistIRError(
            f"the model uses opset {versions['']}, but DistIR knows the ONNX standard up "
            f"to opset {OPSET}; export it with opset_version={OPSET}"
        )
    for node in model.graph.node:
        if _has_body(node):
            raise DistIRError(
                f"the model uses {node_name(node)}, an operator with a body, but a "
                "program of DistIR is straight-line code; export the model without it"
            )
        domain = domain_of(node)
        if domain in DOMAIN_VERSIONS and defs.has(node.op_type, domain):
            continue
        if custom_import(node) is None:
            raise DistIRError(
                f"the model uses {node_name(node)}, which is not an operator of the "
                "ONNX standard; export the model with standard operators only, or "
                "with the operator as a local function, or install a package that reads "
                "it (docs/extending.md)"
            )


def _has_body(node: NodeProto) -> bool:
    if any(
        a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute
    ):
        return True
    domain = domain_of(node)
    if not defs.has(node.op_type, domain):
        return False
    attributes = defs.get_schema(node.op_type, domain).attributes
    return any(a.type == OpSchema.AttrType.GRAPH for a in attributes.values())


def _check_known(node: NodeProto) -> None:
    known = (domain_of(node), node.op_type) in OPERATORS
    if not known and custom_import(node) is None:
        raise DistIRError(
            f"the model uses {node_name(node)}, which ONNX has withdrawn by opset "
            f"{OPSET} without a conversion; export it with a newer opset_version"
        )


def without_weights(model: ModelProto) -> ModelProto:
    """
    Returns the model with large and external initializers turned into inputs without
    data.
    """
    graph = model.graph
    light = ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(light, field.name).extend(value)
        else:
            setattr(light, field.name, value)
    copy: GraphProto = light.graph
    for field, value in graph.ListFields():
        if field.name in ("initializer", "sparse_initializer"):
            continue
        if field.is_repeated:
            getattr(copy, field.name).extend(value)
        else:
            setattr(copy, field.name, value)
    inputs = {i.name for i in graph.input}
    for tensor in graph.initializer:
        if is_large(tensor):
            if tensor.name not in inputs:
                copy.input.append(
                    helper.make_tensor_value_info(
                        tensor.name, tensor.data_type, list(tensor.dims)
                    )
                )
        else:
            copy.initializer.append(tensor)
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in inputs:
            copy.input.append(
                helper.make_tensor_value_info(
                    sparse.values.name, sparse.values.data_type, list(sparse.dims)
                )
            )
    return light


def convert(model: ModelProto) -> ModelProto:
    """
    Returns the model converted to the dialect's opset. Keeps the metadata of nodes and
    the types of values. Raises DistIRError if the model cannot be converted.
    """
    versions = opset_versions(model)
    stale: list[NodeProto] = []
    for node in model.graph.node:
        domain = domain_of(node)
        if custom_import(node) is not None:
            continue
        if not _same_signature(node.op_type, domain, versions.get(domain, 1)):
            stale.append(node)
    for node in stale:
        if domain_of(node):
            raise DistIRError(
                f"the model uses {node_name(node)} at version "
                f"{versions[node.domain]} of its domain, which cannot be converted to "
                f"version {DOMAIN_VERSIONS[node.domain]}; export it with the newer version"
            )
    if not stale:
        return model
    try:
        converted = version_converter.convert_version(model, OPSET)
    except ONNX_ERRORS as error:
        names = ", ".join(sorted({n.op_type for n in stale}))
        raise DistIRError(
            f"the model uses opset {versions.get('', 1)}, and ONNX's version converter "
            f"cannot bring it to opset {OPSET} ({_first_line(error)}; operators that "
            f"changed: {names}); export it with a newer opset_version"
        ) from error
    _restore_annotations(model.graph, converted.graph)
    if versions.get("", 1) < _RESIZE_WITH_MODES:
        _restore_sampling(converted.graph)
    return converted


def _restore_sampling(graph: GraphProto) -> None:
    """
    Restores the sampling of Resize after a conversion from an old opset, in place. Old
    Resize and Upsample take the element at `floor(i / scale)`, but ONNX's converter
    leaves the sampling attributes at their new default.
    """
    for node in graph.node:
        if node.op_type == "Resize" and not domain_of(node):
            node.attribute.append(
                helper.make_attribute("coordinate_transformation_mode", "asymmetric")
            )
            node.attribute.append(helper.make_attribute("nearest_mode", "floor"))


def _restore_annotations(source: GraphProto, target: GraphProto) -> None:
    """
    Copies the metadata of nodes, which ONNX's converter drops, from `source` to
    `target`, in place. Nodes are matched by the names of their outputs.
    """
    by_output = {o: node for node in source.node for o in node.output if o}
    for node in target.node:
        original = next((by_output[o] for o in node.output if o in by_output), None)
        if original is not None:
            del node.metadata_props[:]
            node.metadata_props.extend(original.metadata_props)
            node.name = original.name
    del target.value_info[:]
    target.value_info.extend(source.value_info)


@cache
def _same_signature(name: str, domain: str, version: int) -> bool:
    """
    Whether an operator is the same in version `version` of its domain and in the
    dialect's version, except for type constraints and documentation.
    """
    try:
        old = defs.get_schema(name, version, domain)
        new = defs.get_schema(name, DOMAIN_VERSIONS[domain], domain)
    except defs.SchemaError:
        return False
    return old.since_version == new.since_version or _signature(old) == _signature(new)


def _signature(schema: OpSchema) -> Any:
    return (
        schema.deprecated,
        [(i.name, i.option, i.is_homogeneous, i.min_arity) for i in schema.inputs],
        [(o.name, o.option, o.is_homogeneous, o.min_arity) for o in schema.outputs],
        {
            a.name: (a.type, a.required, a.default_value.SerializeToString())
            for a in schema.attributes.values()
        },
    )


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
