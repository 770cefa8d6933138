"""What tools verify of a program that they read or have changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from fuzz.mutations import mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.thoroughness import IS_THOROUGH, tries
from support.training_programs import distributed, training_mlp
from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.utils.exceptions import ParseError, VerifyException

from distir.errors import DistIRError
from distir.text import ProgramParser, new_context
from distir.tools.files import verify

PROGRAM = """
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = func.call @f(%x) {scope = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = func.call @f(%a) {scope = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %c = train.sgd %a, %x {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d = train.sgd %b, %x {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %d : tensor<4xf32>
}
"""

SECOND_CALL = '%b = func.call @f(%a) {scope = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>'


def _verify(text: str) -> None:
    verify(ProgramParser(new_context(), text).parse_module())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (SECOND_CALL, SECOND_CALL.replace("@f", "@g"), "could not be found"),
        (
            SECOND_CALL,
            "%b = func.call @f(%a, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>",
            "number of operands",
        ),
        (
            SECOND_CALL,
            '%b = "func.call"(%a) : (tensor<4xf32>) -> tensor<4xf32>',
            "callee",
        ),
        (
            "%b, %x {learning_rate = 0.1",
            "%b, %x {learning_rate = -0.1",
            "not negative",
        ),
    ],
)
def test_alike_is_verified_once_and_all_else_each_time(
    before: str, after: str, message: str
) -> None:
    _verify(PROGRAM)
    text = PROGRAM.replace(before, after)
    assert text != PROGRAM
    with pytest.raises(VerifyException, match=message):
        _verify(text)


def _use_of_another_function(module: ModuleOp) -> None:
    first, second = module.body.block.ops
    op = second.regions[0].block.first_op
    assert op is not None
    op.operands[0] = first.regions[0].block.args[0]


def _other_type_of_an_argument(module: ModuleOp) -> None:
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    function.properties["function_type"] = FunctionType.from_lists(
        [i64], function.function_type.outputs.data
    )


def _other_kind_of_name(module: ModuleOp) -> None:
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    function.properties["sym_name"] = FunctionType.from_lists([], [])


def _results_that_are_not_attributes(module: ModuleOp) -> None:
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    function.properties["res_attrs"] = i64


@pytest.mark.parametrize(
    "change",
    [
        _use_of_another_function,
        _other_type_of_an_argument,
        _other_kind_of_name,
        _results_that_are_not_attributes,
    ],
)
def test_functions_are_refused_as_xdsl_refuses_them(
    change: Callable[[ModuleOp], None],
) -> None:
    module = ProgramParser(new_context(), PROGRAM).parse_module()
    verify(module)
    change(module)
    with pytest.raises(VerifyException) as theirs:
        module.verify()
    with pytest.raises(VerifyException) as ours:
        verify(module)
    assert str(ours.value).splitlines()[-1] == str(theirs.value).splitlines()[-1]


TYPES = {
    "A": "tensor<4xf32, #dist.layout<@m, [{}]>>",
    "B": "tensor<1xf32, #dist.layout<@m, [{}]>>",
    "P": "tensor<4xf32, #dist.layout<@m, [{}], partial sum {d}>>",
    "H": "tensor<4xf16, #dist.layout<@m, [{}], partial sum {d}>>",
    "C": "tensor<4xf16, #dist.layout<@m, [{}]>>",
    "N": "tensor<2xi64>",
    "R": "tensor<2x2xf32>",
}


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("onnx.Add(%a, %x) : (A, B) -> A", None),
        ("onnx.Add(%a, %x) : (A, B) -> B", "result 0 is declared"),
        ("onnx.Reshape(%a, %m) : (A, N) -> R", "result 0 is declared"),
        ('"onnx.Add"(%a, %x) ({}) : (A, B) -> A', "0 regions"),
        ("collective.all_reduce %p over [d] : P -> A", None),
        ("collective.all_reduce %p over [d] : P -> P", "expected result layout"),
        ("collective.all_reduce %p over [] : P -> A", "no axis"),
        (
            "collective.all_reduce %p over [d] {dist.bucket = 1 : i64} : P -> A\n"
            "%e = collective.all_reduce %p over [d] {dist.bucket = 1 : i64} : P -> A",
            None,
        ),
        (
            "collective.all_reduce %p over [d] {dist.bucket = 1 : i64} : P -> A\n"
            "%e = collective.all_reduce %k over [d] {dist.bucket = 1 : i64} : H -> C",
            "differs from it in kind, axes",
        ),
    ],
)
def test_what_is_wrong_is_found_behind_an_op_that_is_right(
    op: str, message: str | None
) -> None:
    """Operators and collectives: only what makes no difference is not looked at again."""
    text = f"""
      device.mesh @m on @c <d = 2> [0 to 2]
      func.func @main(%a: A, %x: B, %p: P, %k: H) {{
        %q = collective.all_reduce %p over [d] : P -> A
        %b = onnx.Add(%a, %x) : (A, B) -> A
        %n = onnx.Constant() {{value = dense<2> : N}} : () -> N
        %m = onnx.Constant() {{value = dense<4> : N}} : () -> N
        %r = onnx.Reshape(%a, %n) : (A, N) -> R
        %c = {op}
        func.return
      }}"""
    text = re.sub(r"\b[ABCHNPR]\b", lambda name: TYPES[name.group()], text)
    if message is None:
        _verify(text)
    else:
        with pytest.raises(VerifyException, match=message):
            _verify(text)


FILES = sorted((Path(__file__).parents[1] / "filecheck").rglob("*.mlir"))

CONTEXT = new_context()


def _outcomes(module: ModuleOp) -> list[str | None]:
    """Returns the messages of both verifiers; None where the module passes."""
    found: list[str | None] = []
    for check in (verify, ModuleOp.verify):
        try:
            check(module)
        except VerifyException as error:
            found.append(str(error))
        else:
            found.append(None)
    return found


@cache
def _step() -> ModuleOp:
    """A training step with collectives in buckets, sends and calls."""
    options = {"d": 2, "p": 2, "k": 2, "zero": 2, "buckets": True}
    return distributed(training_mlp(), **options)


def test_every_lit_file_gets_the_message_of_xdsl() -> None:
    passed = {False: 0, True: 0}
    for file in FILES[:: 1 if IS_THOROUGH else 8]:
        for part in file.read_text().split("// -----"):
            with suppress(ParseError, VerifyException, DistIRError):
                ours, theirs = _outcomes(
                    ProgramParser(CONTEXT, part, str(file)).parse_module()
                )
                assert ours == theirs
                passed[ours is None] += 1
    assert all(passed.values())


def test_a_call_with_a_property_of_its_own_is_verified() -> None:
    """A call that is like an earlier one but for a property that calls do not have."""
    module = _step().clone()
    calls = [op for op in module.walk() if isinstance(op, CallOp)]
    names = [op.callee.string_value() for op in calls]
    later = next(op for i, op in enumerate(calls) if names[i] in names[:i])
    later.properties["axis"] = IntegerAttr(1, 64)
    ours, theirs = _outcomes(module)
    assert ours == theirs and ours is not None


@settings(
    max_examples=tries(800), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_every_mistake_gets_the_message_of_xdsl(data: st.DataObject) -> None:
    module = _step().clone()
    mutated(data.draw, module)
    ours, theirs = _outcomes(module)
    assert ours == theirs
