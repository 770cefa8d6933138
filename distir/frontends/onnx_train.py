"""Nodes of an ONNX model that stand for ops of the `train` dialect: mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, helper
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.experts import OPS
from distir.errors import DistIRError
from distir.frontends.onnx_names import node_name

_OPS: dict[str, type[TrainOp]] = {op.name.partition(".")[2]: op for op in OPS}


def is_train_node(node: NodeProto) -> bool:
    """Whether a node of our domain is one that `train_op` can read."""
    return node.op_type in _OPS


def train_op(
    node: NodeProto, operands: Sequence[SSAValue], types: Sequence[Attribute]
) -> Operation:
    """
    Returns the op that a node of our domain stands for, with these operands and result types.
    Raises DistIRError.
    """
    kind = _OPS[node.op_type]
    definition = kind.get_irdl_definition()
    results = [name for name, _ in definition.results]
    given: Mapping[str, int] = {
        a.name: helper.get_attribute_value(a) for a in node.attribute
    }
    fits = (
        len(results) == len(types)
        and set(given) <= set(definition.properties)
        and all(isinstance(v, int) for v in given.values())
        and len(operands) <= len(definition.operands)
        and all(isinstance(t, TensorType) for t in types)
    )
    numbers = {n: bool(v) if n == "transposed" else v for n, v in given.items()}
    try:
        if not fits:
            raise VerifyException(
                "its operands, results or attributes are not of that op"
            )
        op = kind(*operands, **numbers, **dict(zip(results, types, strict=True)))
        op.verify()
    except (VerifyException, ValueError) as error:
        raise DistIRError(
            f"{node_name(node)} cannot be imported: {error}; export the model again"
        ) from error
    return op
