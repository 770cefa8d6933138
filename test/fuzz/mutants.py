"""
Distributed programs with mistakes: what the verifier accepts computes what its sequential
reading does, whichever way it runs; everything else is refused with an error that users
can read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fuzz.catalogue import cases
from fuzz.equality import assert_same
from fuzz.erase import erased
from fuzz.lockstep import run_ranks
from fuzz.models import differentiate_with
from fuzz.mutations import mutated
from fuzz.programs import any_program, distributed
from fuzz.training import distribute
from hypothesis import strategies as st
from support.pipelines import arguments_of as arguments_of_model
from support.random_programs import Draw
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist import ReshardOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.reference import run_program
from distir.passes.lower_reshard import LowerReshardPass
from distir.sharding.verification import verify_distribution

EXAMPLES = 6
"""Of a round."""

MUTANTS = 8
"""Of a program."""

STRATEGIES: list[dict[str, Any]] = [
    {"d": 2, "t": 2},
    {"d": 2, "zero": 3, "checkpoint": "full"},
    {"d": 2, "zero": 2, "buckets": True},
    {"d": 2, "t": 2, "zero": 1, "sequence_parallel": True},
    {"p": 2, "k": 2},
    {"p": 2, "k": 2, "t": 2, "overlap": True},
]


@cache
def steps() -> list[tuple[ModuleOp, list[Any]]]:
    """Distributed training steps of two small models and their arguments."""
    found: list[tuple[ModuleOp, list[Any]]] = []
    for module, loss in (
        (build_mlp(layers=2, d_model=8, batch=8), "mse"),
        (
            build_gpt(layers=2, d_model=8, heads=2, vocab=8, batch=4, seq=4),
            "cross_entropy",
        ),
    ):
        differentiate_with(module, loss=loss)
        for options in STRATEGIES:
            result = distribute(module, options)
            if result is not None:
                found.append((result, arguments_of_model(module)))
    return found


def prepare() -> None:
    """What the programs are made of."""
    steps()
    cases()


def _program(draw: Draw) -> tuple[ModuleOp, list[Any]]:
    if draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(steps()))
    program = any_program(draw, max_ops=5)
    return distributed(draw, program), program.arguments


def accepted(module: ModuleOp) -> bool:
    """Whether a program passes all checks. Any error but ours escapes."""
    try:
        module.verify()
        verify_distribution(module)
    except (DistIRError, VerifyException):
        return False
    return True


def _ranks(module: ModuleOp, arguments: list[Any]) -> list[Any]:
    """All ranks in lock-step, abstract changes of layout made collectives before."""
    if any(isinstance(op, ReshardOp) for op in module.walk()):
        module = module.clone()
        LowerReshardPass().apply(Context(), module)
    return run_ranks(module, arguments)


def _run(run: Any, module: ModuleOp, arguments: list[Any]) -> list[Any] | str:
    """Results, or the message of an error that users can read."""
    try:
        return run(module, arguments)
    except DistIRError as error:
        return str(error)


def case(draw: Draw) -> list[str]:
    """A program and some mutants of it; what came of these."""
    module, arguments = _program(draw)
    found: list[str] = []
    for _ in range(MUTANTS):
        mutant = module.clone()
        done = [mutated(draw, mutant)]
        if draw(st.integers(0, 3)) == 0:
            done.append(mutated(draw, mutant))
        if not any(done):
            continue
        try:
            found.append(judge(mutant, arguments))
        except BaseException as error:
            error.add_note("; ".join(filter(None, done)))
            raise
    return found


def judge(mutant: ModuleOp, arguments: list[Any]) -> str:
    """What came of a mutant. Raises whatever is a finding."""
    if not accepted(mutant):
        return "refused"
    plain = erased(mutant)
    expected = _run(run_program, plain, arguments)
    if isinstance(expected, str):
        # Not even whole values can be computed on: no question of how they are split.
        _run(run_program, mutant, arguments)
        return "not a program"
    label = "equal"
    for run in (run_program, _ranks):
        actual = run(mutant, arguments)
        if not assert_same(plain, arguments, expected, actual):
            label = "ill-conditioned"
    return label
