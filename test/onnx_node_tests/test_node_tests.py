"""
ONNX's own tests of single operators, through our importer and then the reference interpreter
and the torch lowering. They are one test, as generating them takes most of its time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from support.lowering_cases import run_here
from support.onnx_node_cases import (
    Outcomes,
    arguments,
    data_sets,
    node_cases,
    run_all,
    tried_cases,
)
from support.thoroughness import IS_THOROUGH
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.imported_model import ImportedModel
from distir.frontends.onnx.importer import import_onnx
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function

RANDOM = re.compile(r"test_bernoulli(_double|_seed)?(_expanded)?")
"""Their expected outputs are one random draw."""

REFUSED = re.compile(
    r"test_if(_opt|_seq)?"
    r"|test_affine_grid_[23]d(_align_corners)?_expanded"  # If
    r"|test_loop1[136].*|test_range_.*_expanded|test_sequence_map_.*"  # Loop, SequenceMap
    r"|test_scan_sum"  # Scan as it was before opset 9
    r"|test_image_decoder_.*"  # needs Pillow
)
"""What a program of DistIR cannot say, or what needs a package that we do not."""

NOT_LOWERED = ("has no torch lowering", "have no torch lowering")
"""What refusals of the lowering say."""

NUMPY_ROUNDING = (
    "test_attention_4d_causal_fp16_expanded",
    "test_dft_inverse",
    "test_dft_inverse_opset19",
)
"""
Expected values that hold NumPy's rounding errors beyond the tolerance of their tests: a
softmax of half precision rounded at each step, where PyTorch rounds once; a transform with
2e-7 in the place of 0. Allowed here: one unit in the last place of the largest expected
element.
"""

INTERPRETED, LOWERED = (0.976, 0.952) if IS_THOROUGH else (0.975, 0.943)
"""
How many of the cases pass at least. What `make test` leaves out passes, so that what does
not is a larger part of the rest.
"""

Run = Callable[[ModuleOp, Sequence[Any]], list[Any]]


@functools.lru_cache(maxsize=1)
def imported(model: bytes) -> ImportedModel:
    """Returns the program of a model, which both ways of running it share."""
    return import_onnx(onnx.ModelProto.FromString(model))


def run_model(run: Run, model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a model that is run as a program by `run`."""
    program = imported(model.SerializeToString())
    names = argument_names(entry_function(program.module))
    return run(program.module, arguments(names, model, inputs, dict(program.weights)))


def test_node_tests() -> None:
    assert len(node_cases()) == 1884
    tried = tried_cases()
    interpreted, lowered = run_all(
        [
            functools.partial(run_model, run_program),
            functools.partial(run_model, run_here),
        ],
        tried,
    )
    print(f"{len(interpreted.passed)} and {len(lowered.passed)} of {len(tried)} pass")
    check_interpreted(interpreted, len(tried))
    check_lowered(lowered, len(tried))
    for case in node_cases():
        if case.name in NUMPY_ROUNDING:
            check_as_close_as_the_expected_values_allow(case)


def check_interpreted(outcomes: Outcomes, count: int) -> None:
    wrong = {n: why for n, why in outcomes.failed.items() if not RANDOM.fullmatch(n)}
    assert wrong == {}
    refused = {
        n: why for n, why in outcomes.refused.items() if not REFUSED.fullmatch(n)
    }
    assert refused == {}
    assert len(outcomes.passed) >= INTERPRETED * count


def check_lowered(outcomes: Outcomes, count: int) -> None:
    assert outcomes.failed.keys() <= set(NUMPY_ROUNDING)
    for name, message in outcomes.refused.items():
        if not REFUSED.fullmatch(name):
            assert any(text in message for text in NOT_LOWERED), name
    assert len(outcomes.passed) >= LOWERED * count


def check_as_close_as_the_expected_values_allow(case: Any) -> None:
    for inputs, expected in data_sets(case):
        found = run_model(run_here, case.model, inputs)
        for result, wanted in zip(found, expected, strict=True):
            unit = np.spacing(np.abs(wanted).max())
            error = np.abs(result.astype(np.float64) - wanted.astype(np.float64)).max()
            assert result.dtype == wanted.dtype and error <= unit
