"""
Weights of 8 and 4 bits. `quantize_weights` replaces products of activations and
parameter matrices, including those of experts, by products that read quantised weights,
and `quantized` converts the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import NAME, UPDATES
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.experts import GroupedProductOp
from distir.dialects.train_ops.quantized_rows import (
    DequantizeGroupsOp,
    DequantizeRowsOp,
)
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
    PACKED,
    WEIGHT_FORMATS,
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.errors import DistIRError, one_of
from distir.interpreters.train.quantized_weights import quantized_rows
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    result_attributes,
    return_op,
    set_argument_attributes,
)
from distir.program.rewriting import erase_dead
from distir.transforms.precision.float8 import (
    PARAMETER_VIEWS,
    builder_before,
    heads,
    is_linear,
    is_parameter,
)

Array = npt.NDArray[Any]

_Product = OnnxOp | GroupedProductOp
"""A product of activations and a matrix, or matrices of experts."""

_LEVELS = 15
"""The largest number of 4 bits."""

QUANTIZED, SCALE, ZERO = "quantized", "scale", "zero"
"""
The ends of the names of the tensors that stand for a parameter: `NAME.quantized`,
`NAME.scale`, and of 4 bits `NAME.zero`.
"""


@dataclass(frozen=True)
class QuantizedWeight:
    """
    How a parameter was quantised: to `format`, one of `WEIGHT_FORMATS`, in groups of
    `group` weights of a row (4 bits only). `is_turned` tells whether the quantised form
    `[..., n, k]` is the transpose of the parameter `[..., k, n]`.
    """

    format: str
    group: int
    is_turned: bool


def quantize_weights(
    module: ModuleOp, kind: str, group: int
) -> dict[str, QuantizedWeight]:
    """
    Replaces products of activations and parameter matrices, in place, by products with
    weights in the format `kind` (`WEIGHT_FORMATS`). Weights of 4 bits have a scale and
    a zero point for each `group` weights of a row. Grouped products of experts read
    matrices that an op in `CONVERSIONS` converts to floats. Parameters of the model's
    head, which computes the program's results, stay unchanged, and so do parameters
    that are also used in any other way, such as embeddings. The program must have one
    function; outline its layers later.

    Returns how each parameter was quantised, by name. Raises DistIRError if no
    parameter is quantised, or if the size of a group does not divide the rows of a
    matrix.
    """
    one_of("weight format", kind, WEIGHT_FORMATS, "quantize-weights")
    function = entry_function(module)
    roles = argument_roles(function)
    # New keys and values are results too, but not of the head.
    returned = zip(
        return_op(function).operands, result_attributes(function), strict=True
    )
    kept = heads(module, [value for value, own in returned if UPDATES not in own])
    chosen: dict[BlockArgument, list[tuple[_Product, bool]]] = {}
    refused = set[BlockArgument]()
    for op in function.body.block.ops:
        if op not in kept and _multiplies(op, roles):
            parameter, is_turned = _parameter(op)
            chosen.setdefault(parameter, []).append((op, is_turned))
    for parameter, products in chosen.items():
        uses = set(_users(parameter))
        if uses != {op for op, _ in products} or len({t for _, t in products}) > 1:
            refused.add(parameter)
    found: dict[str, QuantizedWeight] = {}
    for parameter in [p for p in chosen if p not in refused]:
        name = argument_names(function)[parameter.index]
        found[name] = QuantizedWeight(kind, group, chosen[parameter][0][1])
        _replace(function, parameter, chosen[parameter], found[name], name)
    if not found:
        raise DistIRError(
            "quantize-weights: the program has no product of activations and a matrix of "
            "parameters, beside the head, whose weights could have fewer bits; leave "
            "weights_dtype out"
        )
    return found


def _multiplies(op: Operation, roles: Sequence[str | None]) -> TypeGuard[_Product]:
    """
    Whether `op` multiplies activations by a parameter that is a matrix, or one matrix
    per expert.
    """
    if isinstance(op, GroupedProductOp):
        return is_parameter(op.matrices, roles)
    return isinstance(op, OnnxOp) and is_linear(op, roles)


def _parameter(op: _Product) -> tuple[BlockArgument, bool]:
    """
    Returns the parameter matrix of a product, or the matrices of all experts. Also
    returns whether this parameter has the shape `[..., k, n]`, because no transpose is
    between the parameter and the product.
    """
    if isinstance(op, GroupedProductOp):
        value, is_turned = op.matrices, op.transposed is None
    else:
        value, is_turned = op.operands[1], True
        if op.name == "onnx.Gemm" and op.attribute("transB"):
            is_turned = False
    while not isinstance(value, BlockArgument):
        assert isinstance(value.owner, Operation)
        is_turned ^= value.owner.name == "onnx.Transpose"
        value = value.owner.operands[0]
    return value, is_turned


def _users(value: SSAValue) -> Iterator[Operation]:
    """
    Yields the ops that use a value, directly or through transposes and other views.
    """
    for use in value.uses:
        op = use.operation
        if op.name in PARAMETER_VIEWS:
            yield from _users(op.results[0])
        else:
            yield op


def _replace(
    function: FuncOp,
    parameter: BlockArgument,
    products: list[tuple[_Product, bool]],
    weight: QuantizedWeight,
    name: str,
) -> None:
    """
    Replaces a parameter by the tensors of its quantised form, and replaces the products
    that use the parameter.
    """
    *each, rows, width = shape_of(parameter)
    if weight.is_turned:
        rows, width = width, rows
    lines = [*each, rows]
    types: dict[str, Attribute] = {}
    scale = element_type(products[0][0].results[0])
    if weight.format == "int4":
        if width % weight.group or weight.group % 2:
            raise DistIRError(
                f"quantize-weights: the rows of {name!r} have {width} weights, which groups "
                f"of {weight.group} do not divide evenly, two to a byte; choose another "
                f"size (weights_group)"
            )
        groups = [*lines, width // weight.group]
        types[QUANTIZED] = TensorType(PACKED, [*lines, width // 2])
        types[SCALE], types[ZERO] = (
            TensorType(scale, groups),
            TensorType(PACKED, groups),
        )
    else:
        types[QUANTIZED] = TensorType(EIGHT_BITS[weight.format][0], [*lines, width])
        types[SCALE] = TensorType(scale, lines)
    block, index = function.body.block, parameter.index
    attributes = argument_attributes(function)
    made = list[BlockArgument]()
    for place, (end, type_) in enumerate(types.items()):
        argument = block.insert_arg(type_, index + 1 + place)
        argument.name_hint = f"{parameter.name_hint or 'weight'}_{end}"
        made.append(argument)
    own = attributes[index]
    attributes[index : index + 1] = [
        {**own, NAME: NAME.attr(f"{name}.{end}")} for end in types
    ]
    for op, _ in products:
        build = builder_before(op)
        if isinstance(op, GroupedProductOp):
            kind = DequantizeGroupsOp if weight.format == "int4" else DequantizeRowsOp
            place = list(op.operands).index(op.matrices)
            type_ = TensorType(scale, [*lines, width])
            op.operands[place] = build.result(kind(*made, x=type_))
            op.transposed = UnitAttr()
            continue
        a = op.operands[0]
        kind = GroupQuantizedLinearOp if weight.format == "int4" else QuantizedLinearOp
        type_ = op.results[0].type
        y = build.result(kind(a, *made, y=type_))
        bias = op.input(2) if op.name == "onnx.Gemm" else None
        if bias is not None:
            y = build.onnx("Add", y, bias)
        y.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(y)
        Rewriter.erase_op(op)
    erase_dead(block)
    block.erase_arg(parameter)
    function.update_function_type()
    set_argument_attributes(function, attributes)


class QuantizedWeights(Mapping[str, Array]):
    """
    The weights of a program with quantised parameters, by name. `quantized` names the
    parameters of `weights` that are quantised. A parameter is quantised when a tensor
    of its quantised form is looked up.
    """

    def __init__(
        self, weights: Mapping[str, Array], quantized: Mapping[str, QuantizedWeight]
    ):
        self._weights, self._quantized = weights, quantized

    def __getitem__(self, name: str) -> Array:
        own, _, end = name.rpartition(".")
        if own in self._quantized:
            parts = quantized(self._weights[own], self._quantized[own])
            return parts[end]
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        for name in self._weights:
            if name not in self._quantized:
                yield name
                continue
            has_zero = self._quantized[name].format == "int4"
            for end in (QUANTIZED, SCALE, *((ZERO,) if has_zero else ())):
                yield f"{name}.{end}"

    def __len__(self) -> int:
        return sum(1 for _ in self)


def quantized(matrix: Array, weight: QuantizedWeight) -> dict[str, Array]:
    """
    Returns the quantised tensors of a parameter matrix, or of the matrices of experts,
    by the suffixes of their names. In 8 bits, the largest magnitude of each row becomes
    the largest 8-bit number. In 4 bits, the numbers span the range from the smallest to
    the largest weight of each group, which is extended to include zero. Scales have the
    type of the matrix.
    """
    rows = np.asarray(matrix.swapaxes(-1, -2) if weight.is_turned else matrix)
    exact = rows.astype(np.float32)
    if weight.format == "int4":
        groups = exact.reshape(*rows.shape[:-1], -1, weight.group)
        least = np.minimum(groups.min(-1), 0)
        most = np.maximum(groups.max(-1), 0)
        scale = _scales((most - least) / _LEVELS, rows.dtype)
        zero = np.clip(np.rint(-least / _wide(scale)), 0, _LEVELS)
        levels = np.rint(groups / _wide(scale)[..., None]) + zero[..., None]
        bits = np.clip(levels, 0, _LEVELS).astype(np.uint8)
        bits = bits.reshape(*rows.shape[:-1], -1, 2)
        packed = bits[..., 0] | bits[..., 1] << 4
        return {QUANTIZED: packed, SCALE: scale, ZERO: zero.astype(np.uint8)}
    numbers, scale = quantized_rows(rows, EIGHT_BITS[weight.format][0])
    return {QUANTIZED: numbers, SCALE: scale}


def _scales(scales: Array, dtype: npt.DTypeLike) -> Array:
    """Returns the scales in the type `dtype`, with 1 for rows of zeros."""
    return np.where(scales > 0, scales, 1).astype(dtype)


def _wide(scale: Array) -> Array:
    return scale.astype(np.float32)
