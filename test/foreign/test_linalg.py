"""
Programs of `linalg`, `tensor`, `arith` and `math`: distributed in place, and compared
with xDSL's own interpreter, or with NumPy where it has no implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.cases import named
from support.sharding_harness import SAMPLES
from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.interpreter import Interpreter
from xdsl.interpreters import register_implementations
from xdsl.interpreters.math import MathFunctions
from xdsl.interpreters.shaped_array import ShapedArray
from xdsl.interpreters.utils.ptr import TypedPtr

from distir.dialects.collective_ops.over_axes import AllReduceOp
from distir.interpreters.reference import run_program
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.program import entry_function
from distir.sharding.rule import rule_for
from distir.sharding.verification import verify_distribution
from distir.testing import check_op
from distir.text.parser import ProgramParser
from distir.transforms.projection import devices_of, project
from distir.universe import DISTIR_UNIVERSE

Array = npt.NDArray[Any]

MATMUL = """indexing_maps = [affine_map<(i, j, k) -> (i, k)>,
    affine_map<(i, j, k) -> (k, j)>, affine_map<(i, j, k) -> (i, j)>],
    iterator_types = ["parallel", "parallel", "reduction"]"""
ADDED_PRODUCT = """^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %c, %m : f32
      linalg.yield %s : f32"""

MLP = f"""
func.func @main(
    %x: tensor<8x16xf32> {{dist.role = "input", dist.name = "x"}},
    %w: tensor<16x32xf32> {{dist.role = "parameter", dist.name = "w"}},
    %v: tensor<32x16xf32> {{dist.role = "parameter", dist.name = "v"}}
) -> tensor<8x16xf32> {{
  %z = tensor.empty() : tensor<8x32xf32>
  %h = linalg.generic {{{MATMUL}}} ins(%x, %w : tensor<8x16xf32>, tensor<16x32xf32>)
    outs(%z : tensor<8x32xf32>) {{
    {ADDED_PRODUCT}
    }} -> tensor<8x32xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>,
    affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
    ins(%h : tensor<8x32xf32>) outs(%z : tensor<8x32xf32>) {{
    ^bb0(%a: f32, %b: f32):
      %no = arith.constant 0.0 : f32
      %m = arith.maximumf %a, %no : f32
      linalg.yield %m : f32
    }} -> tensor<8x32xf32>
  %y0 = tensor.empty() : tensor<8x16xf32>
  %y = linalg.matmul ins(%r, %v : tensor<8x32xf32>, tensor<32x16xf32>)
    outs(%y0 : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}}
"""

ATTENTION = """
#q = affine_map<(h, i, j, k) -> (h, i, k)>
#k = affine_map<(h, i, j, k) -> (h, j, k)>
#s = affine_map<(h, i, j, k) -> (h, i, j)>
#all = affine_map<(h, i, j) -> (h, i, j)>
#row = affine_map<(h, i, j) -> (h, i)>
func.func @main(
    %q: tensor<4x6x8xf32> {dist.role = "input", dist.name = "q"},
    %k: tensor<4x6x8xf32> {dist.role = "input", dist.name = "k"},
    %v: tensor<4x6x8xf32> {dist.role = "input", dist.name = "v"},
    %w: tensor<4x8x16xf32> {dist.role = "parameter", dist.name = "w"}
) -> tensor<6x16xf32> {
  %e = tensor.empty() : tensor<4x6x6xf32>
  %z = tensor.empty() : tensor<4x6x6xf32>
  %scores = linalg.generic {indexing_maps = [#q, #k, #s],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%q, %k : tensor<4x6x8xf32>, tensor<4x6x8xf32>) outs(%z : tensor<4x6x6xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %c, %m : f32
      linalg.yield %s : f32
  } -> tensor<4x6x6xf32>
  %exp = linalg.exp ins(%scores : tensor<4x6x6xf32>) outs(%e : tensor<4x6x6xf32>) -> tensor<4x6x6xf32>
  %zr = tensor.empty() : tensor<4x6xf32>
  %sums = linalg.generic {indexing_maps = [#all, #row],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%exp : tensor<4x6x6xf32>) outs(%zr : tensor<4x6xf32>) {
    ^bb0(%a: f32, %c: f32):
      %s = arith.addf %c, %a : f32
      linalg.yield %s : f32
  } -> tensor<4x6xf32>
  %p = linalg.generic {indexing_maps = [#all, #row, #all],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%exp, %sums : tensor<4x6x6xf32>, tensor<4x6xf32>) outs(%e : tensor<4x6x6xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %no = arith.constant 0.0 : f32
      %l = math.log %b : f32
      %n = arith.subf %no, %l : f32
      %i = math.exp %n : f32
      %m = arith.mulf %a, %i : f32
      linalg.yield %m : f32
  } -> tensor<4x6x6xf32>
  %zo = tensor.empty() : tensor<4x6x8xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(h, i, j, k) -> (h, i, j)>,
      affine_map<(h, i, j, k) -> (h, j, k)>, affine_map<(h, i, j, k) -> (h, i, k)>],
      iterator_types = ["parallel", "parallel", "reduction", "parallel"]}
      ins(%p, %v : tensor<4x6x6xf32>, tensor<4x6x8xf32>) outs(%zo : tensor<4x6x8xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %c, %m : f32
      linalg.yield %s : f32
  } -> tensor<4x6x8xf32>
  %zy = tensor.empty() : tensor<6x16xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, n, h, k) -> (h, i, k)>,
      affine_map<(i, n, h, k) -> (h, k, n)>, affine_map<(i, n, h, k) -> (i, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%o, %w : tensor<4x6x8xf32>, tensor<4x8x16xf32>) outs(%zy : tensor<6x16xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %c, %m : f32
      linalg.yield %s : f32
  } -> tensor<6x16xf32>
  func.return %y : tensor<6x16xf32>
}
"""


def one_op(arguments: str, op: str, result: str) -> str:
    """A program of one op on arguments `%a0`, `%a1`, ..., of the given types."""
    given = ", ".join(f"%a{i}: {t}" for i, t in enumerate(arguments.split(", ")))
    return f"func.func @main({given}) -> {result} {{\n  %y = {op}\n  func.return %y : {result}\n}}"


ADDED = "linalg.matmul ins(%a0, %a1 : tensor<4x8xf32>, tensor<8x6xf32>) outs(%a2 : tensor<4x6xf32>) -> tensor<4x6xf32>"
MAXIMUM = """linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>,
    affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
    ins(%a0 : tensor<4x8xf32>) outs(%a1 : tensor<4xf32>) {
    ^bb0(%a: f32, %c: f32):
      %m = arith.maximumf %a, %c : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>"""
HALVED = MAXIMUM.replace(
    "%m = arith.maximumf %a, %c : f32",
    "%s = arith.addf %a, %c : f32\n      %m = arith.mulf %s, %s : f32",
)
POSITIONS = """linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>,
    affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%a0 : tensor<4x8xf32>) outs(%a1 : tensor<4x8xf32>) {
    ^bb0(%a: f32, %c: f32):
      %i = linalg.index 1 : index
      %k = arith.index_cast %i : index to i32
      %f = arith.sitofp %k : i32 to f32
      %m = arith.addf %a, %f : f32
      linalg.yield %m : f32
    } -> tensor<4x8xf32>"""
REDUCED = """linalg.reduce ins(%a0 : tensor<4x8x2xf32>) outs(%a1 : tensor<4x2xf32>) dimensions = [1]
    (%a: f32, %c: f32) {
      %s = arith.addf %a, %c : f32
      linalg.yield %s : f32
    }"""
CONVOLUTION = "linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>} ins(%a0, %a1 : tensor<2x4x7x7xf32>, tensor<6x4x3x3xf32>) outs(%a2 : tensor<2x6x3x3xf32>) -> tensor<2x6x3x3xf32>"


def convolution(x: Array, w: Array, y: Array) -> Array:
    views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    return y + np.einsum("nchwij,fcij->nfhw", views, w)


def folded(x: Array, y: Array) -> Array:
    for column in x.T:
        y = (column + y) ** 2
    return y


OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a product added to its output": (
        one_op(
            "tensor<4x8xf32>, tensor<8x6xf32>, tensor<4x6xf32>",
            ADDED,
            "tensor<4x6xf32>",
        ),
        lambda a, b, c: a @ b + c,
    ),
    "a maximum": (
        one_op("tensor<4x8xf32>, tensor<4xf32>", MAXIMUM, "tensor<4xf32>"),
        lambda a, c: np.maximum(a.max(1), c),
    ),
    "no reduction": (
        one_op("tensor<4x8xf32>, tensor<4xf32>", HALVED, "tensor<4xf32>"),
        folded,
    ),
    "positions": (
        one_op("tensor<4x8xf32>, tensor<4x8xf32>", POSITIONS, "tensor<4x8xf32>"),
        lambda a, c: a + np.arange(8),
    ),
    "reduce": (
        one_op("tensor<4x8x2xf32>, tensor<4x2xf32>", REDUCED, "tensor<4x2xf32>"),
        lambda a, c: a.sum(1) + c,
    ),
    "broadcast": (
        one_op(
            "tensor<4xf32>, tensor<8x4x2xf32>",
            "linalg.broadcast ins(%a0 : tensor<4xf32>) outs(%a1 : tensor<8x4x2xf32>) dimensions = [0, 2]",
            "tensor<8x4x2xf32>",
        ),
        lambda a, c: np.broadcast_to(a[None, :, None], c.shape),
    ),
    "fill": (
        one_op(
            "f32, tensor<4x8xf32>",
            "linalg.fill ins(%a0 : f32) outs(%a1 : tensor<4x8xf32>) -> tensor<4x8xf32>",
            "tensor<4x8xf32>",
        ),
        lambda a, c: np.full_like(c, a),
    ),
    "transpose": (
        one_op(
            "tensor<4x8x2xf32>, tensor<2x4x8xf32>",
            "linalg.transpose ins(%a0 : tensor<4x8x2xf32>) outs(%a1 : tensor<2x4x8xf32>) permutation = [2, 0, 1]",
            "tensor<2x4x8xf32>",
        ),
        lambda a, c: a.transpose(2, 0, 1),
    ),
    "a convolution": (
        one_op(
            "tensor<2x4x7x7xf32>, tensor<6x4x3x3xf32>, tensor<2x6x3x3xf32>",
            CONVOLUTION,
            "tensor<2x6x3x3xf32>",
        ),
        convolution,
    ),
    "expand": (
        one_op(
            "tensor<8x6xf32>",
            "tensor.expand_shape %a0 [[0, 1], [2]] output_shape [4, 2, 6] : tensor<8x6xf32> into tensor<4x2x6xf32>",
            "tensor<4x2x6xf32>",
        ),
        lambda a: a.reshape(4, 2, 6),
    ),
    "collapse": (
        one_op(
            "tensor<4x2x6xf32>",
            "tensor.collapse_shape %a0 [[0, 1], [2]] : tensor<4x2x6xf32> into tensor<8x6xf32>",
            "tensor<8x6xf32>",
        ),
        lambda a: a.reshape(8, 6),
    ),
    "concat": (
        one_op(
            "tensor<4x8xf32>, tensor<4x2xf32>",
            "tensor.concat dim(1) %a0, %a1 : (tensor<4x8xf32>, tensor<4x2xf32>) -> tensor<4x10xf32>",
            "tensor<4x10xf32>",
        ),
        lambda a, b: np.concatenate([a, b], 1),
    ),
    "a slice": (
        one_op(
            "tensor<4x8x6xf32>",
            "tensor.extract_slice %a0[0, 1, 0] [4, 3, 6] [1, 2, 1] : tensor<4x8x6xf32> to tensor<4x3x6xf32>",
            "tensor<4x3x6xf32>",
        ),
        lambda a: a[:, 1:7:2],
    ),
    "a slice of fewer dimensions": (
        one_op(
            "tensor<3x4x8xf32>",
            "tensor.extract_slice %a0[1, 0, 0] [1, 4, 8] [1, 1, 1] : tensor<3x4x8xf32> to tensor<4x8xf32>",
            "tensor<4x8xf32>",
        ),
        lambda a: a[1],
    ),
    "a replaced part": (
        one_op(
            "tensor<4x8xf32>, tensor<3x4x8xf32>",
            "tensor.insert_slice %a0 into %a1[2, 0, 0] [1, 4, 8] [1, 1, 1] : tensor<4x8xf32> into tensor<3x4x8xf32>",
            "tensor<3x4x8xf32>",
        ),
        lambda a, b: np.concatenate([b[:2], a[None]]),
    ),
    "tensors of arith and math": (
        one_op("tensor<4x8xf32>", "math.tanh %a0 : tensor<4x8xf32>", "tensor<4x8xf32>"),
        np.tanh,
    ),
}


def parse(text: str) -> ModuleOp:
    """The program, read with DistIR's dialects and all of xDSL's."""
    context = all_dialects()
    for dialect in DISTIR_UNIVERSE.all_dialects.values():
        context.load_dialect(dialect())
    return ProgramParser(context, text).parse_module()


def all_dialects() -> Context:
    context = Context()
    for name, dialect in get_all_dialects().items():
        context.register_dialect(name, dialect)
    return context


def inputs_of(module: ModuleOp, seed: int = 0) -> list[Array]:
    """Numbers for the arguments of a program."""
    rng = np.random.default_rng(seed)
    types: list[Any] = [a.type for a in entry_function(module).body.block.args]
    shapes = [t.get_shape() if isinstance(t, TensorType) else () for t in types]
    return [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]


def in_xdsl(module: ModuleOp, inputs: list[Array]) -> Array:
    """The result of a program of floats, by xDSL's own interpreter."""
    interpreter = Interpreter(module)
    register_implementations(interpreter, all_dialects())
    interpreter.register_implementations(MathFunctions())
    given = [
        ShapedArray(TypedPtr.new(x.ravel().tolist(), xtype=f32), list(x.shape))
        for x in inputs
    ]
    (result,) = interpreter.call_op("main", tuple(given))
    return np.array(result.data, np.float32).reshape(result.shape)


def distributed(text: str, **degrees: Any) -> ModuleOp:
    module = parse(text)
    distribute(module, DistributionOptions(cluster="cpu", **degrees))
    verify_distribution(module)
    return module


@pytest.mark.parametrize(
    ("text", "shard"), [(MLP, ()), (ATTENTION, ("w:0=t",))], ids=["mlp", "attention"]
)
def test_programs_are_distributed_in_place(text: str, shard: tuple[str, ...]) -> None:
    """As xDSL computes them, with one all-reduce for two matrix products."""
    sequential = parse(text)
    inputs = inputs_of(sequential)
    expected = in_xdsl(sequential, inputs)
    np.testing.assert_allclose(
        run_program(sequential, inputs)[0], expected, rtol=1e-5, atol=1e-5
    )
    module = distributed(text, t=2, shard=shard)
    found = [op for op in module.walk() if op.name.startswith("collective.")]
    assert [op.name for op in found if op.name != "collective.slice"] == [
        "collective.all_reduce"
    ]
    np.testing.assert_allclose(
        run_program(module, inputs)[0], expected, rtol=1e-5, atol=1e-5
    )
    for rank in devices_of(module):
        project(module, rank).verify()


def test_ops_are_right_under_every_split() -> None:
    """Against NumPy alone, and against that under splits that their rules allow."""
    for name, (text, compute) in OPS.items():
        with named(name):
            module = parse(text)
            inputs = inputs_of(module)
            np.testing.assert_allclose(
                run_program(module, inputs)[0], compute(*inputs), rtol=1e-5, atol=1e-5
            )
            op = entry_function(module).body.block.first_op
            assert op is not None
            check_op(op, inputs, splits=SAMPLES)


def test_a_sum_that_is_added_to_numbers_is_split_and_adds_them_once() -> None:
    text, compute = OPS["a product added to its output"]
    (op,) = (o for o in parse(text).walk() if o.name == "linalg.matmul")
    assert rule_for(op).decomposed == {2}
    module = distributed(text, t=2, shard=("a0:1=t", "a1:0=t"))
    assert sum(isinstance(o, AllReduceOp) for o in module.walk()) == 1
    inputs = inputs_of(module)
    np.testing.assert_allclose(
        run_program(module, inputs)[0], compute(*inputs), rtol=1e-5
    )


def test_loops_that_depend_on_places_stay_whole() -> None:
    kinds = {}
    for name in ("positions", "no reduction", "a convolution", "a maximum"):
        op = entry_function(parse(OPS[name][0])).body.block.first_op
        assert op is not None
        kinds[name] = [factor.kind for factor in rule_for(op).factors]
    assert kinds["positions"] == ["parallel", "replicate"]
    assert kinds["no reduction"] == ["parallel", "replicate"]
    assert kinds["a maximum"] == ["parallel", "reduction"]
    assert (
        kinds["a convolution"]
        == ["parallel"] * 2 + ["replicate"] * 2 + ["reduction"] + ["replicate"] * 2
    )
