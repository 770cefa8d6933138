"""No gradient rule is without a case, and the ops that rules build can be distributed."""

import importlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gradients.harness import GradientCase, backward_program, build_op
from sharding_harness import sample
from xdsl.context import Context

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


@pytest.mark.parametrize("name", sorted(registered_rules()))
def test_gradients_can_be_distributed(name: str):
    """Any operand or gradient split along any dimension: the same gradients."""
    cases = [case for case in every_case() if case.op_name == name]
    for case in sample(cases, 4, name):
        op, _ = build_op(case)
        used = frozenset(i for i, r in enumerate(op.results) if is_differentiable(r))
        module, positions = backward_program(case, used)
        if not positions:
            continue
        function = entry_function(module)
        requests = [
            f"{argument}:{dim}=t"
            for argument, type_ in zip(
                argument_names(function),
                function.function_type.inputs.data,
                strict=True,
            )
            for dim, size in enumerate(type_.get_shape())
            if size and size % 2 == 0
        ]
        given = [a for i, a in enumerate(case.inputs) if i not in case.constants]
        arguments = [a for a in given if a is not None]
        rest = random_arguments(module, 0, None)[len(arguments) :]
        expected = run_program(module, [*arguments, *rest])
        for request in sample(requests, 4, str(case)) if requests else []:
            other = module.clone()
            DistributePass(t=2, shard=(request,)).apply(Context(), other)
            actual = run_program(other, [*arguments, *rest])
            for a, b in zip(expected, actual, strict=True):
                np.testing.assert_allclose(
                    a, b, rtol=1e-9, atol=1e-9, err_msg=f"{case} with {request}"
                )
