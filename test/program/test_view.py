"""The view of a program says the same as the functions that ask for each fact."""

import pytest
from support.programs import parse
from xdsl.context import Context

from distir.dialects.dist import Layout, Shard, layout_of
from distir.errors import DistIRError
from distir.passes.distribute import DistributePass
from distir.program import Program, arguments_of, batch_size, results_of

STEP = """
func.func @main(
    %x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
    %m: tensor<8x8xf32> {dist.role = "state", dist.name = "w.m", dist.of = "w"}
) -> (tensor<4x8xf32> {dist.name = "y"},
      tensor<8x8xf32> {dist.name = "w'", dist.updates = "w"},
      tensor<8x8xf32> {dist.name = "g", dist.role = "gradient", dist.of = "w.m"}) {
  %y = func.call @layer(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %y, %w, %m : tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
func.func private @layer(%a: tensor<4x8xf32>, %b: tensor<8x8xf32>) -> tensor<4x8xf32> {
  %c = onnx.MatMul(%a, %b) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %c : tensor<4x8xf32>
}
"""


def test_arguments_and_results_are_described_at_once() -> None:
    program = Program(parse(STEP))
    assert [(a.index, a.name, a.role) for a in program.arguments] == [
        (0, "x", "input"),
        (1, "w", "parameter"),
        (2, "w.m", "state"),
    ]
    assert [(r.index, r.name, r.role) for r in program.results] == [
        (0, "y", "output"),
        (1, "w'", "output"),
        (2, "g", "gradient"),
    ]
    assert program.results[1].value is program.arguments[1].value
    assert program.results[1].type == program.arguments[1].type
    assert [f.sym_name.data for f in program.functions] == ["layer", "main"]
    assert program.updates == {1: 1}
    assert (program.links, program.states) == ({1: 1, 2: 2}, {2: 1})
    assert program.trains


def test_functions_that_are_called_have_arguments_too() -> None:
    layer, _ = Program(parse(STEP)).functions
    assert [a.name for a in arguments_of(layer)] == ["a", "b"]
    assert [r.name for r in results_of(layer)] == ["output0"]


def test_layouts_are_those_of_the_types() -> None:
    module = parse(STEP)
    DistributePass(d=2, cluster="dgx2").apply(Context(), module)
    program = Program(module)
    assert [a.layout for a in program.arguments] == [
        layout_of(v) for v in program.entry.body.block.args
    ]
    assert program.arguments[0].layout == Layout("mesh", ((Shard("d"),), ()))


def test_the_batch_is_the_first_dimension_of_the_first_input_that_has_one() -> None:
    assert batch_size(Program(parse(STEP)).entry) == 4
    scalar = STEP.replace("@main(", '@main(%s: tensor<i64> {dist.role = "input"},')
    assert batch_size(Program(parse(scalar)).entry) == 4
    assert batch_size(Program(parse(STEP.replace('"input"', '"label"'))).entry) is None


def test_unknown_role() -> None:
    program = Program(parse(STEP.replace('"parameter"', '"parametre"')))
    with pytest.raises(DistIRError, match="parametre"):
        _ = program.arguments
