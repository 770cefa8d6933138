"""Programs with random requests on random meshes; requests that met a mistake once."""

from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import parse
from support.random_programs import (
    Draw,
    arguments_of,
    assert_same_results,
    layouts,
    programs,
    shape_of,
)
from support.thoroughness import tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import MeshOp
from distir.dialects.dist import LAYOUT, ConstrainOp, LayoutAttr
from distir.errors import DistIRError
from distir.passes.partition import PartitionPass
from distir.passes.propagate_sharding import PropagateShardingPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.program import (
    argument_attributes,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.mesh import Mesh

MESHES = [
    (("d", 2), ("t", 2)),
    (("d", 2), ("t", 2), ("e", 2)),
    (("d", 2), ("t", 3)),
    (("one", 1), ("d", 2), ("t", 4)),
]


def partitioned(module: ModuleOp) -> ModuleOp:
    """The distributed program, verified."""
    clone = module.clone()
    for pass_ in (PropagateShardingPass(), PartitionPass(), VerifyDistributionPass()):
        pass_.apply(Context(), clone)
    return clone


def without_constraints(module: ModuleOp) -> ModuleOp:
    clone = module.clone()
    for op in list(clone.walk()):
        if isinstance(op, ConstrainOp):
            op.result.replace_all_uses_with(op.source)
            op.detach()
            op.erase()
    return clone


def assert_same(module: ModuleOp) -> None:
    arguments = arguments_of(module)
    assert_same_results(without_constraints(module), partitioned(module), arguments)


@st.composite
def annotated_programs(draw: Draw) -> ModuleOp:
    """Arguments and values have random requested layouts on a random mesh."""
    axes = draw(st.sampled_from(MESHES))
    devices = range(prod(size for _, size in axes))
    mesh = Mesh("m", axes, tuple(devices))
    module = draw(programs(mesh=draw(st.sampled_from([None, mesh]))))
    function = entry_function(module)
    attributes = argument_attributes(function)
    for arg, entry in zip(function.body.block.args, attributes, strict=True):
        if draw(st.booleans()):
            entry[LAYOUT] = LayoutAttr(draw(layouts(shape_of(arg), mesh)))
    set_argument_attributes(function, attributes)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(MeshOp("m", "c", list(axes), devices), first)
    return module


@settings(
    max_examples=tries(150), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(annotated_programs())
def test_random_requests(module: ModuleOp) -> None:
    assert_same(module)


def program(body: str, mesh: str = "<d = 2, t = 2> [0 to 4]") -> ModuleOp:
    return parse(f"device.mesh @m on @c {mesh}\n{body}")


def test_axes_of_a_merged_dimension_are_in_the_order_of_the_mesh() -> None:
    """The reshape's factors are split over t and d; a call needs {d, t}."""
    module = program(
        """
        func.func @merge(%x: tensor<4x4x4xf32>) -> tensor<1x2x32xf32> {
          %shape = onnx.Constant() {value = dense<[1, 2, 32]> : tensor<3xi64>}
            : () -> tensor<3xi64>
          %0 = onnx.Reshape(%x, %shape)
            : (tensor<4x4x4xf32>, tensor<3xi64>) -> tensor<1x2x32xf32>
          func.return %0 : tensor<1x2x32xf32>
        }
        func.func @main(%x: tensor<4x4x4xf32>
            {dist.layout = #dist.layout<@m, [{}, {t}, {d}]>}) -> tensor<1x2x32xf32> {
          %0 = func.call @merge(%x) : (tensor<4x4x4xf32>) -> tensor<1x2x32xf32>
          func.return %0 : tensor<1x2x32xf32>
        }"""
    )
    assert_same(module)
    ops = [op.name for op in partitioned(module).walk()]
    assert not any(name.startswith("collective.") for name in ops), ops


@pytest.mark.parametrize(
    ("shape", "merged", "layout"),
    [("4x4x4", (16, 4), "[{t:1}, {d}, {}]"), ("2x4x4", (8, 4), "[{t}, {d}, {}]")],
)
def test_a_merged_dimension_may_name_its_axes_in_another_order(
    shape: str, merged: tuple[int, int], layout: str
) -> None:
    """The reshape's rule gives {d:2, t:2}; the plan writes {t:4, d:2}, the same parts."""
    result = f"tensor<{merged[0]}x{merged[1]}xf32>"
    module = program(
        f"""
        func.func @main(%x: tensor<{shape}xf32>
            {{dist.layout = #dist.layout<@m, {layout}>}}) -> {result} {{
          %shape = onnx.Constant() {{value = dense<{list(merged)}> : tensor<2xi64>}}
            : () -> tensor<2xi64>
          %0 = onnx.Reshape(%x, %shape)
            : (tensor<{shape}xf32>, tensor<2xi64>) -> {result}
          func.return %0 : {result}
        }}"""
    )
    assert_same(module)


def test_a_returned_value_keeps_only_splits_that_fit_together() -> None:
    """Both axes on dimension 0 (d from a later use) would be too many."""
    assert_same(
        program(
            """
            func.func @main(%x: tensor<4x8xf32>
                {dist.layout = #dist.layout<@m, [{t}, {d}]>})
                -> (tensor<4x8xf32>, tensor<4x8xf32>) {
              %0 = dist.constrain %x to <@m, [{d}, {t}]>
                : tensor<4x8xf32> -> tensor<4x8xf32>
              func.return %0, %x : tensor<4x8xf32>, tensor<4x8xf32>
            }""",
            "<d = 2, t = 4> [0 to 8]",
        )
    )


def test_gemm_of_a_value_with_itself_is_decomposed() -> None:
    """Axis d splits the rows of one operand, axis t the inner dimension of both."""
    module = program(
        """
        func.func @main(%x: tensor<8x8xf32>
            {dist.layout = #dist.layout<@m, [{d}, {t}]>}, %b: tensor<8x8xf32>)
            -> tensor<8x8xf32> {
          %0 = onnx.Gemm(%x, %x, %b) {transB = 1 : i64}
            : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          func.return %0 : tensor<8x8xf32>
        }"""
    )
    assert_same(module)


CONSTRAINED = """
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = dist.constrain %x to <@m, {}> : tensor<8x8xf32> -> tensor<8x8xf32>
  func.return %0 : tensor<8x8xf32>
}}"""
CALLING = """
func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = func.call @{}(%x) : (tensor<8xf32>) -> tensor<8xf32>
  func.return %0 : tensor<8xf32>
}}
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
  func.return %0 : tensor<8xf32>
}}
func.func private @external(tensor<8xf32>) -> tensor<8xf32>"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (CONSTRAINED.format("[{t, d}, {}]"), "in the order of mesh @m"),
        (CONSTRAINED.format("[{}, {}], partial sum {d}"), "cannot ask for .* partial"),
        (CONSTRAINED.format("[{t:4}, {}]"), "write {t} instead of {t:4}"),
        (CONSTRAINED.format("[{t:3}, {}]"), "cannot be split evenly"),
        (CONSTRAINED.format("[{t}]"), "is for 1 dimensions"),
        (CALLING.format("f"), "in a circle"),
        (CALLING.format("external"), "@external has 0 blocks"),
    ],
)
def test_what_cannot_be_met_is_an_error(body: str, words: str) -> None:
    with pytest.raises(DistIRError, match=words):
        partitioned(program(body))


def test_calls_that_nest_too_deep() -> None:
    functions = [
        f"""
        func.func @f{i}(%x: tensor<8xf32>) -> tensor<8xf32> {{
          %0 = func.call @f{i + 1}(%x) : (tensor<8xf32>) -> tensor<8xf32>
          func.return %0 : tensor<8xf32>
        }}"""
        for i in range(120)
    ]
    last = "func.func @f120(%x: tensor<8xf32>) -> tensor<8xf32> {func.return %x : tensor<8xf32>}"
    main = functions[0].replace("@f1(", "@f0(").replace("@f0(%x:", "@main(%x:")
    with pytest.raises(DistIRError, match="run inline-calls first"):
        partitioned(program("\n".join([*functions, last, main])))
