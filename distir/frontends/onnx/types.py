"""
Infers the types of the values of an ONNX graph with ONNX's own inference, node by node.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
)

from distir.dialects.onnx_ops.inference import ONNX_ERRORS, infer_node
from distir.dialects.onnx_ops.versions import DOMAIN_VERSIONS
from distir.errors import DistIRError
from distir.frontends.onnx.names import domain_of, node_name, value_infos


class TypeInference:
    """
    The types of a graph's values, by name. Shapes are inferred from types and from the
    constants in `known`. More precise annotations of the model are used too.

    - `dims`: sizes of the symbolic dimensions in annotations.
    - `versions`: the operator version of each domain.
    """

    def __init__(
        self,
        model: ModelProto,
        dims: Mapping[str, int],
        versions: Mapping[str, int] = DOMAIN_VERSIONS,
    ):
        self.versions = versions
        self.imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
        self.types: dict[str, TypeProto] = {}
        self.known: dict[str, TensorProto] = {}
        self._declared = {
            name: bind_dimensions(info.type, dims)
            for name, info in value_infos(model.graph).items()
            if info.HasField("type")
        }

    def infer(self, node: NodeProto) -> list[TypeProto]:
        """
        Infers the types of the results of `node`, adds the types to `types` and returns
        them. Omitted results get a type too. Raises DistIRError if the types cannot be
        inferred.
        """
        found = self.inferred(node)
        if isinstance(found, DistIRError):
            raise found
        return found

    def inferred(self, node: NodeProto) -> list[TypeProto] | DistIRError:
        """
        Returns the types of the results of `node`. If they cannot be inferred, returns
        the error instead of raising it.
        """
        schema = defs.get_schema(
            node.op_type, self.versions[domain_of(node)], domain_of(node)
        )
        named = NodeProto()
        named.CopyFrom(node)
        for index, output in enumerate(named.output):
            if not output:
                named.output[index] = f"omitted result {index}"
        inputs = {n: self.types[n] for n in named.input if n}
        data = {n: self.known[n] for n in named.input if n in self.known}
        try:
            found = infer_node(schema, named, inputs, data, self.imports)
        except ONNX_ERRORS as error:
            return DistIRError(
                f"{node_name(node)} cannot take these operands: {error}; "
                "export the model again"
            )
        result: list[TypeProto] = []
        for index, output in enumerate(named.output):
            inferred, declared = found.get(output), self._declared.get(output)
            type_ = _most_precise(inferred, declared)
            if type_ is None:
                type_ = self._by_constraint(schema, named, index)
            if type_ is None:
                return DistIRError(
                    f"the type of result {output!r} of {node_name(node)} is not known; "
                    "give the model's values types with onnx.shape_inference"
                )
            self.types[output] = type_
            result.append(type_)
        return result

    def _by_constraint(
        self, schema: defs.OpSchema, node: NodeProto, index: int
    ) -> TypeProto | None:
        """
        Returns the type, without a shape, of an input that must have the same element
        type as result `index` by the schema. Returns None if no input must.
        """
        formal = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
        for position, name in enumerate(node.input):
            source = schema.inputs[min(position, len(schema.inputs) - 1)].type_str
            if name and source == formal:
                type_ = TypeProto()
                type_.CopyFrom(self.types[name])
                if type_.HasField("tensor_type"):
                    type_.tensor_type.ClearField("shape")
                return type_
        return None


def _most_precise(
    inferred: TypeProto | None, declared: TypeProto | None
) -> TypeProto | None:
    """
    Returns the inferred type, with unknown sizes filled in from the declared type.
    """
    if inferred is None or not inferred.WhichOneof("value"):
        return declared
    if declared is None or not inferred.HasField("tensor_type"):
        return inferred
    found, said = inferred.tensor_type, declared.tensor_type
    if not declared.HasField("tensor_type") or not said.HasField("shape"):
        return inferred
    if found.elem_type not in (TensorProto.UNDEFINED, said.elem_type):
        return inferred
    if not found.HasField("shape"):
        return declared
    if len(found.shape.dim) != len(said.shape.dim):
        return inferred
    merged = TypeProto()
    merged.CopyFrom(inferred)
    for dim, other in zip(merged.tensor_type.shape.dim, said.shape.dim, strict=True):
        if not dim.HasField("dim_value") and other.HasField("dim_value"):
            dim.dim_value = other.dim_value
    merged.tensor_type.elem_type = said.elem_type
    return merged


def bind_dimensions(type_: TypeProto, dims: Mapping[str, int]) -> TypeProto:
    """Returns the type with symbolic dimensions replaced by the sizes in `dims`."""
    bound = TypeProto()
    bound.CopyFrom(type_)
    if bound.HasField("tensor_type"):
        for dim in (
            bound.tensor_type.shape.dim if bound.tensor_type.HasField("shape") else ()
        ):
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    return bound
