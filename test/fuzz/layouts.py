"""
Random legal layouts of random programs: partitioned, lowered to collectives and sends,
projected to every rank and run in lock-step, they compute what the sequential program
does.
"""

from __future__ import annotations

from fuzz.equality import assert_same
from fuzz.lockstep import run_ranks
from fuzz.programs import any_program, distributed
from support.random_programs import Draw

from distir.interpreters.reference import run_program

EXAMPLES = 8
"""Of a round."""


def case(draw: Draw) -> list[str]:
    """One program under one choice of layouts; what came of it."""
    program = any_program(draw)
    module = distributed(draw, program)
    expected = run_program(program.module, program.arguments)
    actual = run_ranks(module, program.arguments)
    same = assert_same(program.module, program.arguments, expected, actual)
    return ["equal" if same else "ill-conditioned"]
