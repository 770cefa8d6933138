"""
ZeRO over a number of devices that divides no dimension of some parameters: what is stored
for these is flat, with zeros behind it, and split all the same.
"""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.pipelines import arguments_of, distributed
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_attributes, entry_function, result_names
from distir.program.source_forms import flattened_of

OPTIONS: list[dict[str, Any]] = [
    {"d": 3},
    {"d": 3, "t": 2},
    {"d": 3, "t": 2, "k": 2, "sequence_parallel": True},
    {"d": 3, "p": 2, "k": 2},
    {"d": 5},
    {"d": 3, "checkpoint": "full", "overlap": True},
]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"clip": 0.1},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.1, "clip": 0.1},
}


@functools.cache
def step(batch: int, dtype: str = "f32", **options: Any) -> ModuleOp:
    """The training step of a GPT, of whose sizes 3 divides some and 5 none."""
    module = build_gpt(2, 16, 4, 32, batch, 8, dtype)
    DifferentiatePass(**options).apply(Context(), module)
    return module


CASES = list(product(range(len(OPTIONS)), (1, 2, 3), OPTIMIZERS))
QUICK = [(2, 3, "adamw"), (3, 1, "sgd"), (4, 2, "sgd"), (5, 3, "sgd")]
"""Options that have the parts of the others, all stages and both optimizers."""


@pytest.mark.parametrize(("case", "zero", "optimizer"), chosen(CASES, QUICK))
def test_results_stay(case: int, zero: int, optimizer: str) -> None:
    options = OPTIONS[case]
    batch = 2 * options["d"] * options.get("k", 1)
    sequential = step(batch, **OPTIMIZERS[optimizer])
    arguments = arguments_of(sequential)
    expected = run_program(sequential, arguments)
    module = distributed(sequential, **options, zero=zero)
    assert any(map(flattened_of, argument_attributes(entry_function(module))))
    found = run_program(module, arguments)
    names = result_names(entry_function(sequential))
    for name, value, other in zip(names, expected, found, strict=True):
        np.testing.assert_allclose(other, value, 2e-4, 2e-5, err_msg=name)
