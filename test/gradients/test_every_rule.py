"""
No gradient rule is without a case, and what the rules build can be distributed and run in
torch.
"""

import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gradients.harness import (
    GradientCase,
    backward_program,
    build_op,
    operands_of,
    training_op,
)
from support.lowering_cases import run_here
from support.sharding_harness import Array
from support.thoroughness import IS_THOROUGH, tries
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.rule import is_differentiable, registered_rules
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function
from distir.testing.splits import sample


@cache
def every_case() -> list[GradientCase]:
    """The cases of all modules of this folder."""
    found: list[GradientCase] = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"gradients.{path.stem}")
        found += getattr(module, "CASES", [])
    return found


ELSEWHERE = {
    "train.block_linear",
    "train.ghost_batch_norm",
    "train.dropped_attention",
    "train.float8_linear",
    "train.gathered_gru",
    "train.gathered_lstm",
    "train.gathered_rnn",
    "train.opaque",
}
"""
Rules of which a case cannot be: test/passes/test_batch_statistics.py has the first one,
test/train/test_imported_dropout.py, which compares with attention written out, the second,
test/transforms/test_float8.py and test_block_floats.py the products whose gradient is not that of
their rounded numbers, and
test/planning/test_split_recurrent.py the layers that gather their states, next to whole ones, and
test/parallel/test_opaque.py the last, which has the gradient of a user's module.
"""


def test_every_registered_rule_has_a_case():
    covered = set(cases_by_rule()) | ELSEWHERE
    # Another test may have registered rules of a dialect of its own.
    rules = {n for n in registered_rules() if n.startswith(("onnx.", "train."))}
    assert rules and rules <= covered, sorted(rules - covered)


@cache
def cases_by_rule() -> dict[str, list[GradientCase]]:
    """The cases of each op, by its name; those of its training form by that one's too."""
    found: dict[str, list[GradientCase]] = {}
    for case in every_case():
        for name in {case.op_name, training_op(case)[0].name}:
            found.setdefault(name, []).append(case)
    return found


def cases_of(name: str) -> list[GradientCase]:
    return cases_by_rule().get(name, [])


def differentiated(case: GradientCase) -> tuple[ModuleOp, list[Array]] | None:
    """The backward program of a case and its arguments; None where nothing flows."""
    op, _ = build_op(case)
    used = frozenset(i for i, r in enumerate(op.results) if is_differentiable(r))
    module, positions = backward_program(case, used)
    operands = operands_of(case)
    rest = random_arguments(module, 0, None)[len(operands) :]
    return (module, [*operands, *rest]) if positions else None


@pytest.mark.parametrize("name", sorted(registered_rules()))
def test_gradients_run_in_torch_and_distributed(name: str):
    """
    What the torch target prints computes what the reference does; so does, for some cases,
    the program with any operand or gradient split along any dimension.
    """
    cases = cases_of(name) if IS_THOROUGH else sample(cases_of(name), 2, name)
    split = sample(cases, tries(4), name)
    for case in cases:
        program = differentiated(case)
        if program is not None:
            expected = run_program(*program)
            compare(run_here(*program), expected, str(case))
            if any(case is other for other in split):
                assert_can_be_distributed(case, *program, expected)


def assert_can_be_distributed(
    case: GradientCase, module: ModuleOp, arguments: list[Array], expected: list[Array]
) -> None:
    """Under some requests for one dimension of an argument, results are as expected."""
    requests = [
        f"{argument}:{dim}=t"
        for argument, array in zip(
            argument_names(entry_function(module)), arguments, strict=True
        )
        for dim, size in enumerate(array.shape)
        if size and size % 2 == 0
    ]
    for request in sample(requests, tries(4), str(case)) if requests else []:
        other = module.clone()
        DistributePass(t=2, shard=(request,)).apply(Context(), other)
        compare(run_program(other, arguments), expected, f"{case} with {request}")


@pytest.mark.parametrize("name", sorted(registered_rules()))
def test_gradients_in_half_precision(name: str):
    """The reference and torch come near to what f64 gives."""
    cases = [c for c in cases_of(name) if c.make is None]
    for case in sample(cases, 3 if IS_THOROUGH else 1, name):
        wide = differentiated(case)
        if wide is None or case.attributes.get("to"):
            continue
        expected = run_program(*wide)
        for dtype in (np.float16, ml_dtypes.bfloat16):
            if name == "onnx.Shrink" and dtype is ml_dtypes.bfloat16:
                continue  # ONNX has no Shrink of bfloat16
            inputs = [as_type(a, dtype) for a in case.inputs]
            narrow = differentiated(replace(case, inputs=inputs))
            if narrow is not None:
                program = narrow[0], [as_type(a, dtype) for a in wide[1]]
                assert_near(program, expected, dtype, str(case))


def assert_near(
    program: tuple[ModuleOp, list[Array]],
    expected: list[Array],
    dtype: type,
    what: str,
) -> None:
    """Both run the program of 16 bits to within a twentieth of the largest number."""
    for actual in (run_program(*program), run_here(*program)):
        for a, b in zip(actual, expected, strict=True):
            assert a.dtype == dtype, what
            scale = np.max(np.abs(b), initial=1e-3)
            np.testing.assert_allclose(
                a.astype(np.float64), b, rtol=0, atol=0.05 * scale, err_msg=what
            )


def as_type(array: Array | None, dtype: type) -> Array | None:
    """The array with its floats in another type."""
    if array is None or array.dtype != np.float64:
        return array
    return array.astype(dtype)


def compare(actual: list[Array], expected: list[Array], what: str) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, what
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=what)
