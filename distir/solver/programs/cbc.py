"""Solves integer programs with CBC, through PuLP."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distir.errors import DistIRError
from distir.solver.clock import Clock
from distir.solver.problem import Costs
from distir.solver.programs.program import (
    ConstraintRows,
    LinearProgram,
    ProgramSolution,
)
from distir.solver.programs.standard_output import nothing_on_stdout


@nothing_on_stdout()
def run_cbc(
    program: LinearProgram,
    extra: Sequence[ConstraintRows],
    clock: Clock,
    gap: float,
    start: Costs | None,
) -> ProgramSolution:
    """
    Solves a program with the additional rows `extra`, within the time of the clock and
    up to the relative gap `gap`. `start` is a solution to start from, or None. CBC runs
    in a separate process and returns its best solution when it is interrupted. Raises
    DistIRError if PuLP or CBC is not installed.
    """
    try:
        import pulp
    except ImportError as error:
        raise DistIRError(
            "PuLP is not installed: `pip install 'pulp<4'`, or choose solver=highs"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        solver = pulp.PULP_CBC_CMD(
            msg=False,
            gapRel=gap,
            gapAbs=0,
            timeLimit=max(clock.left, 0.01) if math.isfinite(clock.left) else None,
            logPath=str(log),
            warmStart=start is not None,
        )
        if not solver.available():
            raise DistIRError(
                "the solver CBC is not installed: install it (PuLP brings it on most "
                "platforms), or choose solver=highs"
            )
        problem, variables = _model(program, extra, pulp)
        if start is not None:
            for variable, value in zip(variables, start, strict=True):
                variable.setInitialValue(value)
        problem.solve(solver)
        text = log.read_text() if log.exists() else ""
    if problem.sol_status == pulp.LpSolutionNoSolutionFound:
        return ProgramSolution(None, _bound(text))
    if problem.sol_status == pulp.LpSolutionInfeasible:
        return ProgramSolution(None, math.inf)
    columns = np.array([variable.varValue or 0.0 for variable in variables])
    objective = float(program.costs @ columns)
    # On a time-out `status` is optimal all the same; `sol_status` tells.
    proven = problem.sol_status == pulp.LpSolutionOptimal and not gap
    return ProgramSolution(columns, objective if proven else _bound(text))


def _bound(log: str) -> float:
    """
    Returns the last bound that CBC wrote to its log, or minus infinity if there is
    none.
    """
    found = re.findall(
        r"(?:Lower bound:|best possible|Continuous objective value is)\s+(-?[\d.e+]+)",
        log,
    )
    return float(found[-1]) if found else -math.inf


def _model(program: LinearProgram, extra: Sequence[ConstraintRows], pulp):  # pyright: ignore
    width = len(str(len(program.costs)))  # names that sort as numbers do
    variables = [
        pulp.LpVariable(
            f"x{c:0{width}}", 0, 1, "Integer" if c < program.integers else "Continuous"
        )
        for c in range(len(program.costs))
    ]
    problem = pulp.LpProblem("choice", pulp.LpMinimize)
    problem += pulp.LpAffineExpression(
        list(zip(variables, program.costs.tolist(), strict=True))
    )
    number = 0
    for rows in (program.rows, *extra):
        columns, values = rows.columns.tolist(), rows.values.tolist()
        for r, (lower, upper) in enumerate(zip(rows.lower, rows.upper, strict=True)):
            entries = range(rows.starts[r], rows.starts[r + 1])
            sense = pulp.LpConstraintEQ if lower == upper else pulp.LpConstraintLE
            terms = [(variables[columns[e]], values[e]) for e in entries]
            row = pulp.LpAffineExpression(terms)
            problem += pulp.LpConstraint(row, sense, f"r{number}", float(upper))
            number += 1
    return problem, variables
