"""
Reads nodes of DistIR's own ONNX domain, which `experts.py`, `functions.py` and
`opaque.py` in `torch/export` write. The nodes become ops of the `train` dialect, or
ONNX operators that PyTorch's exporter does not write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops.values import element_type as element_type_of_code
from distir.dialects.tensors import element_type, rank_of, shape_of
from distir.dialects.train_ops.determinant import SlogdetOp
from distir.dialects.train_ops.experts import (
    CombineOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductOp,
)
from distir.dialects.train_ops.losses import CtcLossOp
from distir.dialects.train_ops.opaque import OpaqueOp
from distir.dialects.train_ops.paged_attention import PagedReadOp, PagedWriteOp
from distir.dialects.train_ops.selective_scan import SelectiveScanOp
from distir.errors import DistIRError
from distir.frontends.custom_operators import custom_operator
from distir.frontends.onnx.names import TRAIN_DOMAIN
from distir.sharding.opaque_rule import parse_opaque_rule

Values = Sequence[SSAValue]
Numbers = Mapping[str, int]
Read = Callable[[Values, Numbers], Operation]


def _node(
    name: str, ranks: Sequence[int | None], *numbers: str
) -> Callable[[Read], Read]:
    """
    Returns a decorator that registers the reader of nodes called `name`. The node has
    one operand for each entry of `ranks`, the operand's number of dimensions (None: any
    number), and the integer attributes `numbers`.
    """

    def register(read: Read) -> Read:
        @custom_operator(f"{TRAIN_DOMAIN}::{name}")
        def checked(  # pyright: ignore[reportUnusedFunction]
            operands: Sequence[SSAValue | None], attributes: Mapping[str, Any]
        ) -> Operation:
            found = [rank_of(v.type) for v in operands if v is not None]
            fits = len(found) == len(ranks) and all(
                expected in (None, rank)
                for rank, expected in zip(found, ranks, strict=True)
            )
            if not fits or len(found) != len(operands):
                raise ValueError(f"its operands are not those of train.{name}")
            if not all(isinstance(attributes.get(n), int) for n in numbers):
                raise ValueError(
                    f"train.{name} needs the integers {', '.join(numbers)}"
                )
            given = {n: attributes[n] for n in numbers}
            op = read(cast(Values, operands), given)
            try:
                op.verify()
            except VerifyException as error:
                raise ValueError(str(error)) from error
            return op

        return read

    return register


def _tensor(like: SSAValue, *sizes: int) -> Attribute:
    """Returns a tensor type with the shape `sizes` and the element type of `like`."""
    return TensorType(element_type(like), sizes)


@_node("expert_places", [3], "experts", "capacity", "shards", "places")
def expert_places(operands: Values, numbers: Numbers) -> Operation:
    (ids,) = operands
    return ExpertPlacesOp(
        ids,
        experts=numbers["experts"],
        capacity=numbers["capacity"],
        rows=_tensor(ids, numbers["shards"], shape_of(ids)[0], numbers["places"]),
    )


@_node("dispatch", [3, 3, 3])
def dispatch(operands: Values, numbers: Numbers) -> Operation:
    x, slots, rows = operands
    result = _tensor(x, *shape_of(rows), shape_of(x)[2])
    return DispatchOp(x, slots, rows, result=result)


@_node("combine", [4, 3, 3, 3])
def combine(operands: Values, numbers: Numbers) -> Operation:
    x, slots, rows, weights = operands
    result = _tensor(x, *shape_of(slots)[:2], shape_of(x)[3])
    return CombineOp(x, slots, rows, weights, result=result)


@_node("grouped_product", [4, 3, 3], "transposed", "taken")
def grouped_product(operands: Values, numbers: Numbers) -> Operation:
    x, rows, matrices = operands
    width = shape_of(matrices)[1 if numbers["transposed"] else 2]
    return GroupedProductOp(
        x,
        rows,
        matrices,
        transposed=bool(numbers["transposed"]),
        taken=numbers["taken"],
        result=_tensor(x, *shape_of(x)[:3], width),
    )


@_node("selective_scan", [3, 3, 2, 3, 3])
def selective_scan(operands: Values, numbers: Numbers) -> Operation:
    return SelectiveScanOp(*operands)


@_node("cumprod", [None, 0])
def cumprod(operands: Values, numbers: Numbers) -> Operation:
    return operator("CumProd").build_op(operands, [operands[0].type], {})


@_node("cache_write", [4, 4, 1])
def cache_write(operands: Values, numbers: Numbers) -> Operation:
    attributes = {"axis": -2, "mode": "circular"}
    return operator("TensorScatter").build_op(operands, [operands[0].type], attributes)


@_node("paged_write", [5, 4, 2, 1])
def paged_write(operands: Values, numbers: Numbers) -> Operation:
    return PagedWriteOp(*operands)


@_node("paged_read", [5, 2])
def paged_read(operands: Values, numbers: Numbers) -> Operation:
    return PagedReadOp(*operands)


@_node("slogdet", [None])
def slogdet(operands: Values, numbers: Numbers) -> Operation:
    return SlogdetOp(*operands)


@_node("ctc_loss", [3, 2, 1, 1], "blank", "zero_infinity")
def ctc_loss(operands: Values, numbers: Numbers) -> Operation:
    zero_infinity = bool(numbers["zero_infinity"])
    return CtcLossOp(*operands, blank=numbers["blank"], zero_infinity=zero_infinity)


_TEXTS = (
    *("module", "rule", "arguments", "flops", "gradient_flops"),
    *("workspace", "gradient_workspace", "sent"),
)
_FLAGS = ("trains", "draws")


@custom_operator(f"{TRAIN_DOMAIN}::opaque")
def opaque(
    operands: Sequence[SSAValue | None], attributes: Mapping[str, Any]
) -> Operation:
    """
    Returns the op of an opaque module. Raises ValueError if the attributes or operands
    contradict the sharding rule of the module.
    """
    inputs = [value for value in operands if value is not None]
    texts = {name: _text(attributes[name]) for name in _TEXTS if name in attributes}
    names = [StringAttr(_text(name)) for name in attributes.get("tensors", ())]
    dtypes = attributes.get("dtypes", ())
    try:
        factors = parse_opaque_rule(texts.get("rule", "")).factors
        sizes = factors.of_operands.sizes([shape_of(v) for v in inputs], [])
    except DistIRError as error:
        raise ValueError(str(error)) from error
    if "module" not in texts or len(dtypes) != len(factors.results):
        raise ValueError("it lacks the name of a module or the types of its results")
    types = [
        TensorType(element_type_of_code(int(code)), factors.shape(dims, sizes))
        for code, dims in zip(dtypes, factors.results, strict=True)
    ]
    return OpaqueOp(
        inputs,
        None,
        [],
        **texts,
        **{name: bool(attributes.get(name, 0)) for name in _FLAGS},
        tensors=ArrayAttr(names) if names else None,
        outputs=types,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
