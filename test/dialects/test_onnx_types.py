"""Ops whose types, attributes or constants do not fit are refused where they are read."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path
from random import Random

import pytest
from support.command_line import failure, write_program
from support.ill_typed_ops import Mutant, mutant
from support.thoroughness import sampled
from xdsl.dialects.builtin import TensorType
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist import Layout
from distir.dialects.tensors import rank_of
from distir.errors import DistIRError
from distir.sharding.mesh import Mesh
from distir.sharding.rule import infer, rule_for
from distir.tools.files import read_program

ILL_TYPED = {
    "axis": (
        "%0 = onnx.Gather(%x, %i) {axis = 2 : i64} : "
        "(tensor<4x4xf32>, tensor<2xi64>) -> tensor<4x2xf32>",
        "onnx.Gather cannot take operands of types (tensor<4x4xf32>, tensor<2xi64>): axis 2 is outside",
    ),
    "axis-unchecked-by-onnx": (
        "%0 = onnx.GatherElements(%x, %j) {axis = 2 : i64} : "
        "(tensor<4x4xf32>, tensor<4x4xi64>) -> tensor<4x4xf32>",
        "axis 2 is outside of 2 dimensions",
    ),
    "axis-of-64-bits": (
        "%0 = onnx.Gather(%x, %i) {axis = 4294967296 : i64} : "
        "(tensor<4x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>",
        "axis 4294967296 is outside",
    ),
    "element-type": (
        "%0 = onnx.Gather(%i, %x) : (tensor<2xi64>, tensor<4x4xf32>) -> tensor<4x4xi64>",
        "operand 1 ('indices') has type tensor<4x4xf32>, expected one of tensor(int32)",
    ),
    "element-types-differ": (
        "%0 = onnx.MatMul(%x, %j) : (tensor<4x4xf32>, tensor<4x4xi64>) -> tensor<4x4xf32>",
        "expected a tensor(float) as operand 0 ('A')",
    ),
    "result-shape": (
        "%0 = onnx.MatMul(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x5xf32>",
        "is declared tensor<4x5xf32>, but operands of types (tensor<4x4xf32>, "
        "tensor<4x4xf32>) give tensor<4x4xf32>",
    ),
    "result-element": (
        "%0 = onnx.Relu(%x) : (tensor<4x4xf32>) -> tensor<4x4xf64>",
        "result 0 ('Y') has type tensor<4x4xf64>, expected a tensor(float)",
    ),
    "constant": (
        "%0 = onnx.Constant() {value = dense<1> : tensor<2xi64>} : () -> tensor<3xi64>",
        "declared tensor<3xi64>",
    ),
    "constant-operand": (
        "%s = onnx.Constant() {value = dense<[2, 8]> : tensor<2xi64>} : () -> tensor<2xi64>"
        "\n%0 = onnx.Reshape(%x, %s) : (tensor<4x4xf32>, tensor<2xi64>) -> tensor<4x4xf32>",
        "give tensor<2x8xf32>",
    ),
    "step": (
        "%s = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>\n"
        "%0 = onnx.Slice(%x, %s, %s, %s, %s) : (tensor<4x4xf32>, tensor<1xi64>, "
        "tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<0x4xf32>",
        "'step' cannot be 0",
    ),
    "group": (
        "%0 = onnx.Conv(%c, %k) {group = 0 : i64} : "
        "(tensor<2x4x5xf32>, tensor<6x2x3xf32>) -> tensor<2x6x3xf32>",
        "attribute 'group' must be positive, got 0",
    ),
    "flag": (
        "%0 = onnx.ArgMax(%x) {keepdims = 2 : i64} : (tensor<4x4xf32>) -> tensor<4xi64>",
        "attribute 'keepdims' must be 0 or 1, got 2",
    ),
    "channels": (
        "%0 = onnx.Conv(%c, %k) : "
        "(tensor<2x4x5xf32>, tensor<6x2x3xf32>) -> tensor<2x6x3xf32>",
        "channels and weights differ, got 4 and 2",
    ),
    "normalized": (
        "%0 = onnx.InstanceNormalization(%i, %c, %i) : "
        "(tensor<2xf32>, tensor<2x4x5xf32>, tensor<2xf32>) -> tensor<2xf32>",
        "operand",
    ),
    # ONNX's own inference ends the process with the first, and does not end with the second.
    "results-of-split": (
        "%0 = onnx.Split(%x) {num_outputs = 2 : i64} : (tensor<4x4xf32>) -> tensor<2x4xf32>",
        "num_outputs is 2 of 1 results",
    ),
    "equation": (
        '%0 = onnx.Einsum(%x) {equation = "i...>-ji..."} : '
        "(tensor<4x4xf32>) -> tensor<4x4xf32>",
        "does not name the dimensions",
    ),
}


@pytest.mark.parametrize(("text", "message"), ILL_TYPED.values(), ids=ILL_TYPED)
def test_ill_typed_op_is_refused_where_it_is_read(
    tmp_path: Path, text: str, message: str
) -> None:
    program = write_program(
        tmp_path / "model.mlir",
        "func.func @main(%x: tensor<4x4xf32>, %i: tensor<2xi64>, %j: tensor<4x4xi64>, "
        f"%c: tensor<2x4x5xf32>, %k: tensor<6x2x3xf32>) {{\n{text}\nfunc.return\n}}",
    )
    if "InstanceNormalization" in text:
        program.write_text(
            program.read_text().replace("%i: tensor<2xi64>", "%i: tensor<2xf32>")
        )
    assert message in failure("check", program, program)


def test_unknown_shapes_fit_everything(tmp_path: Path) -> None:
    program = write_program(
        tmp_path / "model.mlir",
        """
        func.func @main(%x: tensor<?x4xf32>, %y: tensor<*xf32>, %z: tensor<4x5xf32>) {
          %0 = onnx.MatMul(%x, %z) : (tensor<?x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
          %1 = onnx.MatMul(%y, %z) : (tensor<*xf32>, tensor<4x5xf32>) -> tensor<?x?xf32>
          %2 = onnx.Relu(%y) : (tensor<*xf32>) -> tensor<2x3xf32>
          func.return
        }
        """,
    )
    read_program(program)


def test_a_list_without_elements_has_the_type_that_the_schema_says(
    tmp_path: Path,
) -> None:
    """The permutation of a scalar."""
    program = write_program(
        tmp_path / "model.mlir",
        """
        func.func @main(%x: tensor<f32>) -> tensor<f32> {
          %0 = onnx.Transpose(%x) {perm = []} : (tensor<f32>) -> tensor<f32>
          func.return %0 : tensor<f32>
        }
        """,
    )
    read_program(program)


MESH = Mesh("m", (("d", 2), ("t", 2)), (0, 1, 2, 3))


def check_rule(case: Mutant) -> None:
    """An op's rule names a factor of every dimension, of its size."""
    op = case.op
    rule = rule_for(op)
    values = [
        *zip(op.operands, rule.operands, strict=True),
        *zip(op.results, rule.results, strict=True),
    ]
    for value, dims in values:
        assert len(dims) == rank_of(value.type), str(op)
        if isinstance(value.type, TensorType):
            for size, dim in zip(value.type.get_shape(), dims, strict=True):
                held = prod(rule.factors[f].size for f in dim)
                assert not dim or held == size, str(op)
    infer(rule, [Layout("m")] * len(op.operands), MESH)


@pytest.mark.parametrize("seed", sampled(range(4), 2))
def test_rules_fit_every_op_that_is_accepted(seed: int) -> None:
    random = Random(seed)
    accepted = refused = 0
    for _ in range(1000):
        case = mutant(random)
        try:
            case.op.verify()
        except VerifyException:
            refused += 1
            continue
        accepted += 1
        with suppress(DistIRError):
            check_rule(case)
    assert accepted > 200 and refused > 200
