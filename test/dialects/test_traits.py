"""Facts hold of ONNX operators by name, and of ops of any dialect whose classes state them."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32
from xdsl.dialects.test import TestOp
from xdsl.ir import Block
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def

from distir.dialects.onnx import operator
from distir.dialects.onnx_ops import traits
from distir.dialects.op_facts import OpFacts
from distir.interpreters.simulator.fusion import ELEMENTWISE, joins
from distir.lowering.rewrites.sharing import is_fresh

ROW = TensorType(f32, [4])


@irdl_op_definition
class DoubleOp(IRDLOperation, OpFacts):
    """An op of somebody's own dialect."""

    name = "mine.double"
    IS_ELEMENTWISE: ClassVar[bool] = True
    IS_FRESH: ClassVar[bool] = True

    x = operand_def(TensorType)
    y = result_def(TensorType)


def test_a_class_of_another_dialect_states_facts() -> None:
    (x,) = TestOp(result_types=[ROW]).results
    relu = operator("Relu").build_op([x], [ROW])
    double = DoubleOp(operands=[relu.results[0]], result_types=[ROW])
    Block([relu, double])
    assert traits.ELEMENTWISE.of(relu) and traits.ELEMENTWISE.of(double)
    assert not traits.VIEWS.of(double)
    assert joins(double, frozenset({ELEMENTWISE})) is relu.results[0]
    assert is_fresh(double) and not is_fresh(x.owner)


def test_a_fact_can_be_widened() -> None:
    (x,) = TestOp(result_types=[ROW]).results
    softmax = operator("Softmax").build_op([x], [ROW])
    assert not traits.ELEMENTWISE.of(softmax)
    assert (traits.ELEMENTWISE | {"onnx.Softmax"}).of(softmax)
