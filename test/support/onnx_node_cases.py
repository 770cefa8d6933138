"""
ONNX's own tests of single operators, and how to run them through a backend of ours.

A backend is a function from an `onnx.ModelProto` and its inputs to outputs. It raises
DistIRError for what it does not support; anything else that goes wrong is a failure.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from distir.errors import DistIRError
from support.thoroughness import IS_THOROUGH

RunModel = Callable[[onnx.ModelProto, Sequence[Any]], Sequence[Any]]


@cache
def node_cases() -> list[Any]:
    """Returns every test case of kind `node`; they are generated, which takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda case: case.name)


def tried_cases() -> list[Any]:
    """
    Returns all of them in `make test-all`; else, of those with the same operators, every
    fourth.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    tried: list[Any] = []
    for case in node_cases():
        operators = tuple(sorted({node.op_type for node in case.model.graph.node}))
        if IS_THOROUGH or seen[operators] % 4 == 0:
            tried.append(case)
        seen[operators] += 1
    return tried


@dataclass
class Outcomes:
    """
    The names of tests by outcome: `passed`; `refused` with the message of a DistIRError;
    `failed` with any other error or a wrong result.
    """

    passed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def run_case(case: Any, run: RunModel) -> None:
    """Runs one test. Raises what the backend raises, or AssertionError."""
    for inputs, expected in data_sets(case):
        outputs = list(run(case.model, inputs))
        Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)


def data_sets(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yields the inputs and expected outputs of a test case."""
    graph = case.model.graph
    for inputs, outputs in case.data_sets:
        yield (
            [to_value(v, i.type) for v, i in zip(inputs, graph.input, strict=True)],
            [to_value(v, o.type) for v, o in zip(outputs, graph.output, strict=True)],
        )


def to_value(data: Any, type_: onnx.TypeProto) -> Any:
    """Returns an array, list or None, whichever form the test case holds it in."""
    if isinstance(data, onnx.TensorProto):
        return numpy_helper.to_array(data)
    if isinstance(data, onnx.SequenceProto):
        return numpy_helper.to_list(data)
    if isinstance(data, onnx.OptionalProto):
        return numpy_helper.to_optional(data)
    return data


def run_all(run: RunModel, cases: Sequence[Any] | None = None) -> Outcomes:
    """Runs every test case."""
    outcomes = Outcomes()
    for case in node_cases() if cases is None else cases:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run_case(case, run)
        except DistIRError as error:
            outcomes.refused[case.name] = str(error)
        except Exception as error:
            text = str(error).strip().splitlines()
            outcomes.failed[case.name] = f"{type(error).__name__}: {' '.join(text[:4])}"
        else:
            outcomes.passed.append(case.name)
    return outcomes


def arguments(
    names: Sequence[str],
    model: onnx.ModelProto,
    inputs: Sequence[Any],
    weights: dict[str, Any],
) -> list[Any]:
    """
    Returns the arguments of an imported program, by name from the inputs and the weights.
    """
    values = {i.name: v for i, v in zip(model.graph.input, inputs, strict=True)}
    values |= {name: np.asarray(w) for name, w in weights.items()}
    return [values[name] for name in names]
