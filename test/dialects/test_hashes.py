"""Values and ops of xDSL are hashed by Python itself, as they are equal only to themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.programs import parse
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.irdl import IRDLOperation

from distir.dialects import get_all_dialects
from distir.dialects.onnx import operator


def _kinds(kind: type[object]) -> Iterator[type[object]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


@pytest.mark.parametrize("base", [SSAValue, IRDLOperation])
def test_no_class_that_is_hashed_so_has_an_equality_of_its_own(
    base: type[object],
) -> None:
    """Else equal objects could have different hashes, and be twice in a set."""
    for loader in get_all_dialects().values():
        loader()
    hashed = [kind for kind in _kinds(base) if kind.__hash__ is object.__hash__]
    assert {OpResult, BlockArgument, operator("Add"), FuncOp, ModuleOp} & {*hashed}
    for kind in hashed:
        assert kind.__eq__ is base.__eq__, kind


def test_ops_and_values_that_are_alike_differ() -> None:
    module = parse("""
        func.func @main(%x: tensor<4xf32>) {
          %a = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
          %b = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return
        }""")
    first, second = (op for op in module.walk() if op.name == "onnx.Relu")
    assert first != second
    assert first.results[0] != second.results[0]
    assert len({first, second, first}) == len({*first.results, *second.results}) == 2
