"""Ops that are alike are verified once: nothing less is refused, nor by another message."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from fuzz.mutations import mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.thoroughness import IS_THOROUGH, tries
from support.training_programs import distributed, training_gpt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import ParseError, VerifyException

from distir.errors import DistIRError
from distir.sharding.signatures import Signatures, on_any_mesh
from distir.sharding.verification import DistributionVerifier
from distir.text import ProgramParser, new_context
from distir.tools.files import verify

FILES = sorted((Path(__file__).parents[1] / "filecheck").rglob("*.mlir"))

CONTEXT = new_context()

TYPES = {
    "A": "tensor<8x4xf32, #dist.layout<@a, [{d}, {}]>>",
    "P": "tensor<8x4xf32, #dist.layout<@a, partial sum {d}>>",
    "Q": "tensor<8x4xf32, #dist.layout<@a>>",
    "B": "tensor<8x4xf32, #dist.layout<@b, [{d}, {}]>>",
    "R": "tensor<8x4xf32, #dist.layout<@b>>",
    "W": "tensor<8x4xf32, #dist.layout<@wide, [{d}, {}]>>",
    "O": "tensor<8x4xf32, #dist.layout<@one>>",
}


class _PlainVerifier(DistributionVerifier):
    """The verifier without its short cuts: each op is verified by itself."""

    def op(self, op: Operation, function: FuncOp) -> None:
        self._right.clear()
        self._checked.clear()
        self._communication.clear()
        self._signatures = Signatures()
        self._on_any_mesh = Signatures(on_any_mesh)
        super().op(op, function)


def _message(verifier: type[DistributionVerifier], module: ModuleOp) -> str | None:
    """Returns the error of a verifier, or None if the module passes."""
    try:
        verifier(module).verify()
    except (DistIRError, VerifyException) as error:
        return str(error)
    return None


def _outcome(module: ModuleOp) -> str | None:
    """Returns the message of the verifier, which is the one without short cuts."""
    message = _message(DistributionVerifier, module)
    assert message == _message(_PlainVerifier, module)
    return message


def _program(*lines: str) -> ModuleOp:
    """
    A program on two meshes of two devices, one of four and one of one, whose ops are right
    up to those of `lines`.
    """
    text = "\n".join(
        [
            "device.mesh @a on @c <d = 2> [0 to 2]",
            "device.mesh @b on @c <d = 2> [2 to 4]",
            "device.mesh @wide on @c <d = 4> [4 to 8]",
            "device.mesh @one on @c <> [8]",
            "func.func @main(%a: A, %b: B, %p: P, %w: W, %o: O) {",
            "%0 = onnx.Add(%a, %a) : (A, A) -> A",
            "%1 = onnx.Add(%b, %b) : (B, B) -> B",
            "%2 = collective.all_gather %a over [d] : A -> Q",
            "%3 = collective.all_reduce %p over [d] : P -> Q",
            "%4 = dist.send %a : A -> B",
            "%5 = onnx.RandomNormalLike(%o) : (O) -> O",
            *lines,
            "func.return",
            "}",
        ]
    )
    text = re.sub(r"\b[ABOPQRW]\b", lambda name: TYPES[name.group()], text)
    return ProgramParser(CONTEXT, text).parse_module()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%x = onnx.Add(%w, %w) : (W, W) -> W", None),
        ("%x = onnx.Add(%a, %b) : (A, B) -> A", "operand 1 lives on mesh @b, expected @a"),
        ("%x = onnx.Add(%b, %a) : (B, A) -> A", "operand 0 lives on mesh @b, expected @a"),
        ("%x = onnx.Add(%a, %a) : (A, A) -> B", "operand 0 lives on mesh @a, expected @b"),
        ("%x = onnx.Add(%a, %w) : (A, W) -> A", "operand 1 lives on mesh @wide, expected @a"),
        ("%x = onnx.Add(%a, %a) : (A, A) -> Q", "result 0 has layout <@a>, expected layout"),
        ("%x = onnx.RandomNormalLike(%2) : (Q) -> Q", "draws random numbers"),
        ("%x = collective.all_gather %a over [d] : A -> R", "expected result layout <@a>, got <@b>"),
        ("%x = collective.all_reduce %p over [d] : P -> A", "expected result layout"),
        ("%x = dist.send %a : A -> R", "keeps the layout: expected <@b, [{d}, {}]>, got <@b>"),
    ],
)  # fmt: skip
def test_an_op_after_its_like(line: str, message: str | None) -> None:
    """What was verified before on another mesh, or with other layouts, excuses nothing."""
    found = _outcome(_program(line))
    if message is None:
        assert found is None
    else:
        assert found is not None and message in found


def test_every_lit_file_is_verified_alike() -> None:
    """Those of distributed programs that are wrong included."""
    wrong = right = 0
    for file in FILES[:: 1 if IS_THOROUGH else 8]:
        for part in file.read_text().split("// -----"):
            if "#dist.layout" not in part or "device.mesh" not in part:
                continue
            try:
                module = ProgramParser(CONTEXT, part).parse_module()
            except (ParseError, VerifyException, DistIRError):
                continue
            if _outcome(module) is None:
                right += 1
            else:
                wrong += 1
    assert wrong and right


@cache
def _steps() -> list[ModuleOp]:
    """Training steps whose stages have ops that are alike on meshes with equal axes."""
    strategies = (
        {"p": 2, "k": 2, "t": 2},
        {"d": 2, "p": 2, "k": 2, "zero": 2, "buckets": True},
    )
    return [distributed(training_gpt(), **options) for options in strategies]


@settings(
    max_examples=tries(400), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_mistakes_in_training_steps(data: st.DataObject) -> None:
    module = _steps()[data.draw(st.integers(0, 1))].clone()
    mutated(data.draw, module)
    with suppress(VerifyException):
        verify(module)  # as tools do before
        _outcome(module)
