"""Lifetimes of values: within a function, across calls, and through views."""

from pathlib import Path

import pytest
from support.cost_programs import cluster, parse, simulate_text, with_workspace
from xdsl.context import Context

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.inline_calls import InlineCallsPass

PIPELINE = Path(__file__).parents[2] / "filecheck" / "simulate" / "pipeline.mlir"


def op(result: str, operands: str, sizes: list[int], size: int) -> str:
    types = ", ".join(f"tensor<{s}xi8>" for s in sizes)
    return f'{result} = "test.op"({operands}) : ({types}) -> tensor<{size}xi8>'


def peak(text: str) -> int:
    (bytes_,) = simulate_text(text, cluster(1)).peak_memory_bytes
    return bytes_


def test_unused_results_are_freed_at_once():
    text = f"""
    func.func @main(%x: tensor<1xi8>) -> tensor<2xi8> {{
      {op("%unused", "%x", [1], 100)}
      {op("%a", "%x", [1], 50)}
      {op("%b", "%a", [50], 2)}
      func.return %b : tensor<2xi8>
    }}"""
    assert peak(text) == 101


def test_arguments_that_nothing_uses_stay():
    text = f"""
    func.func @main(%x: tensor<1xi8>, %big: tensor<100xi8>) -> tensor<2xi8> {{
      {op("%a", "%x", [1], 2)}
      func.return %a : tensor<2xi8>
    }}"""
    assert peak(text) == 103


CALLEE = f"""
func.func @f(%x: tensor<100xi8>) -> tensor<10xi8> {{
  {op("%a", "%x", [100], 1)}
  {op("%b", "%a", [1], 80)}
  {op("%c", "%b", [80], 10)}
  func.return %c : tensor<10xi8>
}}
"""


def test_an_argument_that_dies_at_the_call_is_freed_inside():
    text = f"""{CALLEE}
    func.func @main(%x: tensor<1xi8>) -> tensor<10xi8> {{
      {op("%big", "%x", [1], 100)}
      %y = func.call @f(%big) : (tensor<100xi8>) -> tensor<10xi8>
      func.return %y : tensor<10xi8>
    }}"""
    assert peak(text) == 1 + 100 + 1


def test_an_argument_that_is_used_later_stays():
    text = f"""{CALLEE}
    func.func @main(%x: tensor<1xi8>) -> tensor<1xi8> {{
      {op("%big", "%x", [1], 100)}
      %y = func.call @f(%big) : (tensor<100xi8>) -> tensor<10xi8>
      {op("%z", "%big, %y", [100, 10], 1)}
      func.return %z : tensor<1xi8>
    }}"""
    assert peak(text) == 1 + 100 + 80 + 10


def test_an_argument_passed_twice_and_returned_is_one_buffer():
    text = f"""
    func.func @f(%a: tensor<100xi8>, %b: tensor<100xi8>) -> (tensor<100xi8>, tensor<100xi8>, tensor<1xi8>) {{
      {op("%c", "%b", [100], 1)}
      func.return %a, %a, %c : tensor<100xi8>, tensor<100xi8>, tensor<1xi8>
    }}
    func.func @main(%x: tensor<1xi8>) -> tensor<50xi8> {{
      {op("%big", "%x", [1], 100)}
      %p, %q, %r = func.call @f(%big, %big) : (tensor<100xi8>, tensor<100xi8>) -> (tensor<100xi8>, tensor<100xi8>, tensor<1xi8>)
      {op("%s", "%q", [100], 1)}
      {op("%t", "%s", [1], 50)}
      func.return %t : tensor<50xi8>
    }}"""
    assert peak(text) == 102  # the input, one buffer of 100 bytes, and %c or %s


def test_a_view_shares_the_memory_of_its_source():
    text = """
    func.func @main(%x: tensor<1xi8>) -> tensor<2xi8> {
      %shape = onnx.Constant() {value = dense<[10, 10]> : tensor<2xi64>} : () -> tensor<2xi64>
      %big = "test.op"(%x) : (tensor<1xi8>) -> tensor<100xi8>
      %square = onnx.Reshape(%big, %shape) : (tensor<100xi8>, tensor<2xi64>) -> tensor<10x10xi8>
      %a = "test.op"(%square) : (tensor<10x10xi8>) -> tensor<50xi8>
      %b = "test.op"(%a) : (tensor<50xi8>) -> tensor<2xi8>
      func.return %b : tensor<2xi8>
    }"""
    # the constant (16 B) and the input live throughout
    assert peak(text) == 1 + 16 + 100 + 50


def test_constants_of_a_function_count_once():
    text = """
    func.func @f(%x: tensor<4xi8>) -> tensor<4xi8> {
      %k = onnx.Constant() {value = dense<1> : tensor<4xi8>} : () -> tensor<4xi8>
      %y = onnx.Add(%x, %k) : (tensor<4xi8>, tensor<4xi8>) -> tensor<4xi8>
      func.return %y : tensor<4xi8>
    }
    func.func @main(%x: tensor<4xi8>) -> tensor<4xi8> {
      %a = func.call @f(%x) : (tensor<4xi8>) -> tensor<4xi8>
      %b = func.call @f(%a) : (tensor<4xi8>) -> tensor<4xi8>
      func.return %b : tensor<4xi8>
    }"""
    assert peak(text) == 4 + 4 + 4 + 4


def test_workspace_counts_while_the_op_runs():
    with with_workspace(1000) as text:
        assert peak(text) == 64 + 4 + 1000


@pytest.mark.parametrize("model", ["pipeline", "gpt", "mlp"])
def test_calls_and_inlined_calls_agree(model: str):
    module = {
        "pipeline": lambda: parse(PIPELINE.read_text()),
        "gpt": lambda: build_gpt(4, 64, 4, 100, 2, 8),
        "mlp": lambda: build_mlp(4, 64, 8),
    }[model]()
    on = cluster(2, levels=((2, 1e9, 1e-6),), peak=1e9, bandwidth=1e9, launch=1e-6)
    called = simulate(module, on)
    flat = module.clone()
    InlineCallsPass().apply(Context(), flat)
    inlined = simulate(flat, on)
    assert inlined.ops == called.ops
    assert inlined.step_time_s == pytest.approx(called.step_time_s, rel=1e-12)
    assert inlined.communication_bytes == called.communication_bytes
    if model != "gpt":  # inlining repeats the constants of a layer
        assert inlined.peak_memory_bytes == called.peak_memory_bytes


def test_an_update_takes_the_memory_of_its_argument():
    def text(updates: str) -> str:
        return f"""
        func.func @main(%x: tensor<100xi8> {{dist.name = "x"}}) -> (tensor<1xi8>, tensor<100xi8> {{{updates}}}) {{
          {op("%g", "%x", [100], 10)}
          {op("%loss", "%x", [100], 1)}
          {op("%new", "%x, %g", [100, 10], 100)}
          func.return %loss, %new : tensor<1xi8>, tensor<100xi8>
        }}"""

    assert peak(text("")) == 100 + 10 + 1 + 100
    assert peak(text('dist.updates = "x"')) == 100 + 10 + 1


def test_an_update_of_what_is_still_needed_takes_memory():
    text = f"""
    func.func @main(%x: tensor<100xi8> {{dist.name = "x"}}) -> (tensor<100xi8> {{dist.updates = "x"}}, tensor<1xi8>) {{
      {op("%new", "%x", [100], 100)}
      {op("%loss", "%x", [100], 1)}
      func.return %new, %loss : tensor<100xi8>, tensor<1xi8>
    }}"""
    assert peak(text) == 100 + 100 + 1


def test_a_training_step_holds_parameters_states_and_gradients():
    # 16 bytes a parameter: itself, two averages, its gradient; no second copy of any.
    layers, width = 4, 64
    module = build_mlp(layers=layers, d_model=width, batch=1)
    DifferentiatePass(loss="mse").apply(Context(), module)
    module.verify()
    (bytes_,) = simulate(module, cluster(1)).peak_memory_bytes
    parameters = layers * (width * width + width)
    assert 16 * parameters <= bytes_ < 17 * parameters


F = "tensor<25xf32>"
"""A tensor of 100 bytes."""


def program_of_sums(results: str, functions: str = "") -> str:
    given = ", ".join([F] * (results.count(",") + 1))
    add = f"onnx.Add(%a, %x) : ({F}, {F}) -> {F}"
    made = f"func.call @add(%a, %x) : ({F}, {F}) -> {F}" if functions else add
    return f"""{functions}
    func.func @main(%x: {F}) -> ({given}) {{
      %a = onnx.Neg(%x) : ({F}) -> {F}
      %s = {made}
      func.return {results} : {given}
    }}"""


ADD = f"""
func.func @add(%a: {F}, %b: {F}) -> {F} {{
  %s = onnx.Add(%b, %a) : ({F}, {F}) -> {F}
  func.return %s : {F}
}}
"""


@pytest.mark.parametrize("functions", ["", ADD])
def test_a_sum_takes_the_memory_of_an_operand_that_dies(functions: str):
    assert peak(program_of_sums("%s", functions)) == 100 + 100
    assert peak(program_of_sums("%s, %a", functions)) == 100 + 100 + 100


@pytest.mark.parametrize("element, extra", [("f32", 0), ("bf16", 1)])
def test_look_ups_that_are_added_take_no_memory(element: str, extra: int):
    table = f"tensor<50x8x{element}>"
    size = 50 * 8 * (4 if element == "f32" else 2)
    text = f"""
    func.func @main(%x: {table}, %d: tensor<1x8x{element}>, %i: tensor<1xi64>) -> {table} {{
      %a = onnx.Neg(%x) : ({table}) -> {table}
      %g = train.gather_grad %d, %i {{axis = 0 : i64}} : (tensor<1x8x{element}>, tensor<1xi64>) -> {table}
      %s = onnx.Add(%a, %g) : ({table}, {table}) -> {table}
      func.return %s : {table}
    }}"""
    given = size + size // 50 + 8
    assert peak(text) == given + size + extra * size


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_all_reduce_works_in_its_operand(joined: bool, asynchronous: bool):
    """Tensors in one message are copied into a buffer instead."""
    part = "tensor<25xf32, #dist.layout<@m, [{}], partial sum {d}>>"
    whole = "tensor<25xf32, #dist.layout<@m>>"
    marks = ["dist.asynchronous"] * asynchronous
    both = f"{{{', '.join([*marks, *(['dist.bucket = 0 : i64'] * joined)])}}}"
    text = f"""
    device.mesh @m on @c <d = 2> [0 to 2]
    func.func @reduce(%a: {part}, %b: {part}) -> ({whole}, {whole}) {{
      %r = collective.all_reduce %a over [d] {both} : {part} -> {whole}
      %s = collective.all_reduce %b over [d] {both} : {part} -> {whole}
      func.return %r, %s : {whole}, {whole}
    }}
    func.func @main(%x: {part}) -> ({whole}, {whole}) {{
      %a = onnx.Neg(%x) : ({part}) -> {part}
      %b = onnx.Neg(%x) : ({part}) -> {part}
      %r, %s = func.call @reduce(%a, %b) : ({part}, {part}) -> ({whole}, {whole})
      func.return %r, %s : {whole}, {whole}
    }}"""
    on = cluster(2, levels=((2, 1e9, 1e-6),))
    for flat in (False, True):
        found = simulate(parse(text), on, flat=flat).peak_memory_bytes
        assert found == [500 if joined else 300] * 2
