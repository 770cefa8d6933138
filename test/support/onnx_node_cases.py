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
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from distir.errors import DistIRError
from support.thoroughness import IS_THOROUGH

RunModel = Callable[[onnx.ModelProto, Sequence[Any]], Sequence[Any]]


LARGEST_POOL = 50_000
"""
The elements of the largest result of a pooling that ONNX computes in `make test`, one by one:
what it expects of larger ones takes most of the time in which its cases are generated.
"""
LARGE_POOLS = frozenset(
    f"test_{kind}pool_3d_default" for kind in ("average", "lp", "max")
)
"""The cases that have larger ones, which `make test` does not try."""


@cache
def node_cases() -> list[Any]:
    """
    Returns every test case of kind `node`; they are generated, which takes seconds. In `make
    test` those of `LARGE_POOLS` expect nothing but zeros.
    """
    from onnx.backend.test.case import base
    from onnx.backend.test.loader import load_model_tests
    from onnx.reference.ops import op_pool_common

    pool = op_pool_common.pool

    def small_pool(x: Any, x_shape: Any, *rest: Any, **options: Any) -> Any:
        shape = (*x_shape[:2], *rest[2])
        if prod(shape) > LARGEST_POOL:
            return np.zeros(shape, x.dtype)
        return pool(x, x_shape, *rest, **options)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        # The source of cases, for ONNX's documentation.
        patch.setattr(base, "process_snippet", lambda *_: ("", ""))
        if not IS_THOROUGH:
            patch.setattr(op_pool_common, "pool", small_pool)
        return sorted(load_model_tests(kind="node"), key=lambda case: case.name)


def tried_cases() -> list[Any]:
    """
    Returns all of them in `make test-all`; else, of those with the same operators, every
    fourth, none of `LARGE_POOLS`, and none that writes an operator out in others that are all
    tried by themselves.
    """
    if IS_THOROUGH:
        return node_cases()
    seen: Counter[tuple[str, ...]] = Counter()
    alone = {
        op for case in node_cases() if len(ops := _operators(case)) == 1 for op in ops
    }
    tried: list[Any] = []
    for case in node_cases():
        operators = _operators(case)
        is_written_out = len(operators) > 1 and alone.issuperset(operators)
        is_left_out = is_written_out or case.name in LARGE_POOLS
        if seen[operators] % 4 == 0 and not is_left_out:
            tried.append(case)
        seen[operators] += 1
    return tried


def _operators(case: Any) -> tuple[str, ...]:
    """Returns the operators of a case, each once."""
    return tuple(sorted({node.op_type for node in case.model.graph.node}))


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


def run_all(runs: Sequence[RunModel], cases: Sequence[Any]) -> list[Outcomes]:
    """Runs every test case in each of several ways, one case after the other."""
    found = [Outcomes() for _ in runs]
    for case in cases:
        for outcomes, run in zip(found, runs, strict=True):
            _run_one(case, run, outcomes)
    return found


def _run_one(case: Any, run: RunModel, outcomes: Outcomes) -> None:
    """Runs a test case, and files what came of it."""
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
