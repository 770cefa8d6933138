"""ONNX's own tests of single operators, through our importer and reference interpreter."""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx_node_cases import arguments, node_cases, run_all

from distir.frontends.onnx_importer import import_onnx
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function


def run_model(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    imported = import_onnx(model)
    names = argument_names(entry_function(imported.module))
    values = arguments(names, model, inputs, dict(imported.weights))
    return run_program(imported.module, values)


def test_node_tests() -> None:
    assert len(node_cases()) == 1884
    outcomes = run_all(run_model)
    print(f"{len(outcomes.passed)} of {len(node_cases())} pass")
    assert not outcomes.failed
    assert len(outcomes.passed) >= 1840
