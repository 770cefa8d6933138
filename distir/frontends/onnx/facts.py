"""
Facts about the values of an ONNX graph that are known before it runs: types, and arrays
that follow from constants and shapes. Inference uses the model's own opset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    helper,
    numpy_helper,
)
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from distir.dialects.onnx_ops.inference import KNOWN_SIZE
from distir.errors import DistIRError
from distir.frontends.onnx.names import domain_of, opset_versions
from distir.frontends.onnx.types import TypeInference

Array = npt.NDArray[Any]


class Facts:
    """
    The known types and small arrays of a graph's values, by the name of the value. Call
    `learn` on the graph's nodes in order.

    - `inputs`: the types of the graph's inputs.
    - `dims`: sizes of the symbolic dimensions in declared types.
    """

    def __init__(
        self,
        model: ModelProto,
        inputs: Mapping[str, TypeProto],
        dims: Mapping[str, int],
    ):
        self.versions = opset_versions(model)
        self.imports = list(model.opset_import)
        self.inference = TypeInference(model, dims, self.versions)
        self.types = self.inference.types
        self.arrays: dict[str, Array] = {}
        self.producers: dict[str, NodeProto] = {}
        for info in model.graph.input:
            self.types[info.name] = inputs.get(info.name, info.type)
        for tensor in model.graph.initializer:
            self.learn_tensor(tensor)

    def learn_tensor(self, tensor: TensorProto, *, has_data: bool = True) -> None:
        """
        Records the type of an initializer. Also records its array if the array is small
        and `has_data` is true.
        """
        shape = tuple(tensor.dims)
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, shape)
        if has_data and prod(shape) <= KNOWN_SIZE:
            self._learn_array(tensor.name, numpy_helper.to_array(tensor))

    def learn(self, node: NodeProto) -> None:
        """Infers and records the types and arrays of the results of `node`."""
        for name in node.output:
            self.producers[name] = node
        schema = self._schema(node)
        if schema is None:
            return
        is_typed = all(name in self.types for name in node.input if name)
        if is_typed and isinstance(self.inference.inferred(node), DistIRError):
            return  # The importer raises the error, once it reads the node.
        for name, array in zip(node.output, self._computed(node, schema), strict=False):
            if name:
                self._learn_array(name, array)

    def shape(self, name: str) -> list[int | None] | None:
        """
        Returns the sizes of the tensor `name`; an entry is None if the size is unknown.
        The result is None if the number of dimensions is unknown.
        """
        type_ = self.types.get(name)
        if type_ is None or not type_.tensor_type.HasField("shape"):
            return None
        return [
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in type_.tensor_type.shape.dim
        ]

    def origins(self, name: str) -> list[str]:
        """
        Returns the names of the graph's inputs whose values determine the value `name`.
        Leaves out inputs that matter only by their shape. The search stops at arrays
        that are known.
        """
        found: dict[str, None] = {}
        pending, seen = [name], set[str]()
        while pending:
            each = pending.pop()
            if each in seen or each in self.arrays or not each:
                continue
            seen.add(each)
            node = self.producers.get(each)
            if node is None:
                found[each] = None
            elif node.op_type not in ("Shape", "Size"):
                pending += node.input
        return list(found)

    def _learn_array(self, name: str, array: Array) -> None:
        self.arrays[name] = array
        tensor = numpy_helper.from_array(array, name)
        self.inference.known[name] = tensor
        self.types[name] = helper.make_tensor_type_proto(tensor.data_type, array.shape)

    def _schema(self, node: NodeProto) -> OpSchema | None:
        domain = domain_of(node)
        version = self.versions.get(domain)
        if version is None or not defs.has(node.op_type, domain):
            return None
        try:
            return defs.get_schema(node.op_type, version, domain)
        except defs.SchemaError:
            return None

    def _computed(self, node: NodeProto, schema: OpSchema) -> Sequence[Array]:
        """
        Returns the results of `node` as arrays. The list is empty if a result is
        unknown or large.
        """
        if node.op_type in ("Shape", "Size") and not domain_of(node):
            return self._from_shape(node)
        # The stubs of onnx leave this attribute out.
        if getattr(schema, "non_deterministic"):  # noqa: B009
            return []
        if any(name and name not in self.arrays for name in node.input):
            return []
        if any(name and self._is_large(name) for name in node.output):
            return []
        return self._evaluated(node)

    def _is_large(self, name: str) -> bool:
        shape = self.shape(name)
        if shape is None:
            return True
        return prod(KNOWN_SIZE + 1 if n is None else n for n in shape) > KNOWN_SIZE

    def _from_shape(self, node: NodeProto) -> Sequence[Array]:
        shape = self.shape(node.input[0])
        if shape is None:
            return []
        if node.op_type == "Shape":
            attributes = {a.name: a.i for a in node.attribute}
            shape = shape[
                attributes.get("start", 0) : attributes.get("end", len(shape))
            ]
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(shape):
            return []
        return [np.array(sizes if node.op_type == "Shape" else prod(sizes), np.int64)]

    def _evaluated(self, node: NodeProto) -> Sequence[Array]:
        if [a.name for a in node.attribute] == ["value"] and node.op_type == "Constant":
            return [numpy_helper.to_array(node.attribute[0].t)]  # the common case
        names = [name for name in dict.fromkeys(node.input) if name]
        infos = [helper.make_value_info(n, self.types[n]) for n in names]
        outputs = [name for name in node.output if name]
        results = [helper.make_value_info(n, self.types[n]) for n in outputs]
        graph = helper.make_graph([node], "node", infos, results)
        model = helper.make_model(graph, opset_imports=self.imports)
        try:
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model).run(
                    None, {n: self.arrays[n] for n in names}
                )
        except Exception:  # onnx.reference raises anything; then nothing is known
            return []
        by_name = dict(zip(outputs, map(np.asarray, found), strict=True))
        if any(array.dtype.kind in "OUS" for array in by_name.values()):
            return []
        return [
            by_name[n].astype(self._dtype(n)) if n else np.empty(0) for n in node.output
        ]

    def _dtype(self, name: str) -> np.dtype[Any]:
        element = self.types[name].tensor_type.elem_type
        return np.dtype(helper.tensor_dtype_to_np_dtype(element))
