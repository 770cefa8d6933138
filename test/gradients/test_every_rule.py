"""
No gradient rule is without a case, and what the rules build can be distributed and run in
torch.
"""

import importlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gradients.harness import (
    GradientCase,
    backward_program,
    build_op,
    operands_of,
)
from lowering_cases import run_here
from sharding_harness import Array, sample
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.rule import is_differentiable, registered_rules
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function


@cache
def every_case() -> list[GradientCase]:
    """The cases of all modules of this folder."""
    found: list[GradientCase] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"gradients.{path.stem}")
        found += getattr(module, "CASES", [])
    return found


def test_every_registered_rule_has_a_case():
    covered = {case.op_name for case in every_case()}
    assert registered_rules() <= covered, sorted(registered_rules() - covered)


def cases_of(name: str) -> list[GradientCase]:
    return [case for case in every_case() if case.op_name == name]


def differentiated(case: GradientCase) -> tuple[ModuleOp, list[Array]] | None:
    """The backward program of a case and its arguments; None where nothing flows."""
    op, _ = build_op(case)
    used = frozenset(i for i, r in enumerate(op.results) if is_differentiable(r))
    module, positions = backward_program(case, used)
    operands = operands_of(case)
    rest = random_arguments(module, 0, None)[len(operands) :]
    return (module, [*operands, *rest]) if positions else None


@pytest.mark.parametrize("name", sorted(registered_rules()))
def test_gradients_can_be_distributed(name: str):
    """Any operand or gradient split along any dimension: the same gradients."""
    for case in sample(cases_of(name), 4, name):
        program = differentiated(case)
        if program is None:
            continue
        module, arguments = program
        expected = run_program(module, arguments)
        requests = [
            f"{argument}:{dim}=t"
            for argument, array in zip(
                argument_names(entry_function(module)), arguments, strict=True
            )
            for dim, size in enumerate(array.shape)
            if size and size % 2 == 0
        ]
        for request in sample(requests, 4, str(case)) if requests else []:
            other = module.clone()
            DistributePass(t=2, shard=(request,)).apply(Context(), other)
            compare(run_program(other, arguments), expected, f"{case} with {request}")


@pytest.mark.parametrize("name", sorted(registered_rules()))
def test_gradients_run_in_torch(name: str):
    """What the torch target prints computes what the reference does."""
    for case in cases_of(name):
        program = differentiated(case)
        if program is not None:
            expected = run_program(*program)
            compare(run_here(*program), expected, str(case))


def compare(actual: list[Array], expected: list[Array], what: str) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, what
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=what)
