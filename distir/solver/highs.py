"""Run an integer program in HiGHS."""

from __future__ import annotations

import math
import time

import numpy as np

from distir.errors import DistIRError
from distir.solver.integer_program import Answer, Program
from distir.solver.problem import Costs


def run_highs(
    program: Program, time_limit: float, gap: float, start: Costs | None
) -> Answer:
    """Interruptible: HiGHS works in a thread of its own and is told to stop."""
    try:
        import highspy
    except ImportError as error:
        raise DistIRError(
            "the solver HiGHS is not installed: `pip install highspy`, or choose "
            "solver=cbc"
        ) from error
    highs = highspy.Highs()
    highs.silent()
    options = {
        "mip_rel_gap": gap,  # its default of 1e-4 would pass for optimal
        "mip_abs_gap": 0.0,
        "time_limit": max(time_limit, 0.0) if math.isfinite(time_limit) else 1e30,
    }
    for name, value in options.items():
        highs.setOptionValue(name, value)
    highs.passModel(_model(program, highspy))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = list(start)
        highs.setSolution(solution)

    highs.HandleUserInterrupt = True
    interrupted = False
    deadline = time.monotonic() + time_limit
    highs.startSolve()
    done = False
    while not done:
        try:
            done, _ = highs.wait(0.05)
            if (
                time.monotonic() > deadline
            ):  # also where HiGHS does not look at its limit
                highs.cancelSolve()
        except KeyboardInterrupt:
            interrupted = True
            highs.cancelSolve()

    status = highs.getModelStatus()
    info = highs.getInfo()
    feasible = (
        info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    )
    columns = np.array(highs.getSolution().col_value) if feasible else None
    bound = info.mip_dual_bound
    if status == highspy.HighsModelStatus.kInfeasible:
        columns, bound = None, math.inf
    elif status == highspy.HighsModelStatus.kOptimal and not gap:
        bound = info.objective_function_value
    return Answer(columns, bound, interrupted)


def _model(program: Program, highspy):  # pyright: ignore
    model = highspy.HighsLp()
    model.num_col_ = columns = len(program.costs)
    model.num_row_ = len(program.lower)
    model.col_cost_ = program.costs
    model.col_lower_ = np.zeros(columns)
    model.col_upper_ = np.ones(columns)
    model.row_lower_ = program.lower
    model.row_upper_ = program.upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = program.starts
    model.a_matrix_.index_ = program.columns
    model.a_matrix_.value_ = program.values
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger] * program.binaries
    model.integrality_ += [kinds.kContinuous] * (columns - program.binaries)
    return model
