"""
Infers the types of an ONNX operator's results with ONNX's own inference, and checks an
op's declared types against the inferred types.

Rules, kernels, gradients and costs may rely on this check: the schema of a checked op
allows its operands, and their shapes fit each other and the op's attributes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy.typing as npt
from onnx import (
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    checker,
    defs,
    helper,
    numpy_helper,
    shape_inference,
    version_converter,
)
from onnx.defs import OpSchema
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseIntOrFPElementsAttr,
    StringAttr,
    TensorType,
    UnrankedTensorType,
)
from xdsl.ir import Attribute, Operation, SSAValue, TypeAttribute
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.shape_checks import check_shapes
from distir.dialects.onnx_ops.shapes import bare_type
from distir.dialects.onnx_ops.values import (
    OptionalType,
    SequenceType,
    TensorAttr,
    constant_value,
    element_type,
    onnx_element_type,
    tensor_type,
    type_from_proto,
    type_to_proto,
)
from distir.dialects.onnx_ops.versions import OPSET_IMPORTS

KNOWN_SIZE = 1024
"""The largest number of elements of a constant that shape inference uses."""

_STAND_INS = (
    (TensorProto.DOUBLE, TensorProto.FLOAT),
    (TensorProto.BFLOAT16, TensorProto.FLOAT16),
)
"""
Pairs of element types: one that ONNX does not allow for some operators (f64, bf16) but
DistIR does, and the type that is used in its place for inference.
"""

ONNX_ERRORS = (
    shape_inference.InferenceError,
    checker.ValidationError,
    defs.SchemaError,
    version_converter.ConvertError,
    ValueError,
    TypeError,
    RuntimeError,
)
"""The exceptions that the onnx package raises for invalid ops and models."""

_TERM = rb"[A-Za-z\s]*(\.\.\.)?[A-Za-z\s]*"
_EQUATION = re.compile(_TERM + rb"(," + _TERM + rb")*(->" + _TERM + rb")?")
_PREFIX = re.compile(r"\[\w+Error\]\s*|\(op_type:[^)]*\):\s*")


def infer_node(
    schema: OpSchema,
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: Mapping[str, TensorProto],
    imports: Sequence[OperatorSetIdProto] = OPSET_IMPORTS,
) -> dict[str, TypeProto]:
    """
    Returns the types of a node's results, by name, as far as ONNX can infer them from
    the operands' `types` and from the operands' values in `known`. `imports` are the
    opsets of the operator. Raises one of `ONNX_ERRORS` if the node is invalid.
    """
    for attribute in node.attribute:
        # ONNX crashes or never returns if one of these attributes is invalid.
        if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
            raise ValueError(f"{attribute.s.decode()!r} is no equation of sums")
        if attribute.name == "num_outputs" and attribute.i != len(node.output):
            raise ValueError(
                f"num_outputs is {attribute.i}, but there are {len(node.output)} results"
            )
    given, left_out = dict(types), _left_out(schema, types.values())
    for wide, taken in left_out:
        given = {n: _with_element(t, wide, taken) for n, t in given.items()}
    found = shape_inference.infer_node_outputs(
        schema, node, given, dict(known), opset_imports=list(imports)
    )
    for wide, taken in left_out:
        found = {n: _with_element(t, taken, wide) for n, t in found.items()}
    return found


def _left_out(schema: OpSchema, types: Iterable[TypeProto]) -> list[tuple[int, int]]:
    """
    Returns the pairs of types in `_STAND_INS` that an inference needs: the first type
    occurs in `types`, but the schema does not allow it.
    """
    found = {_tensor(t).elem_type for t in types}
    return [
        (wide, taken)
        for wide, taken in _STAND_INS
        if wide in found and not _takes(schema, wide, taken)
    ]


@cache
def _takes(schema: OpSchema, wide: int, taken: int) -> bool:
    """
    Whether an operator allows the float type `wide` wherever it allows the type
    `taken`.
    """
    wide_name, taken_name = _type_name(wide), _type_name(taken)
    return all(
        kind.replace(taken_name, wide_name) in formal.types
        for formal in schema.inputs
        for kind in formal.types
        if taken_name in kind
    )


def _type_name(element: int) -> str:
    """Returns the name that schemas use for tensors with the element type `element`."""
    return f"tensor({TensorProto.DataType.Name(element).lower()})"


def _tensor(type_: TypeProto) -> TypeProto.Tensor:
    """
    Returns the tensor type within a type: `type_` itself, or the type of the tensors in
    a sequence or in an optional value.
    """
    while (kind := type_.WhichOneof("value")) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    return type_.tensor_type


def _with_element(type_: TypeProto, old: int, new: int) -> TypeProto:
    """
    Returns the type with element type `new` if its element type is `old`, else
    unchanged.
    """
    if _tensor(type_).elem_type != old:
        return type_
    changed = TypeProto()
    changed.CopyFrom(type_)
    _tensor(changed).elem_type = new
    return changed


def inferred_types(
    op: OnnxOp,
    operand_types: Sequence[Attribute],
    known: Sequence[npt.NDArray[Any] | None],
) -> list[Attribute | None]:
    """
    Returns the types of an op's results, inferred from its operands' types and from the
    operand values in `known`; an entry is None if ONNX does not infer the type. Raises
    VerifyException if the op cannot take such operands.
    """
    check_shapes(op, operand_types)
    operands = iter(range(len(op.operands)))
    names = ["" if v is None else f"x{next(operands)}" for v in op.input_values]
    # ONNX requires all results of a batch normalization in training, used or not.
    training = op.SCHEMA.name == "BatchNormalization" and op.attribute("training_mode")
    outputs = [f"y{i}" for i in range(3 if training else len(op.results))]
    try:
        node = node_of(op, names, outputs)
        found = infer_node(
            op.SCHEMA,
            node,
            {f"x{i}": type_to_proto(t) for i, t in enumerate(operand_types)},
            {
                f"x{i}": numpy_helper.from_array(value)
                for i, value in enumerate(known)
                if value is not None and value.size <= KNOWN_SIZE
            },
        )
        inferred = [
            type_from_proto(found[o]) if o in found else None
            for o in outputs[: len(op.results)]
        ]
    except ONNX_ERRORS as error:
        raise VerifyException(
            f"cannot take operands of types ({_shown(operand_types)}): "
            f"{_PREFIX.sub('', str(error))}"
        ) from error
    return list(inferred)


def node_of(op: OnnxOp, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
    """
    Returns the op as a node of an ONNX graph. `inputs` and `outputs` are the names of
    its values.
    """
    node = helper.make_node(op.SCHEMA.name, inputs, outputs, domain=op.SCHEMA.domain)
    # The type is given, as an empty list (a scalar's permutation) does not show it.
    node.attribute.extend(
        helper.make_attribute(
            name,
            _attribute(value),
            attr_type=op.SCHEMA.attributes[name].type.value,  # pyright: ignore[reportAttributeAccessIssue]
        )
        for name, value in op.onnx_attributes().items()
    )
    return node


def _attribute(value: Any) -> Any:
    if isinstance(value, TypeAttribute):
        return type_to_proto(value)
    if hasattr(value, "dtype"):
        return numpy_helper.from_array(value)
    return value


def _shown(types: Sequence[Attribute]) -> str:
    """Returns the types as text, without layouts."""
    return ", ".join(str(bare_type(t)) for t in types)


def contradicts(declared: Attribute, inferred: Attribute) -> bool:
    """
    Whether no value can have both types. An unknown size agrees with every size, and an
    unknown rank with every rank.
    """
    if isinstance(declared, UnrankedTensorType | TensorType) and isinstance(
        inferred, UnrankedTensorType | TensorType
    ):
        if declared.element_type != inferred.element_type:
            return True
        if isinstance(declared, UnrankedTensorType) or isinstance(
            inferred, UnrankedTensorType
        ):
            return False
        left, right = declared.get_shape(), inferred.get_shape()
        return len(left) != len(right) or any(
            a >= 0 and b >= 0 and a != b for a, b in zip(left, right, strict=True)
        )
    for kind in (SequenceType, OptionalType):
        if isinstance(declared, kind) and isinstance(inferred, kind):
            return contradicts(declared.element, inferred.element)
    return declared != inferred


_MAX_REMEMBERED = 1 << 16
_right: set[tuple[object, ...]] = set()
"""
The signatures of ops that passed the check. Layers repeat their ops, so most lookups
succeed.
"""


def check_types(op: OnnxOp) -> None:
    """
    Raises VerifyException unless the op's types are valid: its operand types fit its
    attributes and its constant operands, and its result types are the inferred ones.
    """
    operands = [v.type for v in op.operands]
    results = [r.type for r in op.results]
    known = [_small_constant(v) for v in op.operands]
    signature = (
        type(op),
        tuple(operands),
        tuple(results),
        tuple(known),
        tuple(op.properties.items()),
    )
    if signature in _right:
        return
    _check_schema_types(op)
    if op.name == "onnx.Constant" and "value" in op.properties:
        inferred: list[Attribute | None] = [_constant_type(op.properties["value"])]
    else:
        values = [None if attr is None else constant_value(attr) for attr in known]
        try:
            inferred = _reliable(op, operands, values)
        except VerifyException as error:
            scope = op.attributes.get(SCOPE)
            where = f" (in {scope.data})" if isinstance(scope, StringAttr) else ""
            raise VerifyException(f"{op.name}{where} {error}") from error
    for index, (declared, type_) in enumerate(zip(results, inferred, strict=True)):
        if type_ is not None and contradicts(declared, type_):
            raise VerifyException(
                f"{op.name}: result {index} is declared {bare_type(declared)}, but operands of "
                f"types ({_shown(operands)}) give {type_}"
            )
    if len(_right) >= _MAX_REMEMBERED:
        _right.clear()
    _right.add(signature)


def _reliable(
    op: OnnxOp, operands: Sequence[Attribute], known: Sequence[npt.NDArray[Any] | None]
) -> list[Attribute | None]:
    """
    Returns the types of an op's results like `inferred_types`, except where ONNX's
    inference is wrong. For an Einsum, whose broadcasts ONNX refuses or infers wrongly,
    all types are None; `check_shapes` checks the Einsum instead. For a Slice, whose
    sizes ONNX miscounts with negative steps, all sizes are unknown.
    """
    if op.SCHEMA.name == "Einsum":
        check_shapes(op, operands)
        return [None] * len(op.results)
    inferred = inferred_types(op, operands, known)
    if op.SCHEMA.name == "Slice" and isinstance(inferred[0], TensorType):
        unknown = [DYNAMIC_INDEX] * inferred[0].get_num_dims()
        return [tensor_type(unknown, inferred[0].element_type)]
    return inferred


def _small_constant(value: SSAValue) -> Attribute | None:
    """
    Returns the constant that defines an operand. Returns None if the operand is not a
    constant, or has more than `KNOWN_SIZE` elements.
    """
    owner, type_ = value.owner, value.type
    if not isinstance(owner, Operation) or owner.name != "onnx.Constant":
        return None
    if not isinstance(type_, TensorType) or prod(type_.get_shape()) > KNOWN_SIZE:
        return None
    return owner.properties.get("value")


def _constant_type(attr: Attribute) -> Attribute:
    """Returns the type of a constant's value, without decoding its elements."""
    if isinstance(attr, DenseIntOrFPElementsAttr):
        return attr.type
    if not isinstance(attr, TensorAttr):
        raise VerifyException(f"onnx.Constant: {attr} is not a constant tensor")
    proto = TensorProto.FromString(attr.data)
    return tensor_type(proto.dims, element_type(proto.data_type))


def _check_schema_types(op: OnnxOp) -> None:
    """
    Raises VerifyException unless the schema allows the type of every operand and
    result, and all types of one type variable of the schema are equal.
    """
    schema = op.SCHEMA
    bound: dict[str, tuple[str, str]] = {}
    inputs = op.input_values
    for what, formals, values in (
        ("operand", schema.inputs, inputs),
        ("result", schema.outputs, op.results),
    ):
        for index, value in enumerate(values):
            if value is None:
                continue
            formal = formals[min(index, len(formals) - 1)]
            kind = _kind(op, value.type)
            where = f"{what} {index} ({formal.name!r})"
            if not {kind, *_stand_ins(kind)} & set(formal.types):
                raise VerifyException(
                    f"{op.name}: {where} has type {bare_type(value.type)}, expected "
                    f"{_choice(formal.types)}"
                )
            if not formal.is_homogeneous or formal.type_str not in _variables(schema):
                continue
            first, before = bound.setdefault(formal.type_str, (kind, where))
            if first != kind:
                raise VerifyException(
                    f"{op.name}: {where} has type {bare_type(value.type)}, expected a {first} as "
                    f"{before}"
                )


def _stand_ins(kind: str) -> list[str]:
    """
    Returns the types that inference uses in place of the type `kind` if a schema does
    not allow `kind`.
    """
    pairs = [(_type_name(wide), _type_name(taken)) for wide, taken in _STAND_INS]
    return [kind.replace(wide, taken) for wide, taken in pairs if wide in kind]


def _variables(schema: OpSchema) -> frozenset[str]:
    """
    Returns the names of a schema's type variables. Each variable stands for the same
    type everywhere in the schema.
    """
    return frozenset(c.type_param_str for c in schema.type_constraints)


def _kind(op: OnnxOp, type_: Attribute) -> str:
    """
    Returns the name that schemas use for a type, without its shape. Raises
    VerifyException if ONNX has no such type.
    """
    try:
        if isinstance(type_, TensorType | UnrankedTensorType):
            number = onnx_element_type(type_.element_type)
            return _type_name(number)
    except ValueError as error:
        raise VerifyException(f"{op.name}: {error}") from error
    if isinstance(type_, SequenceType):
        return f"seq({_kind(op, type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({_kind(op, type_.element)})"
    raise VerifyException(f"{op.name}: ONNX has no values of type {type_}")


def _choice(kinds: Collection[str]) -> str:
    return ("one of " if len(kinds) > 1 else "") + ", ".join(sorted(kinds))
