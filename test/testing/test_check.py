"""`check_op` finds what is wrong, and says where, on ops that are made for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerAttr, TensorType, f32, i64
from xdsl.ir import Block, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)

from distir.dialects.dist import Layout, Shard, with_layout
from distir.errors import DistIRError
from distir.extension import OpSupport, register_op
from distir.gradients.rule import gradient_rule
from distir.interpreters.reference import reference_function
from distir.lowering.emitter import torch_emitter
from distir.rules import RuleBuilder, elementwise_rule, rule_from_text
from distir.sharding.decompose import decomposition
from distir.sharding.local import local_form
from distir.sharding.rule import sharding_rule
from distir.testing import OpCheckError, check_op

NAME = "check.op"


@irdl_op_definition
class CheckedOp(IRDLOperation):
    """An op of any operands and results, for which nothing is known."""

    name = NAME
    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    count = opt_prop_def(IntegerAttr.constr(i64))


@irdl_op_definition
class DoubledOp(IRDLOperation):
    """An op for which all is said by a trait of its class."""

    name = "check.doubled"
    inputs = var_operand_def(TensorType)
    outputs = var_result_def(TensorType)
    traits = traits_def(
        OpSupport(
            rule=elementwise_rule("each"),
            reference=lambda op, x: 2 * x,
            gradient=lambda op, gradients, build: [
                build.onnx("Add", gradients[0], gradients[0])
            ],
            torch="2 * {0}",
        )
    )


REGISTRIES = (
    *(sharding_rule, reference_function, gradient_rule),
    *(torch_emitter, local_form, decomposition),
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is known to no other."""
    yield
    for registry in REGISTRIES:
        for name in (NAME, DoubledOp.name):
            registry.entries.pop(name, None)


def made(
    *shapes: tuple[int, ...], kind: type[Operation] = CheckedOp, **properties: Any
) -> Operation:
    """An op on tensors of these shapes, the last of which is that of its result."""
    *inputs, output = (TensorType(f32, shape) for shape in shapes)
    block = Block(arg_types=inputs)
    return kind.create(
        operands=block.args, result_types=[output], properties=properties
    )


MATRIX = (4, 8)
PRODUCT = made((4, 8), (8, 4), (4, 4))


def product(op: Operation, x: Any, y: Any) -> Any:
    return x @ y


def test_a_trait_says_everything() -> None:
    report = check_op(made(MATRIX, MATRIX, kind=DoubledOp))
    assert report.splits > 30 and report.partial > 3
    assert report.gradient and report.torch


def test_a_registration_overrules_a_trait() -> None:
    register_op(DoubledOp.name, OpSupport(torch="3 * {0}"))
    with pytest.raises(
        OpCheckError, match=r"PyTorch expression of check.doubled, 3 \*"
    ):
        check_op(made(MATRIX, MATRIX, kind=DoubledOp))


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        # A sum of which each device has terms is not a sum that each device has.
        (
            "m k, k n -> m n max k",
            "result 0, whose layout is partial max {a}",
        ),
        (
            "m k, k n -> m n linear 0+1",
            "operand 0 partial sum {a}, operand 1 partial sum",
        ),
        ("m k, k n -> m n linear max 0", "operand 0 partial max {a}"),
        # Rows of the one are no columns of the other.
        ("m k, k n -> n m", "on 2 devices (a=2) with operand 0"),
    ],
)
def test_wrong_rules_are_found(rule: str, says: str) -> None:
    register_op(NAME, OpSupport(rule=rule, reference=product))
    with pytest.raises(OpCheckError) as caught:
        check_op(PRODUCT)
    message = str(caught.value)
    assert message.startswith(NAME) and says in message and "\n" not in message


def test_right_rules_pass() -> None:
    text = "m k, k n -> m n linear 0, 1 flops 2*m*k*n"
    register_op(NAME, OpSupport(rule=text, reference=product))
    report = check_op(PRODUCT)
    assert str(report) == (
        f"{NAME}: {report.splits} splits and {report.partial} runs on partial values agree "
        f"with the reference"
    )
    assert report.splits > check_op(PRODUCT, splits=5).splits > 0


def test_wrong_gradients_are_found() -> None:
    support = OpSupport(
        rule="m n -> m n",
        reference=lambda op, x: x * x,
        gradient=lambda op, gradients, build: [
            build.onnx("Mul", gradients[0], op.inputs[0])
        ],
    )
    register_op(NAME, support)
    with pytest.raises(OpCheckError, match="argument 0: its gradient rule gives"):
        check_op(made(MATRIX, MATRIX))
    register_op(NAME, OpSupport(gradient=lambda op, gradients, build: [None]))
    with pytest.raises(OpCheckError, match="argument 0: without a gradient"):
        check_op(made(MATRIX, MATRIX))
    register_op(NAME, OpSupport(gradient=lambda op, gradients, build: []))
    with pytest.raises(DistIRError, match="gives 0 gradients for 1 operands"):
        check_op(made(MATRIX, MATRIX))


def test_a_local_form_is_needed_and_found_wrong() -> None:
    def reference(op: Any, x: Any) -> Any:
        return x.sum(1) / op.count.value.data

    def local(context: Any) -> list[Operation]:
        op = context.same_op()
        op.properties["count"] = IntegerAttr(
            context.op.operands[0].type.get_shape()[0], i64
        )
        return [op]

    op = made(MATRIX, (4,), count=IntegerAttr(8, i64))
    register_op(NAME, OpSupport(rule="m n -> m linear 0", reference=reference))
    check_op(op)
    register_op(NAME, OpSupport(local_form=local))
    with pytest.raises(OpCheckError, match="differs from the reference"):
        check_op(op)


def test_a_decomposition_is_compared() -> None:
    def parts(op: Any) -> list[Operation]:
        twice = CheckedOp.create(
            operands=[op.inputs[0]] * 2, result_types=op.result_types
        )
        return [twice]

    support = OpSupport(
        rule="m n, m n -> m n decompose n",
        decomposition=parts,
        reference=lambda op, x, y: x + y,
    )
    register_op(NAME, support)
    with pytest.raises(OpCheckError, match="decomposed: result 0"):
        check_op(made(MATRIX, MATRIX, MATRIX))


SUM = "m n -> m n"


@pytest.mark.parametrize(
    ("rule", "shapes", "reason"),
    [
        (None, (MATRIX, MATRIX), "has no sharding rule"),
        (SUM, ((3, 4), (3, 4)), "has 3 elements, which 2 devices cannot share"),
        ("m n -> n m", (MATRIX, MATRIX), "lets nothing be split"),
        ("m n -> m n keep m n", (MATRIX, MATRIX), "lets nothing be split"),
        (SUM, ((-1, 4), (-1, 4)), "needs numbers, and tensors of known shapes"),
        (lambda op: RuleBuilder(op).rule([], []), (MATRIX, MATRIX), "is for 0 results"),
        (
            lambda op: (b := RuleBuilder(op)).rule([[b.factor(4)]], [[()] * 2]),
            (MATRIX, MATRIX),
            "the factors of its dimensions in the sharding rule have sizes [4]",
        ),
        (
            lambda op: (b := RuleBuilder(op)).rule([(b.factor(4),) * 2], [[()] * 2]),
            ((4, 4), (4, 4)),
            "operand 0 has a factor of the sharding rule twice",
        ),
    ],
)
def test_ops_that_cannot_be_checked(rule: Any, shapes: Any, reason: str) -> None:
    register_op(NAME, OpSupport(rule=rule, reference=lambda op, x: x))
    with pytest.raises(OpCheckError) as caught:
        check_op(made(*shapes))
    assert reason in str(caught.value)


def test_what_is_given_to_it_is_checked() -> None:
    register_op(NAME, OpSupport(rule=SUM))
    op = made(MATRIX, MATRIX)
    with pytest.raises(DistIRError, match=r"register_op\('check.op', OpSupport\(ref"):
        check_op(op)
    register_op(NAME, OpSupport(reference=lambda op, x: x))
    with pytest.raises(OpCheckError, match="has 1 operands, but check_op got 2 arrays"):
        check_op(op, [np.zeros(MATRIX)] * 2)
    layout = Layout("m", ((Shard("a"),), ()))
    split = with_layout(TensorType(f32, MATRIX), layout)
    block = Block(arg_types=[split])
    laid_out = CheckedOp.create(operands=block.args, result_types=[split])
    with pytest.raises(OpCheckError, match="operand 0 has a layout"):
        check_op(laid_out)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (lambda op, x: (x, x), "gives 2 results, but the op has 1"),
        (lambda op, x: x[:2], r"an array of shape \[2, 8\] for result 0, whose type"),
    ],
)
def test_wrong_references_are_named(reference: Any, reason: str) -> None:
    register_op(NAME, OpSupport(rule=SUM, reference=reference))
    with pytest.raises(DistIRError, match=reason):
        check_op(made(MATRIX, MATRIX))


def test_an_error_of_a_reference_says_under_which_split() -> None:
    def reference(op: Any, x: Any) -> Any:
        return x.reshape(op.outputs[0].type.get_shape()) + np.zeros((4, 1))

    register_op(NAME, OpSupport(rule=SUM, reference=reference))
    with pytest.raises(ValueError) as caught:
        check_op(made(MATRIX, MATRIX))
    assert "on 2 devices (a=2) with operand 0 [{a}, {}]" in caught.value.__notes__[0]


def test_names_and_texts_are_checked_when_registered() -> None:
    with pytest.raises(DistIRError, match="'add' is no name of an op"):
        register_op("add", OpSupport())
    for text, reason in {
        "m k": "cannot read the factors",
        "m (k -> m": "cannot read the factors",
        "m 3 -> m": "'3' names no factor",
        "m k -> m keep z": "names z, which no dimension has; the factors are k, m",
        "m k -> m flops m*z": "names z",
        "m k -> m m": "'m' stands twice in one tensor",
        "m k -> m linear 1": "counts operands from 0, and there are 1",
        "m k -> m linear x": "invalid literal",
    }.items():
        with pytest.raises(DistIRError, match=f"rule '.*{reason}"):
            rule_from_text(text)
