"""
Imports ONNX models as sequential programs.

The graph becomes `@main`, and each node becomes one op, in order. Graph inputs and
weights become arguments. `weight_roles` decides which float initializers are
parameters. Of the remaining initializers, large ones become `constant` arguments, and
each small one becomes an `onnx.Constant`. Dimensions that types do not determine stay
dynamic, and the pass `fold-shapes` resolves them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import (
    DOUBT,
    FROZEN,
    NAME,
    ROLE,
    SCOPE,
    STOP_GRADIENT,
)
from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import (
    element_type_of_dtype,
    tensor_type,
    type_from_proto,
    type_to_proto,
)
from distir.errors import DistIRError
from distir.frontends.custom_operators import CustomImport, custom_import
from distir.frontends.imported_model import ImportedModel
from distir.frontends.onnx.file import (
    LARGE,
    check_text,
    embed_attribute_tensors,
    load_model,
    tensor_value,
)
from distir.frontends.onnx.inputs import bind_inputs, clear_unknown_sizes, fix_inputs
from distir.frontends.onnx.names import (
    domain_of,
    node_location,
    node_name,
    node_scope,
)
from distir.frontends.onnx.prepare import prepare
from distir.frontends.onnx.torch_metadata import is_detach, lost_detach
from distir.frontends.onnx.types import TypeInference
from distir.frontends.onnx.weight_roles import WeightRole, WeightRoles
from distir.program import ENTRY, name_hint, set_argument_attributes
from distir.program.doubts import DETACHED
from distir.transforms.canonicalization import canonicalize

Array = npt.NDArray[Any]

_FLOATS = frozenset(
    (
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
    )
)


def import_onnx(
    source: str | Path | ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    trainable: Sequence[str] = (),
    frozen: Sequence[str] = (),
    values: Mapping[str, Array | None] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> ImportedModel:
    """
    Imports an ONNX file, or a model in memory that holds all of its data.

    - `dims`: sizes of dynamic dimensions of the inputs, by their symbol or as
      `INPUT.POSITION`.
    - `trainable`, `frozen`: patterns of names of weights, such as `*.bias`, that
      override what the file says about training; a weight that matches both is trained.
    - `values`: arrays that replace the data of initializers, by name; a None means that
      the tensor has no value.
    - `numbers`: values of inputs that hold one number, by name; these inputs become
      constants.

    Raises DistIRError if the model cannot be imported.
    """
    if isinstance(source, ModelProto):
        model, folder = source, None
        if numbers:  # which are written into it
            model = ModelProto()
            model.CopyFrom(source)
    else:
        model, folder = load_model(source), Path(source).parent
    check_text(model)
    clear_unknown_sizes(model.graph)
    embed_attribute_tensors(model, folder)
    return _Importer(
        model, folder, dims or {}, numbers or {}, trainable, frozen, values or {}
    ).run()


class _Importer:
    """Builds `@main` from one model."""

    def __init__(
        self,
        model: ModelProto,
        folder: Path | None,
        dims: Mapping[str, int],
        numbers: Mapping[str, float],
        trainable: Sequence[str],
        frozen: Sequence[str],
        values: Mapping[str, Array | None],
    ):
        self.held = values
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.sparse = {s.values.name: s for s in model.graph.sparse_initializer}
        self.folder = folder
        inputs = [
            i
            for i in model.graph.input
            if i.name not in self.initializers and i.name not in self.sparse
        ]
        self.inputs, symbols = bind_inputs(inputs, dims)
        fix_inputs(model, self.inputs, numbers)
        prepared = prepare(model, self.inputs, symbols)
        self.initializers |= {t.name: t for t in prepared.tensors}
        self.graph = prepared.model.graph
        self.inference = TypeInference(prepared.model, symbols)
        self.roles = WeightRoles(
            model.graph,
            self.graph,
            self._float_weights(),
            trainable,
            frozen,
            is_traced=model.producer_name == "pytorch",
        )
        self.block = Block()
        self.values: dict[str, SSAValue] = {}
        self.attributes: list[dict[str, Attribute]] = []
        self.weights: dict[str, Array] = {}

    def _float_weights(self) -> list[str]:
        """
        Returns the names of the float weights that nodes use. These weights are
        candidates for training.
        """
        names = [t.name for t in self.initializers.values() if t.data_type in _FLOATS]
        names += [s for s, t in self.sparse.items() if t.values.data_type in _FLOATS]
        read = {name for node in self.graph.node for name in node.input}
        read |= {output.name for output in self.graph.output}
        held = set(names)
        names += [n.output[0] for n in self.graph.node if _is_other_name(n, held)]
        return [name for name in names if name in read]

    def run(self) -> ImportedModel:
        for name, type_ in self.inputs.items():
            try:
                argument_type = type_from_proto(type_)
            except ValueError as error:
                raise DistIRError(
                    f"input {name!r} of the ONNX model cannot be imported: {error}; "
                    "export the model with tensors as inputs"
                ) from error
            self._argument(name, argument_type, "input")
            self.inference.types[name] = type_
        used = {n for node in self.graph.node for n in node.input}
        used |= {o.name for o in self.graph.output}
        for name in [*self.initializers, *self.sparse]:
            if name in used:
                self._initializer(name)
        for node in self.graph.node:
            self._node(node)
        missing = [o.name for o in self.graph.output if o.name not in self.values]
        if missing:
            raise DistIRError(
                f"no node of the ONNX model computes its output {missing[0]!r}; "
                "export the model again"
            )
        results = [self.values[o.name] for o in self.graph.output]
        self.block.add_op(ReturnOp(*results))
        function = FuncOp(
            ENTRY,
            (self.block.arg_types, [r.type for r in results]),
            Region(self.block),
        )
        set_argument_attributes(function, self.attributes)
        function.res_attrs = ArrayAttr(
            [DictionaryAttr({NAME: NAME.attr(o.name)}) for o in self.graph.output]
        )
        module = ModuleOp([function])
        try:
            module.verify()
        except VerifyException as error:
            raise DistIRError(
                f"the ONNX model is not valid: {error}; export the model again"
            ) from error
        canonicalize(module)
        return ImportedModel(module, self.weights, self.roles.guessed)

    def _argument(self, name: str, type_: Attribute, role: str) -> None:
        value = self.block.insert_arg(type_, len(self.block.args))
        value.name_hint = name_hint(name)
        self.values[name] = value
        self.attributes.append({ROLE: ROLE.attr(role), NAME: NAME.attr(name)})

    def _weight(self, name: str, array: Array, role: str) -> None:
        element = element_type_of_dtype(array.dtype)
        self._argument(name, tensor_type(array.shape, element), role)
        self.weights[name] = array

    def _without_value(self, tensor: TensorProto) -> None:
        """Adds an argument for a tensor that has a type but no value."""
        name, shape = tensor.name, tuple(tensor.dims)
        self.inference.types[name] = helper.make_tensor_type_proto(
            tensor.data_type, shape
        )
        found = WeightRole("constant")
        if tensor.data_type in _FLOATS:
            found = self.roles.of(name, len(shape), prod(shape))
        role = "constant" if found.role == "literal" else found.role
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        self._argument(name, tensor_type(shape, element_type_of_dtype(dtype)), role)
        self._note(found)

    def _float_weight(self, name: str, array: Array) -> None:
        found = self.roles.of(name, array.ndim, array.size)
        if found.role == "literal":
            self._constant(name, array)
            return
        self._weight(name, array, found.role)
        self._note(found)

    def _note(self, found: WeightRole) -> None:
        """
        Writes the facts in `found` as attributes of the argument that was added most
        recently.
        """
        if found.frozen:
            self.attributes[-1][FROZEN] = UnitAttr()
        if found.doubt is not None:
            self.attributes[-1][DOUBT] = DOUBT.attr(found.doubt)

    def _constant(self, name: str, array: Array, scope: str = "") -> None:
        element = element_type_of_dtype(array.dtype)
        op = operator("Constant").build_op(
            [],
            [tensor_type(array.shape, element)],
            {"value": array},
            {SCOPE: SCOPE.attr(scope)} if scope else None,
        )
        op.results[0].name_hint = name_hint(name)
        self.block.add_op(op)
        self.values[name] = op.results[0]

    def _known(self, name: str, array: Array) -> None:
        """
        Passes the type of the tensor `name`, and its value if small, to the type
        inference.
        """
        proto = numpy_helper.from_array(array) if array.size <= LARGE else None
        self.inference.types[name] = helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(array.dtype)
            if array.dtype.kind != "O"
            else TensorProto.STRING,
            array.shape,
        )
        if proto is not None:
            self.inference.known[name] = proto

    def _initializer(self, name: str) -> None:
        held = self.held.get(name)
        if held is None and name in self.held:
            self._without_value(self.initializers[name])
            return
        if held is not None:
            array, element = held, self.initializers[name].data_type
        elif name in self.sparse:
            array = dense_value(self.sparse[name], self.folder)
            element = self.sparse[name].values.data_type
        else:
            array = tensor_value(self.initializers[name], self.folder)
            element = self.initializers[name].data_type
        self._known(name, array)
        if element in _FLOATS:
            self._float_weight(name, array)
        elif array.size > LARGE and array.dtype.kind != "O":
            self._weight(name, array, "constant")
        else:
            self._constant(name, array)

    def _node(self, node: NodeProto) -> None:
        absent = [n for n in node.input if n and n not in self.values]
        if absent:
            raise DistIRError(
                f"{node_name(node)} reads {absent[0]!r}, which nothing before it "
                "computes; export the model again"
            )
        if node.op_type == "Constant" and not domain_of(node):
            self._constant_node(node)
        elif _is_other_name(node, self.weights):
            array = self.weights[node.input[0]]
            self._known(node.output[0], array)
            self._float_weight(node.output[0], array)
        elif (read := custom_import(node)) is not None:
            self._custom_node(node, read)
        else:
            self._compute_node(node)

    def _constant_node(self, node: NodeProto) -> None:
        name, array = node.output[0], constant_node_value(node)
        self._known(name, array)
        if array.size > LARGE and array.dtype.kind != "O":
            self._weight(name, array, "constant")
        else:
            self._constant(name, array, node_scope(node))

    def _leave_out_empty_scales(self, node: NodeProto) -> None:
        """
        Removes the operand for the scales of a Resize if it has no elements. Empty
        scales mean "no scales" in opset 11.
        """
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[2]:
            shape = self.inference.types[node.input[2]].tensor_type.shape
            if [d.dim_value for d in shape.dim if d.HasField("dim_value")] == [0]:
                node.input[2] = ""

    def _custom_node(self, node: NodeProto, read: CustomImport) -> None:
        """
        Adds the op that an installed package makes from a node, and records the types
        of its results.
        """
        attributes = {a.name: attribute_value(a) for a in node.attribute}
        try:
            op = read([self.values[n] if n else None for n in node.input], attributes)
            types = [type_to_proto(result.type) for result in op.results]
        except ValueError as error:
            raise DistIRError(
                f"{node_name(node)} cannot be imported: {error}"
            ) from error
        if len(types) != len(node.output):
            raise DistIRError(
                f"{node_name(node)} has {len(node.output)} outputs, but {op.name}, which "
                f"is made of it, has {len(types)} results"
            )
        op.attributes.update(_notes(node))
        self.inference.types.update(zip(node.output, types, strict=True))
        self._add(node, op)

    def _compute_node(self, node: NodeProto) -> None:
        op_type = operator(node.op_type, domain_of(node))
        self._leave_out_empty_scales(node)
        types = self.inference.infer(node)
        while types and not node.output[len(types) - 1]:
            types.pop()
        try:
            op = op_type.build_op(
                [self.values[n] if n else None for n in node.input],
                [type_from_proto(t) for t in types],
                {a.name: attribute_value(a) for a in node.attribute},
                _notes(node),
            )
        except (ValueError, KeyError) as error:
            raise DistIRError(
                f"{node_name(node)} cannot be imported: {error}"
            ) from error
        self._add(node, op)

    def _add(self, node: NodeProto, op: Operation) -> None:
        """
        Adds the op `op` of a node. The results of the op get the names of the node's
        outputs.
        """
        if (location := node_location(node)) is not None:
            op.location = location
        self.block.add_op(op)
        for output, result in zip(node.output, op.results, strict=False):
            if output:
                result.name_hint = name_hint(output)
                self.values[output] = result


def _is_other_name(node: NodeProto, weights: Container[str]) -> bool:
    """
    Whether a node is an `Identity` that only gives a second name to a parameter.
    PyTorch's older exporter merges parameters with equal values: it writes each
    duplicate as an `Identity` of the first one.
    """
    return (
        node.op_type == "Identity"
        and node.input[0] in weights
        and "." in node.output[0]
        and "/" not in node.output[0]
    )


def _notes(node: NodeProto) -> dict[str, Attribute]:
    """
    Returns the metadata of a node as attributes: its source module, and markers that
    stop the gradient.
    """
    found: dict[str, Attribute] = {}
    if scope := node_scope(node):
        found[SCOPE] = SCOPE.attr(scope)
    if is_detach(node):
        found[STOP_GRADIENT] = UnitAttr()
    elif lost_detach(node):
        found[DOUBT] = DOUBT.attr(DETACHED)
    return found


def attribute_value(attribute: AttributeProto) -> Any:
    """
    Returns the value of an ONNX attribute in the form that `OnnxOp.build_op` accepts.
    """
    match attribute.type:
        case AttributeProto.TENSOR:
            return numpy_helper.to_array(attribute.t)
        case AttributeProto.TYPE_PROTO:
            return type_from_proto(attribute.tp)
        case _:
            return helper.get_attribute_value(attribute)


def constant_node_value(node: NodeProto) -> Array:
    """
    Returns the value of a Constant node, whichever attribute holds it. Raises
    DistIRError if the node has no value.
    """
    attribute = next((a for a in node.attribute if a.name != "doc_string"), None)
    if attribute is None:
        raise DistIRError(f"{node_name(node)} has no value; export the model again")
    match attribute.name:
        case "value":
            return tensor_value(attribute.t, None)
        case "sparse_value":
            return dense_value(attribute.sparse_tensor, None)
        case "value_int" | "value_ints":
            return np.array(helper.get_attribute_value(attribute), np.int64)
        case "value_float" | "value_floats":
            return np.array(helper.get_attribute_value(attribute), np.float32)
        case "value_string":
            return np.array(attribute.s.decode(), object)
        case "value_strings":
            return np.array([s.decode() for s in attribute.strings], object)
        case _:
            raise DistIRError(
                f"{node_name(node)} has the attribute {attribute.name!r}, which is no "
                "value; export the model again"
            )


def dense_value(sparse: Any, folder: Path | None) -> Array:
    """Returns the dense array of a sparse tensor in COO form."""
    values = tensor_value(sparse.values, folder)
    indices = tensor_value(sparse.indices, folder)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
